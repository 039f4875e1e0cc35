"""The rounds' parts, and refusals of inputs that do not fit together, before anything is trained."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.cli.main import run
from kfp_mindspore.compression import compress
from kfp_mindspore.compression.options import CompressionOptions
from kfp_mindspore.compression.result import CompressionResult, Round
from kfp_mindspore.compression.run import get_next_part
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import NETWORK_FILE, Checkpoint, NetworkSpec, write_checkpoint
from kfp_mindspore.formats.dataset import Column, write_dataset
from kfp_mindspore.formats.packed import PACKED_FILE, read_packed
from kfp_mindspore.mindir import load_network

NETWORKS = "tests.support.models.cut_networks"
PACKING = CompressionOptions(pruned=0, min_pruned=0, weights="int8", max_accuracy_lost=1.0)


def test_rounds_bisect_between_passed_and_failed() -> None:
    options = CompressionOptions(pruned=0.6, min_pruned=0.4, rounds=4)
    first = Round(0.6, 0.61, 0.9, False)
    least = Round(0.4, 0.41, 0.95, True)
    middle = Round(0.5, 0.5, 0.95, True)

    assert get_next_part([dataclasses.replace(first, passed=True)], options) is None
    assert get_next_part([first], options) == 0.4
    assert get_next_part([first, dataclasses.replace(least, passed=False)], options) is None
    assert get_next_part([first, least], options) == pytest.approx(0.5)
    assert get_next_part([first, least, middle], options) == pytest.approx(0.55)
    assert get_next_part([first, least, middle, middle], options) is None


@settings(max_examples=50)
@given(
    parts=st.tuples(st.floats(0.01, 0.9), st.floats(0.01, 0.9)).map(sorted),
    limit=st.floats(0, 1),
    most=st.integers(1, 9),
)
def test_rounds_close_in_on_the_most_that_passes(parts: list[float], limit: float, most: int) -> None:
    options = CompressionOptions(min_pruned=parts[0], pruned=parts[1], rounds=most)
    rounds: list[Round] = []
    wanted: float | None = options.pruned
    while wanted is not None:
        rounds.append(Round(wanted, wanted, 0.9, wanted <= limit))
        wanted = get_next_part(rounds, options)

    assert len(rounds) <= most
    assert all(parts[0] <= entry.wanted <= parts[1] for entry in rounds)
    passed = [entry.wanted for entry in rounds if entry.passed]
    if parts[1] <= limit:
        assert passed == [parts[1]]
    elif parts[0] <= limit and len(rounds) > 1:
        assert limit - max(passed) <= (parts[1] - parts[0]) / 2 ** (most - 2) + 1e-9


def make_rows(count: int, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    images = generator.normal(size=(count, 1, 8, 8)).astype(np.float32)
    return {"image": images, "label": generator.integers(0, 3, count).astype(np.int32)}


def write_images(path: Path, *splits: str, **changes: Any) -> Path:
    columns = [Column("image", "float32", (1, 8, 8), "feature"), Column("label", "int32", (), "target")]
    labels = ("a", "b", "c")
    content = {name: make_rows(12, seed) for seed, name in enumerate(splits)}
    described: dict[str, Any] = {"task": "classification", "columns": columns, "labels": labels, "splits": content}
    write_dataset(path, name="images", **{**described, **changes})
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images", "train", "validation", "test")


def write_network(path: Path, factory: str, network: Any, arguments: dict[str, Any] | None = None) -> Path:
    import mindspore

    generator = np.random.default_rng(0)
    for parameter in network.get_parameters():
        parameter.set_data(mindspore.Tensor(generator.normal(size=parameter.shape).astype(np.float32)))
    spec = NetworkSpec(factory, arguments or {})
    with write_checkpoint(path, epoch=1, step=3, seed=0, network=spec) as target:
        mindspore.save_checkpoint(network, str(target / NETWORK_FILE))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.models.cut_networks import Shared

    return write_network(tmp_path_factory.mktemp("trained") / "checkpoint", f"{NETWORKS}:Shared", Shared())


@pytest.fixture(scope="module")
def packed(checkpoint: Path, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> CompressionResult:
    output = tmp_path_factory.mktemp("packed") / "small"
    return compress(checkpoint, dataset, output, PACKING, metric="f1_macro")


@pytest.mark.mindspore
def test_packed_result_has_checkpoint_report_and_description(packed: CompressionResult, checkpoint: Path) -> None:
    described = json.loads((packed.directory / "compression.json").read_text())
    stored, former = Checkpoint.open(packed.checkpoint), Checkpoint.open(checkpoint)

    assert {file.name for file in packed.directory.iterdir()} == {"checkpoint", "compression.html", "compression.json"}
    assert described["pruned"] == packed.pruned == 0
    assert (described["metric"], described["split"]) == ("f1_macro", "validation")
    assert stored.metrics == {"f1_macro": packed.value}
    assert (stored.network.factory, stored.epoch, stored.step) == (former.network.factory, 1, 3)
    assert "f1_macro" in packed.report.read_text()


@pytest.mark.mindspore
def test_packed_bytes_are_counted_by_parameter(packed: CompressionResult) -> None:
    values = read_packed(packed.checkpoint / PACKED_FILE)

    assert {layer.name: layer.shape for layer in packed.layers} == {name: value.shape for name, value in values.items()}
    assert packed.after.bytes == sum(layer.bytes for layer in packed.layers) < packed.before.bytes / 2
    assert packed.after.flops == packed.before.flops == sum(layer.flops for layer in packed.layers)


@pytest.mark.mindspore
def test_equal_seeds_cut_and_train_equally(checkpoint: Path, dataset: Path, tmp_path: Path) -> None:
    options = CompressionOptions(method="random", min_pruned=0.5, epochs=1, max_accuracy_lost=1.0, seed=3)

    one, other = (compress(checkpoint, dataset, tmp_path / name, options) for name in ("one", "other"))

    assert 0.5 <= one.pruned < 1
    assert (one.value_before, one.value, one.rounds) == (other.value_before, other.value, other.rounds)
    values, others = (load_network(result.checkpoint).parameters_dict() for result in (one, other))
    for name, value in values.items():
        np.testing.assert_array_equal(value.asnumpy(), others[name].asnumpy())


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("splits", "changes", "text"),
    [
        (("train",), {}, "has no split validation or test to measure the metric on"),
        (("validation", "test"), {}, "no split 'train', found validation, test"),
        (
            ("train", "validation"),
            {"columns": [Column("image", "float32", (1, 8, 8), "feature"), Column("label", "int32", (), "id")]},
            "has no target",
        ),
    ],
    ids=["no held-out split", "no training split", "no target"],
)
def test_dataset_that_cannot_be_trained_on_is_refused(
    splits: tuple[str, ...], changes: dict[str, Any], text: str, checkpoint: Path, tmp_path: Path
) -> None:
    data = write_images(tmp_path / "data", *splits, **changes)

    with pytest.raises(UserError, match=text):
        compress(checkpoint, data, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def damage_weights(copy: Path) -> None:
    (copy / NETWORK_FILE).write_bytes((copy / NETWORK_FILE).read_bytes()[:40])


def remove_weights(copy: Path) -> None:
    (copy / NETWORK_FILE).unlink()


def remove_description(copy: Path) -> None:
    (copy / "checkpoint.json").unlink()


def change_network(copy: Path, **changes: Any) -> None:
    description = json.loads((copy / "checkpoint.json").read_text())
    description["network"] |= changes
    (copy / "checkpoint.json").write_text(json.dumps(description))


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (damage_weights, NETWORK_FILE),
        (remove_weights, NETWORK_FILE),
        (remove_description, "does not record how the network is built"),
        (lambda copy: change_network(copy, factory=""), "does not record how the network is built"),
        (lambda copy: change_network(copy, factory="no_such_module:Network"), "no_such_module"),
        (lambda copy: change_network(copy, factory=f"{NETWORKS}:Gated"), "does not fit the network"),
        (
            lambda copy: change_network(copy, cut={"shapes": {"first.weight": [99, 64]}}),
            "first.weight must have a shape of at least",
        ),
        (
            lambda copy: change_network(copy, cut={"attributes": {"nowhere": {"heads": 2}}}),
            "has no layer 'nowhere' to be cut",
        ),
    ],
    ids=["truncated", "no weights", "no description", "no factory", "unknown", "other", "wider", "other layers"],
)
def test_damaged_checkpoint_exits_with_2_and_writes_nothing(
    damage: Any, text: str, checkpoint: Path, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    for file in copy.iterdir():
        file.chmod(0o644)
    damage(copy)

    assert run(["model", "compress", str(copy), "--dataset", str(dataset), "-o", str(tmp_path / "small")]) == 2

    errors = capsys.readouterr().err
    assert text in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "small").exists()


def write_rows(path: Path, width: int) -> Path:
    rows = {"rows": np.ones((12, width), np.float32), "label": np.arange(12, dtype=np.int32) % 3}
    columns = [Column("rows", "float32", (width,), "feature"), Column("label", "int32", (), "target")]
    return write_images(path, columns=columns, splits={"train": rows, "validation": rows})


@pytest.mark.mindspore
def test_network_of_one_layer_is_refused_with_the_reason(tmp_path: Path) -> None:
    from mindspore import nn

    arguments = {"in_channels": 4, "out_channels": 3}
    path = write_network(tmp_path / "dense", "mindspore.nn:Dense", nn.Dense(4, 3), arguments)

    with pytest.raises(UserError, match=r"no layer can be cut: .*the network's output"):
        compress(path, write_rows(tmp_path / "data", 4), tmp_path / "small")


@pytest.mark.mindspore
def test_search_without_a_middle_layer_is_refused_before_fine_tuning(tmp_path: Path) -> None:
    from tests.support.models.cut_networks import Pair

    path = write_network(tmp_path / "pair", f"{NETWORKS}:Pair", Pair())
    trained: list[Any] = []
    options = CompressionOptions(method="l1", weights="slb4", epochs=1)

    with pytest.raises(UserError, match=r"weights: slb4 needs three or more nn.Dense and nn.Conv2d layers"):
        compress(
            *(path, write_rows(tmp_path / "data", 5), tmp_path / "small", options),
            augment=lambda inputs, generator: trained.append(inputs) or inputs,
        )
    assert trained == []
    assert not (tmp_path / "small").exists()
