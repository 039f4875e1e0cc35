"""Export of free dimensions and of transforms with real networks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.data import read_samples
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError, ValidationError
from kfp_mindspore.formats.bundle import TRANSFORM_FILE, Dimension, ModelBundle
from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
from kfp_mindspore.mindir import GraphRunner, export_mindir
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.transform.load import load_transform

pytestmark = pytest.mark.mindspore

SUPPORT = Path(__file__).parents[3] / "support" / "models"
TOKENS = {"inputs": {"ids": 1, "mask": 1}, "outputs": {"output": 1}, "sizes": [16, 32, 64], "pad": {"ids": 0}}


@pytest.fixture(autouse=True)
def _directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SUPPORT))


def make_texts(rows: int = 4, length: int = 10) -> dict[str, Any]:
    random = np.random.default_rng(5)
    mask = (np.arange(length) < random.integers(1, length + 1, (rows, 1))).astype(np.float32)
    return {"ids": random.integers(0, 50, (rows, length), np.int32), "mask": mask}


def test_dimensions_in_signature(models: Path) -> None:
    bundle = ModelBundle.open(models / "sequence")
    assert [spec.shape for spec in bundle.signature.inputs] == [(-1, -1), (-1, -1)]
    assert bundle.signature.outputs[0].shape == (-1, -1, 5)
    (tokens,) = bundle.signature.dimensions
    assert tokens == Dimension("tokens", {"ids": 1, "mask": 1}, {"output": 1}, (16, 32, 64), {"ids": 0, "mask": 0})


def test_padding_does_not_change_outputs(models: Path) -> None:
    texts = make_texts(3, 20)
    with GraphRunner(models / "sequence", max_batch=4, warm=()) as runner:
        whole = runner.predict(texts)["output"]
        assert whole.shape == (3, 20, 5)
        for index in range(3):
            length = int(texts["mask"][index].sum())
            row = {name: array[index : index + 1, :length] for name, array in texts.items()}
            found = runner.predict(row)["output"]
            np.testing.assert_allclose(found[0], whole[index, :length], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"network": "small_networks:Unmasked"}, KfpMindSporeError, "padded to tokens 16, the graph must compute what"),
        ({"outputs": {}}, KfpMindSporeError, r"padded to tokens 16: output 'output' must have shape \(4, 10, 5\)"),
        ({"outputs": {"logits": 1}}, ValidationError, "tokens.outputs: unknown 'logits', expected 'output'"),
        (
            {"inputs": {"ids": 1}},
            KfpMindSporeError,
            "padded to tokens 16, the graph does not compute: .*\n.*every input",
        ),
        ({"inputs": {"id": 1}}, ValidationError, "tokens.inputs: unknown 'id', expected 'ids', 'mask'"),
        ({"inputs": {"ids": 0}}, ValidationError, "must be an axis of shape"),
        ({"sizes": [4, 8]}, UserError, "tokens.sizes: must hold the samples' length 10, the largest is 8"),
        ({"sizes": []}, ValidationError, "tokens.sizes: must be ascending"),
        ({"pad": {"ids": 1.5}}, ValidationError, "tokens.pad.ids: must be a value of dtype int32"),
    ],
)
def test_invalid_dimensions_are_rejected(
    models: Path, tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    network = change.pop("network", None) if "network" in change else None
    with pytest.raises(error, match=message):
        export_mindir(
            models / "sequence_checkpoint",
            tmp_path / "model",
            samples=make_texts(),
            dimensions={"tokens": {**TOKENS, **change}},
            network=network,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dimensions", [[], {"tokens": 3}, "tokens"])
def test_dimensions_of_another_type_are_rejected(models: Path, tmp_path: Path, dimensions: Any) -> None:
    with pytest.raises(ValidationError, match=r"must be a(n object| dict)"):
        export_mindir(models / "sequence_checkpoint", tmp_path / "model", samples=make_texts(), dimensions=dimensions)


def test_fixed_batch_with_free_length(models: Path, tmp_path: Path) -> None:
    bundle = export_mindir(
        models / "sequence_checkpoint", tmp_path / "model", samples=make_texts(), dimensions={"tokens": TOKENS}, batch=3
    )
    assert bundle.signature.inputs[0].shape == (3, -1)
    with GraphRunner(bundle) as runner:
        assert runner.predict(make_texts(7, 33))["output"].shape == (7, 33, 5)


def test_order_of_samples_does_not_matter(models: Path, tmp_path: Path) -> None:
    texts = make_texts()
    turned = {"mask": texts["mask"], "ids": texts["ids"]}
    bundle = export_mindir(models / "sequence_checkpoint", tmp_path / "model", samples=turned)
    assert [(spec.name, spec.dtype) for spec in bundle.signature.inputs] == [("ids", "int32"), ("mask", "float32")]
    np.testing.assert_array_equal(bundle.read_verified().inputs["ids"], texts["ids"])


def test_two_dimensions(tmp_path: Path) -> None:
    """An image of any height and width, doubled pixel by pixel."""

    class Double(mindspore.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.scale = mindspore.Parameter(mindspore.Tensor([2.0], mindspore.float32), name="scale")

        def construct(self, image):  # type: ignore[no-untyped-def]
            return image * self.scale

    with write_checkpoint(tmp_path / "checkpoint", epoch=1, step=1, seed=1, network=NetworkSpec("")) as directory:
        mindspore.save_checkpoint(Double(), str(directory / "network.ckpt"))
    bundle = export_mindir(
        tmp_path / "checkpoint",
        tmp_path / "model",
        network=Double(),
        samples={"image": np.random.default_rng(1).random((2, 1, 5, 9), np.float32)},
        dimensions={
            "height": {"inputs": {"image": 2}, "outputs": {"output": 2}, "sizes": [4, 8, 16]},
            "width": {"inputs": {"image": 3}, "outputs": {"output": 3}, "sizes": [16], "pad": {"image": -1}},
        },
    )
    assert bundle.signature.inputs[0].shape == (-1, 1, -1, -1)
    image = np.random.default_rng(2).random((3, 1, 7, 3), np.float32)
    with GraphRunner(bundle, max_batch=4, warm=()) as runner:
        np.testing.assert_array_equal(runner.predict({"image": image})["output"], image * 2)


# ---- transforms


def test_transform_of_encoded_images(models: Path) -> None:
    from io import BytesIO

    from PIL import Image

    bundle = ModelBundle.open(models / "transformed")
    assert bundle.signature.files[TRANSFORM_FILE]["size"] == (SUPPORT / "digits_transform.py").stat().st_size
    bound = load_transform(bundle, allow_code=True)
    assert bound is not None
    test = read_samples(models / "dataset", "test")
    images, labels = test.inputs["image"], test.target
    files = []
    for image in images:
        buffer = BytesIO()
        Image.fromarray(np.round(image[0] * 255).astype(np.uint8)).save(buffer, "PNG")
        files.append(buffer.getvalue())
    with GraphRunner(bundle, warm=()) as runner:
        outputs = bound.run_postprocess(runner.predict(bound.run_preprocess({"image": fill_objects(files)})))
    classes, scores = outputs["classes"], outputs["scores"]
    assert (classes.shape, scores.shape) == ((360, 3), (360, 3))
    assert np.mean([int(row[0]) == label for row, label in zip(classes, labels, strict=True)]) > 0.9
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (None, NotFoundError, "mine.py: no such transform file"),
        ("import nowhere", UserError, r"mine.py:1: ModuleNotFoundError"),
        (
            "from kfp_mindspore.transform import *\nclass T(Transform):\n  def preprocess(self, inputs):\n"
            "    return {'image': inputs['image'].astype('float64')}\ntransform = T()\n",
            UserError,
            "transform: tried on an example: .*'image': dtype must be float32, got float64",
        ),
    ],
)
def test_failing_transform_is_not_exported(
    models: Path, tmp_path: Path, source: str | None, error: type[Exception], message: str
) -> None:
    if source is not None:
        Path("mine.py").write_text(source)
    target = Path(shutil.copytree(models / "fixed", tmp_path / "out" / "model"))
    before = ModelBundle.open(target).signature
    with pytest.raises(error, match=message):
        export_mindir(models / "checkpoint", target, dataset_dir=models / "dataset", transform="mine.py")
    assert ModelBundle.open(target).signature == before


def test_commands(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["model", "export", str(models / "checkpoint"), "--dataset", str(models / "dataset"), "-o", "model"]
    assert run([*base, "--transform", str(SUPPORT / "digits_transform.py")]) == 0
    assert run(["model", "inspect", "model"]) == 0
    assert "transform.py: changes requests and responses; served only with --allow_model_code true" in (
        capsys.readouterr().out
    )
    assert run(["model", "verify", "model"]) == 0
    assert "transform.py, verified.npz and signature.json match their digests" in capsys.readouterr().out
    assert run([*base, "--transform", "nobody"]) == 2
    assert "transform 'nobody': not registered" in capsys.readouterr().err
    Path("dimensions.json").write_text(json.dumps({"height": {"inputs": {"image": 2}, "sizes": [8]}}))
    assert run([*base, "--dimensions", "dimensions.json", "--network", "small_networks:Broken"]) == 2
    assert "(-1, 1, -1, 8)" in capsys.readouterr().err
    Path("dimensions.json").write_text("[]")
    assert run([*base, "--dimensions", "dimensions.json"]) == 2
    assert "dimensions.json: must contain a JSON object" in capsys.readouterr().err
