"""A trained checkpoint is compressed, exported and trained further."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import nn

from kfp_mindspore.cli.main import run
from kfp_mindspore.compression import compress
from kfp_mindspore.compression.options import CompressionOptions
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.formats.dataset import Column, write_dataset
from kfp_mindspore.mindir import evaluate_bundle, export_mindir, load_network
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from tests.support.models.cut_networks import Plain, Residual

pytestmark = [pytest.mark.mindspore, pytest.mark.slow, pytest.mark.timeout(900)]

# MindSpore compiles CrossEntropyLoss in three times the time.
LOSS = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
OPTIONS = CompressionOptions(epochs=2, batch_size=32, max_accuracy_lost=1.0)


def make_samples(count: int, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count).astype(np.int32)
    images = generator.normal(0, 0.5, (count, 1, 8, 8)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label : 2 * label + 3] += 1
    return {"image": images, "label": labels}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "bars"
    write_dataset(
        path,
        name="bars",
        task="classification",
        columns=[
            Column("image", "float32", (1, 8, 8), "feature"),
            Column("label", "int32", (), "target"),
        ],
        labels=("top", "middle", "bottom"),
        splits={"train": make_samples(240, 0), "validation": make_samples(90, 1), "test": make_samples(90, 2)},
    )
    return path


@pytest.fixture(scope="module")
def checkpoint(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    set_seed(3)
    network = Plain()
    output = tmp_path_factory.mktemp("trained")
    optimizer = nn.Adam(network.trainable_params(), 3e-3)
    config = TrainingConfig(epochs=4, output_dir=output, export_check="off", verbose=False)
    fit(network, dataset, loss=LOSS, optimizer=optimizer, config=config)
    return output / "checkpoint"


def test_compressed_checkpoint_exports_evaluates_and_trains_further(
    checkpoint: Path, dataset: Path, tmp_path: Path
) -> None:
    result = compress(checkpoint, dataset, tmp_path / "small", OPTIONS, pruned=0.5)

    small = tmp_path / "small/checkpoint"
    assert 0.5 <= result.pruned < 0.7
    assert result.after.flops < result.before.flops
    assert {left.layer for left in result.left} == {"layers.9"}
    for name, directory in (("whole", checkpoint), ("small", small)):
        export_mindir(directory, tmp_path / f"model-{name}", dataset_dir=dataset)
    sizes = [(tmp_path / f"model-{name}/model.mindir").stat().st_size for name in ("whole", "small")]
    assert sizes[1] < sizes[0] - 4 * (result.before.parameters - result.after.parameters) * 0.9
    exported = evaluate_bundle(tmp_path / "model-small", dataset, split="validation")
    assert exported.value == pytest.approx(result.value, abs=1e-6)

    network = load_network(small)
    optimizer = nn.Adam(network.trainable_params(), 1e-3)
    config = TrainingConfig(epochs=1, output_dir=tmp_path / "more", initial=small, verbose=False)
    fit(network, dataset, loss=LOSS, optimizer=optimizer, config=config)
    assert Checkpoint.open(tmp_path / "more/checkpoint").network == Checkpoint.open(small).network
    again = compress(tmp_path / "more/checkpoint", dataset, tmp_path / "smaller", OPTIONS, pruned=0.45)
    export_mindir(again.checkpoint, tmp_path / "model-smaller", dataset_dir=dataset)
    assert again.before.parameters == result.after.parameters > again.after.parameters


@pytest.mark.parametrize(("method", "target"), [("taylor", "flops"), ("scop", "parameters"), ("bn", "parameters")])
def test_methods_and_targets(method: str, target: str, checkpoint: Path, dataset: Path, tmp_path: Path) -> None:
    result = compress(
        checkpoint, dataset, tmp_path / "small", OPTIONS, method=method, target=target, pruned=0.2, min_pruned=0.1
    )

    assert result.after.parameters < result.before.parameters
    if target == "flops":
        assert result.after.flops <= 0.8 * result.before.flops


@pytest.mark.parametrize(("weights", "least"), [("int8", 3.0), ("slb4", 4.5), ("slb1", 8.0)])
def test_packed_weights_are_smaller_and_export(
    weights: str, least: float, checkpoint: Path, dataset: Path, tmp_path: Path
) -> None:
    result = compress(checkpoint, dataset, tmp_path / "packed", OPTIONS, pruned=0, min_pruned=0, weights=weights)

    assert result.before.bytes > least * result.after.bytes
    assert not (result.checkpoint / "network.ckpt").exists()
    export_mindir(result.checkpoint, tmp_path / "model", dataset_dir=dataset)
    exported = evaluate_bundle(tmp_path / "model", dataset, split="validation")
    assert exported.value == pytest.approx(result.value, abs=1e-6)
    assert exported.value > 0.9
    levels = {len(np.unique(row)) for row in load_network(result.checkpoint).layers[4].weight.asnumpy()}
    assert max(levels) <= {"int8": 255, "slb4": 16, "slb1": 2}[weights]


def test_unmet_gate_keeps_best_round(
    checkpoint: Path, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model", "compress", str(checkpoint), "--dataset", str(dataset), "-o", str(tmp_path / "small")]
    options = ["--method", "random", "--pruned", "0.9", "--min-pruned", "0.85", "--epochs", "1"]

    assert run([*words, *options, "--max-accuracy-lost", "0", "--learning-rate", "1e-9"]) == 3
    assert str(tmp_path / "small/checkpoint") in capsys.readouterr().err
    described = json.loads((tmp_path / "small/compression.json").read_text())
    assert not described["passed"]
    assert len(described["rounds"]) == 2
    assert Checkpoint.open(tmp_path / "small/checkpoint").metrics["accuracy"] == max(
        entry["value"] for entry in described["rounds"]
    )


def test_checkpoint_of_another_network_is_refused(checkpoint: Path, dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    description = json.loads((copy / "checkpoint.json").read_text())
    description["network"]["factory"] = f"{Residual.__module__}:Residual"
    (copy / "checkpoint.json").write_text(json.dumps(description))

    with pytest.raises(UserError, match="does not fit the network: no value for stem"):
        compress(copy, dataset, tmp_path / "small", OPTIONS)
    assert not (tmp_path / "small").exists()


def test_cut_that_is_not_possible_is_refused(checkpoint: Path, dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"99.9% of the parameters cannot be cut, at most 9\d.\d%; left are layers.9"):
        compress(checkpoint, dataset, tmp_path / "small", OPTIONS, pruned=0.999)


def test_uncut_network_does_not_start_from_compressed_checkpoint(
    checkpoint: Path, dataset: Path, tmp_path: Path
) -> None:
    result = compress(checkpoint, dataset, tmp_path / "small", OPTIONS, epochs=1)
    network = Plain()
    optimizer = nn.Adam(network.trainable_params(), 1e-3)

    with pytest.raises(UserError, match=r"build the network by kfp_mindspore.mindir.load_network\("):
        fit(
            network,
            dataset,
            loss=LOSS,
            optimizer=optimizer,
            config=TrainingConfig(epochs=1, initial=result.checkpoint, export_check="off"),
        )
