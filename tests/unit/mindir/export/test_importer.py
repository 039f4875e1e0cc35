"""Import of MindIR files that other programs exported."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

from kfp_mindspore.cli.main import run
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir import GraphRunner, verify_bundle
from kfp_mindspore.mindir.export.importer import import_mindir
from kfp_mindspore.mindir.monitoring.reference import read_statistics
from tests.support.models.small_networks import Noisy, Pair, Perceptron, Sequence

pytestmark = pytest.mark.mindspore


class Counter(nn.Cell):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.count = mindspore.Parameter(mindspore.Tensor([0.0]), name="count")

    def construct(self, values):
        ops.assign_add(self.count, mindspore.Tensor([1.0]))
        return values + self.count


class Share(nn.Cell):
    """Each row depends on the others."""

    def construct(self, values):
        return values / values.sum(axis=0)


class Shifted(nn.Cell):
    """An index by arithmetic, so that the graph does not fix its range."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def construct(self, ids):
        return self.table(ids + 1)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def export(network: nn.Cell, *inputs: tuple[list[int | None], type], train: bool = False) -> Path:
    """Export as a script without this package does."""
    network.set_train(train)
    tensors = [
        mindspore.Tensor(shape=shape, dtype=dtype) if None in shape else mindspore.ops.zeros(tuple(shape), dtype)
        for shape, dtype in inputs
    ]
    mindspore.export(network, *tensors, file_name="net", file_format="MINDIR")
    return Path("net.mindir")


def test_free_dimensions_and_ranges_are_the_graphs(tmp_path: Path) -> None:
    network = Sequence()
    file = export(network, ([None, None], mindspore.int32), ([None, None], mindspore.float32))

    signature = import_mindir(file, "model", metadata={"author": "someone"}).signature

    assert [(spec.name, spec.shape, spec.range) for spec in signature.inputs] == [
        ("ids", (-1, -1), (0, 49)),
        ("mask", (-1, -1), None),
    ]
    assert [(spec.name, spec.shape) for spec in signature.outputs] == [("output", (-1, -1, 5))]
    assert (signature.metadata["imported"], signature.metadata["author"]) == ("net.mindir", "someone")
    assert (signature.verified["dataset"], signature.verified["samples"]) == ("generated", 64)
    assert verify_bundle("model", outputs=True).samples == 64
    rows = {"ids": np.array([[3, 4, 5]], np.int32), "mask": np.ones((1, 3), np.float32)}
    with GraphRunner("model", warm=()) as runner:
        found = runner.predict(rows)["output"]
    np.testing.assert_allclose(found, network(*map(mindspore.Tensor, rows.values())).asnumpy(), atol=1e-6)


def test_fixed_batch_takes_any_number_of_rows() -> None:
    file = export(Perceptron(), ([2, 1, 8, 8], mindspore.float32))

    bundle = import_mindir(file, "model", sample_count=5)

    assert [spec.shape for spec in (*bundle.signature.inputs, *bundle.signature.outputs)] == [(2, 1, 8, 8), (2, 10)]
    assert len(bundle.read_verified()) == 5


def test_dataset_gives_samples_targets_and_task(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = load_dataset("digits", "data")
    export(Perceptron(), ([None, 1, 8, 8], mindspore.float32))

    assert run(["model", "import", "net.mindir", "--dataset", "data", "--samples", "20", "-o", "model"]) == 0

    assert "model: imported; outputs of 20 digits rows recorded" in capsys.readouterr().out
    bundle, held_out = ModelBundle.open("model"), read_samples(dataset, "test", count=20)
    kept = bundle.read_verified()
    np.testing.assert_array_equal(next(iter(kept.inputs.values())), held_out.inputs["image"])
    np.testing.assert_array_equal(kept.labels, held_out.target)
    assert (bundle.signature.task, bundle.signature.labels) == ("classification", dataset.labels)
    statistics = read_statistics(bundle)
    assert (statistics["rows"], statistics["metric"]["name"]) == (dataset.splits["train"], "accuracy")
    words = ["model", "import", "net.mindir", "--dataset", "data", "--no-statistics", "-o", "bare"]
    assert run(words) == 0
    assert ModelBundle.open("bare").read_statistics() == {}


def test_unfit_dataset_is_named_with_input(capsys: pytest.CaptureFixture[str]) -> None:
    load_dataset("iris", "data")
    export(Perceptron(), ([None, 1, 8, 8], mindspore.float32))
    assert run(["model", "import", "net.mindir", "--dataset", "data", "-o", "model"]) == 2
    assert "data: does not fit net.mindir: input" in capsys.readouterr().err
    assert not Path("model").exists()


def test_example_rows_are_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    export(Pair(), ([None, 3], mindspore.float32), ([None], mindspore.int32))
    rows = [{"values": [0.5, 1, 2], "index": 4}, {"values": [1, 1, 1], "index": 5}]
    Path("rows.json").write_text(json.dumps(rows))

    assert run(["model", "import", "net.mindir", "--example", "rows.json", "-o", "model"]) == 0

    assert "model: imported; outputs of 2 samples rows recorded" in capsys.readouterr().out
    kept = ModelBundle.open("model").read_verified()
    np.testing.assert_array_equal(kept.inputs["values"], [row["values"] for row in rows])
    np.testing.assert_array_equal(kept.outputs["output_1"], [5, 6])


@pytest.mark.parametrize(
    ("network", "shape", "train", "message"),
    [
        (Counter, [None, 1], False, "stateful: AssignAdd changes the parameter count"),
        (Perceptron, [4, 1, 8, 8], True, "stateful: BatchNorm changes the parameter"),
        (lambda: Noisy(10), [None, 1, 8, 8], False, "stateful: StandardNormal draws random numbers"),
        (Share, [None, 3], False, "a row's outputs depend on the batch's other rows"),
    ],
)
def test_graph_that_cannot_be_served_is_refused(network, shape: list[int | None], train: bool, message: str) -> None:
    file = export(network(), (shape, mindspore.float32), train=train)

    with pytest.raises(UserError, match=message) as caught:
        import_mindir(file, "model")

    assert caught.value.message.startswith("net.mindir: ")
    assert not Path("model").exists()


def test_unknown_index_range_needs_rows_or_range() -> None:
    file = export(Shifted(), ([None, 2], mindspore.int32))

    with pytest.raises(UserError, match="input 'ids' is an index, and the graph does not fix its range"):
        import_mindir(file, "model")

    bundle = import_mindir(file, "model", metadata={"ranges": '{"ids": [0, 48]}'})
    assert bundle.signature.inputs[0].range == (0, 48)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "weight", "checkpoint"])
def test_damaged_file_is_refused(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = export(Perceptron(), ([None, 1, 8, 8], mindspore.float32))
    content = file.read_bytes()
    file.chmod(0o644)
    if damage == "weight":
        from kfp_mindspore.mindir.graph.metadata import read_proto

        model = read_proto(file)
        model.graph.parameter[0].raw_data = model.graph.parameter[0].raw_data[:-4]
        file.write_bytes(model.SerializeToString())
    else:
        changed = {"empty": b"", "text": b"no model", "cut": content[: len(content) // 2], "checkpoint": b"\x0a\x02ab"}
        file.write_bytes(changed[damage])

    assert run(["model", "import", "net.mindir", "-o", "model"]) == 2

    error = capsys.readouterr().err
    assert error.startswith("Error: net.mindir: ")
    assert "Traceback" not in error
    assert ("damaged: the weight" in error) == (damage == "weight")
