"""Steps as operations of mindspore.dataset compute the pixels that the server computes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.transform import DecodeImage, Normalize, Pipeline, Resize, TransformInputError
from kfp_mindspore.transform.base import fill_objects

pytestmark = pytest.mark.mindspore

PIPELINE = Pipeline([DecodeImage(), Resize((12, 10)), Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])])


@pytest.fixture(scope="module")
def contents() -> list[bytes]:
    random = np.random.default_rng(3)
    files = []
    for index in range(6):
        pixels = random.integers(0, 256, (8 + index, 20 - index, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG" if index % 2 else "JPEG")
        files.append(buffer.getvalue())
    return files


def read(dataset: Any, column: str = "image") -> np.ndarray[Any, Any]:
    rows = dataset.create_dict_iterator(output_numpy=True, num_epochs=1)
    return np.stack([row[column] for row in rows])


def test_encoded_files_of_generator(contents: list[bytes]) -> None:
    import mindspore.dataset as ds

    def generate() -> Iterator[tuple[Any, Any]]:
        for index, content in enumerate(contents):
            yield np.frombuffer(content, np.uint8), np.int32(index)

    dataset = ds.GeneratorDataset(generate, ["image", "label"], shuffle=False)
    trained = read(dataset.map([*PIPELINE.pre], input_columns=["image"]))
    assert trained.dtype == np.float32
    np.testing.assert_array_equal(trained, PIPELINE.preprocess({"image": fill_objects(contents)})["image"])


def test_folder_of_files_with_several_processes(contents: list[bytes], tmp_path: Path) -> None:
    import mindspore.dataset as ds

    for index, content in enumerate(contents):
        folder = tmp_path / f"class{index % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{index}.{'png' if index % 2 else 'jpg'}").write_bytes(content)
    served = PIPELINE.preprocess({"image": fill_objects(contents)})["image"]
    dataset = ds.ImageFolderDataset(str(tmp_path), shuffle=False, num_parallel_workers=1)
    dataset = dataset.map([*PIPELINE.pre], input_columns=["image"], num_parallel_workers=2, python_multiprocessing=True)
    order = [0, 2, 4, 1, 3, 5]
    np.testing.assert_array_equal(read(dataset), served[order])


def test_damaged_file_stops_training_with_its_message() -> None:
    import mindspore.dataset as ds

    dataset = ds.NumpySlicesDataset({"image": np.zeros((2, 30), np.uint8)}, shuffle=False)
    dataset = dataset.map([*PIPELINE.pre], input_columns=["image"])
    with pytest.raises((TransformInputError, RuntimeError), match="must be a whole PNG or JPEG file"):
        read(dataset)
