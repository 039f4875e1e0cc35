"""GraphRunner on real graphs."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError, UserError, ValidationError
from kfp_mindspore.formats.bundle import MODEL_FILE, ModelBundle, TensorSpec, write_bundle
from kfp_mindspore.mindir.graph.execution import Graph
from kfp_mindspore.mindir.graph.runner import GraphRunner

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def free(models: Path) -> Iterator[GraphRunner]:
    with GraphRunner(models / "free", max_batch=16) as runner:
        yield runner


@pytest.fixture(scope="module")
def fixed(models: Path) -> Iterator[GraphRunner]:
    with GraphRunner(models / "fixed") as runner:
        yield runner


@pytest.fixture(scope="module")
def pair(models: Path) -> Iterator[GraphRunner]:
    with GraphRunner(models / "pair", warm=(4,), max_batch=8) as runner:
        yield runner


@pytest.fixture(scope="module")
def samples(models: Path) -> tuple[np.ndarray, np.ndarray]:
    verified = ModelBundle.open(models / "free").read_verified()
    return np.asarray(verified.inputs["image"]), np.asarray(verified.outputs["output"])


@pytest.mark.parametrize(
    ("model", "options", "batch", "sizes"),
    [
        ("free", {"max_batch": 16}, -1, (1, 2, 4, 8, 16)),
        ("fixed", {}, 8, (8,)),
        ("pair", {"warm": (4,), "max_batch": 8}, -1, (4, 8)),
    ],
)
def test_compiled_batch_sizes(
    models: Path, model: str, options: dict[str, Any], batch: int, sizes: tuple[int, ...]
) -> None:
    graph = Graph(ModelBundle.open(models / model), **options)
    assert (graph.batch, graph.sizes, graph.max_batch) == (batch, sizes, sizes[-1])


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 50), offset=st.integers(0, 13))
@pytest.mark.parametrize("kind", ["free", "fixed"])
def test_any_number_of_rows_is_padded_split_and_cropped(
    kind: str,
    request: pytest.FixtureRequest,
    samples: tuple[np.ndarray, np.ndarray],
    rows: int,
    offset: int,
) -> None:
    inputs, outputs = samples
    found = request.getfixturevalue(kind).predict({"image": inputs[offset : offset + rows]})
    assert found["output"].shape == (rows, 10)
    np.testing.assert_allclose(found["output"], outputs[offset : offset + rows], atol=1e-5)


def test_concurrent_threads_receive_their_own_outputs(
    free: GraphRunner, samples: tuple[np.ndarray, np.ndarray]
) -> None:
    inputs, outputs = samples

    def compute(number: int) -> float:
        start, rows = number % 40, 1 + number % 23
        found = free.predict({"image": inputs[start : start + rows]})["output"]
        return float(np.abs(found - outputs[start : start + rows]).max())

    with ThreadPoolExecutor(16) as pool:
        assert max(pool.map(compute, range(400))) < 1e-5


def test_several_inputs_and_outputs(pair: GraphRunner) -> None:
    values, index = np.ones((11, 3), np.float32), np.arange(11, dtype=np.int32)
    found = pair.predict({"index": index, "values": values})
    assert list(found) == ["output_0", "output_1"]
    np.testing.assert_array_equal(found["output_0"], values * 2)
    np.testing.assert_array_equal(found["output_1"], index + 1)
    assert found["output_1"].dtype == np.int32


IMAGE = np.zeros((3, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("inputs", "messages"),
    [
        ({"image": IMAGE[0]}, ["input 'image': shape must be (-1, 1, 8, 8), got (1, 8, 8)"]),
        ({"image": IMAGE[:, 0]}, ["input 'image': shape must be (-1, 1, 8, 8), got (3, 8, 8)"]),
        ({"image": IMAGE[:0]}, ["input 'image': shape must be (-1, 1, 8, 8), got (0, 1, 8, 8)"]),
        ({"image": IMAGE[..., :7]}, ["input 'image': shape must be (-1, 1, 8, 8), got (3, 1, 8, 7)"]),
        ({"image": IMAGE.astype(np.float64)}, ["input 'image': dtype must be float32, got float64"]),
        ({}, ["input 'image': missing, got none"]),
        ({"x": IMAGE}, ["input 'image': missing, got 'x'", "input 'x': unknown, expected 'image'"]),
        ({"image": IMAGE, "x": IMAGE}, ["input 'x': unknown, expected 'image'"]),
    ],
)
@pytest.mark.parametrize("kind", ["free", "fixed"])
def test_invalid_inputs_are_rejected_before_graph(
    kind: str, request: pytest.FixtureRequest, inputs: dict[str, np.ndarray], messages: list[str]
) -> None:
    runner: GraphRunner = request.getfixturevalue(kind)
    with pytest.raises(ValidationError) as caught:
        runner.predict(inputs)
    assert list(caught.value.errors) == messages
    assert runner.predict({"image": IMAGE})["output"].shape == (3, 10)


def test_unequal_batches_are_rejected(pair: GraphRunner) -> None:
    inputs = {"values": np.ones((2, 3), np.float32), "index": np.ones(3, np.int32)}
    with pytest.raises(ValidationError, match="same number of rows, got 2 in 'values', 3 in 'index'"):
        pair.predict(inputs)


def test_closed_runner_raises(models: Path) -> None:
    runner = GraphRunner(models / "fixed")
    runner.close()
    runner.close()
    with pytest.raises(KfpMindSporeError, match="the runner is closed"):
        runner.predict({"image": IMAGE})


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"warm": [0, 4]}])
def test_batch_sizes_below_one_are_rejected(models: Path, options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="must be at least 1"):
        GraphRunner(models / "free", **options)  # type: ignore[arg-type]


def test_damaged_and_unloadable_models_are_rejected(models: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(models / "free", tmp_path / "damaged"))
    content = bytearray((damaged / MODEL_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / MODEL_FILE).write_bytes(content)
    with pytest.raises(CorruptBundleError, match="sha256 must be"):
        GraphRunner(damaged)
    with write_bundle(tmp_path / "cut") as writer:
        (writer.directory / MODEL_FILE).write_bytes(bytes(content[:1000]))
        writer.sign(ModelBundle.open(models / "free").signature)
    with pytest.raises(UserError, match="MindSpore cannot load it"):
        GraphRunner(tmp_path / "cut")


def write_copy(models: Path, path: Path, size: int | None = None, **changes: Any) -> None:
    """Copy the model `free` with another signature and, with a size, only the first bytes of its graph."""
    bundle = ModelBundle.open(models / "free")
    with write_bundle(path) as writer:
        (writer.directory / MODEL_FILE).write_bytes(bundle.mindir.read_bytes()[:size])
        writer.sign(dataclasses.replace(bundle.signature, **changes))


def test_error_names_exporters_version_where_it_is_another(models: Path, tmp_path: Path) -> None:
    installed = metadata.version("mindspore")
    wide = (TensorSpec("image", "float32", (-1, 1, 9, 9)),)
    write_copy(models, tmp_path / "cut", 1000, mindspore_version="1.2.3")
    write_copy(models, tmp_path / "wide", mindspore_version="1.2.3", inputs=wide)
    write_copy(models, tmp_path / "own", inputs=wide)
    for name, message in (
        ("cut", f"exported by MindSpore 1.2.3, and MindSpore {installed} cannot load it: "),
        ("wide", f"exported by MindSpore 1.2.3, and MindSpore {installed} cannot compute it: "),
        ("own", "model.mindir: MindSpore cannot compute it: "),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            GraphRunner(tmp_path / name)
