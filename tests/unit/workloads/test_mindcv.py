"""The template `mindcv`: networks by name, their head, and what its training script refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.mindir import export_mindir
from kfp_mindspore.workloads.mindcv.network import build_network, list_head
from kfp_mindspore.workloads.mindcv.train import main

pytestmark = pytest.mark.mindspore

SMALL = "mobilenet_v1_025"


def test_missing_package_is_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindcv", None)
    with pytest.raises(MissingExtraError, match=r"mindcv is not installed\n.*kfp-mindspore\[mindcv\]"):
        build_network(SMALL, 3)


@pytest.mark.parametrize(
    ("name", "near"),
    [("resnet19", "resnet18"), ("ResNet50", "resnet50"), ("mobilenet_v3_small", "mobilenet_v3_small_075")],
)
def test_unknown_network_has_similar_names(name: str, near: str) -> None:
    with pytest.raises(UserError, match=rf"network: mindcv 0\.3\.\d+ has no network {name!r}; similar names: .*{near}"):
        build_network(name, 3)
    with pytest.raises(UserError, match=r"has no network 'unheard'\n") as caught:
        build_network("unheard", 3)
    assert "mindcv.list_models()" in caught.value.hint


def test_unknown_argument_is_named() -> None:
    with pytest.raises(UserError, match=rf"network: {SMALL} cannot be built with {{'width': 3}}: .*'width'"):
        build_network(SMALL, 3, width=3)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (SMALL, ["classifier.weight", "classifier.bias"]),
        ("resnet18", ["classifier.weight", "classifier.bias"]),
        ("mobilenet_v3_small_100", ["classifier.3.weight", "classifier.3.bias"]),
        ("efficientnet_b0", ["mlp_head.weight", "mlp_head.bias"]),
    ],
)
def test_head_is_what_depends_on_classes(name: str, head: list[str]) -> None:
    arguments: dict[str, Any] = {"name": name, "classes": 3, "channels": 1}
    assert list_head(build_network(**arguments), **arguments) == head


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs the script on a few shapes."""
    monkeypatch.setenv("KFP_MINDSPORE_DATASET_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KFP_MINDSPORE_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str, source: str = "shapes", **options: Any) -> None:
        if source == "shapes":
            options = {"preprocessing": "imagenet", "image_size": [32], "limit": 80, **options}
        load_dataset(source, tmp_path / "data", **options)
        main(["--network", SMALL, "--epochs", "1", *words])

    return run


def save(name: str, classes: int) -> dict[str, Any]:
    network = build_network(name, classes)
    mindspore.save_checkpoint(network, "weights.ckpt")
    return {parameter.name: parameter.asnumpy() for parameter in network.get_parameters()}


WRONG = {
    "missing": r"^weights\.ckpt: no such checkpoint directory or file",
    "damaged": r"^weights\.ckpt: cannot be read as a checkpoint: it is damaged",
    "empty": r"^weights\.ckpt: must be a MindSpore checkpoint \.ckpt, got an empty file",
    "pickle": r"^weights\.ckpt: must be a MindSpore checkpoint \.ckpt, got a zip archive, as PyTorch and NumPy write",
    "another network": r"^weights\.ckpt does not fit the network: .*of MobileNetV1's 137 parameters match",
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_weights_are_refused_before_training(kind: str, train: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "weights.ckpt"
    if kind == "damaged":
        save(SMALL, 1000)
        file.write_bytes(file.read_bytes()[:-1000])
    elif kind == "empty":
        file.touch()
    elif kind == "pickle":
        np.savez(tmp_path / "weights.npz", a=np.zeros(3))
        (tmp_path / "weights.npz").rename(file)
    elif kind == "another network":
        save("squeezenet1_0", 1000)
    with pytest.raises(UserError, match=WRONG[kind]):
        train("--initial", "weights.ckpt")
    assert not (tmp_path / "out" / "checkpoint").exists()


@pytest.mark.parametrize(
    ("source", "options", "words", "message"),
    [
        ("iris", {}, (), r"dataset: must be images with a class each, got classification of shape \(4,\)"),
        ("shapes", {"task": "none", "target": ()}, (), "dataset: must be images with a class each, got none"),
        (
            "shapes",
            {},
            ("--freeze", "layer1.*"),
            r"freeze: 'layer1\.\*' matches no parameter; found features\.0\.weight",
        ),
        ("shapes", {}, ("--freeze", "*"), "freeze: leaves no parameter to train in epoch 1"),
    ],
)
def test_wrong_data_and_patterns_are_refused(
    source: str, options: dict[str, Any], words: tuple[str, ...], message: str, train: Callable[..., None]
) -> None:
    with pytest.raises(UserError, match=message):
        train(*words, source=source, **options)


@pytest.mark.slow
def test_new_head_is_trained_on_frozen_weights_of_other_classes(
    train: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = save(SMALL, 1000)
    train("--initial", "weights.ckpt", "--freeze", "backbone")
    printed = capsys.readouterr().out
    assert "starting from weights.ckpt: 135 parameters; the network's own values of classifier.weight" in printed
    assert "from epoch 1 frozen (213,072 of 214,100 values): features.*; trained: classifier.*" in printed
    found = mindspore.load_checkpoint(str(Checkpoint.open(tmp_path / "out" / "checkpoint").network_file))
    trained = {name for name, value in found.items() if not np.array_equal(value.asnumpy(), weights[name])}
    # BatchNorm's statistics go on.
    assert {name for name in trained if "moving_" not in name} == {"classifier.weight", "classifier.bias"}
    bundle = export_mindir(tmp_path / "out" / "checkpoint", tmp_path / "bundle", dataset_dir=tmp_path / "data")
    assert bundle.signature.verified["max_abs_diff"] <= 1e-5
    assert bundle.signature.free_batch
