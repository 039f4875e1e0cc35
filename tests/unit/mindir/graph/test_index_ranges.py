"""Ranges of indices: derived from real graphs at export, enforced before the graph runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
from kfp_mindspore.mindir import GraphRunner, export_mindir

if TYPE_CHECKING:
    from mindspore import nn

pytestmark = pytest.mark.mindspore

IDS = np.arange(12, dtype=np.int32).reshape(4, 3) % 5
TEN_ROWS = (0, 9)


def build_network(kind: str) -> nn.Cell:
    """Return a network with `table`, an embedding of 10 rows, `weights` of shape (10, 4) and `small`, of 7 rows."""
    import mindspore
    from mindspore import nn, ops

    def embed(self, ids):
        return self.table(ids).sum(axis=1)

    def cast_and_reshape(self, ids):
        return ops.gather(self.weights, ops.cast(ids, mindspore.int64).reshape((-1,)), 0).reshape((-1, 12))

    def embed_twice(self, ids):
        return (self.table(ids) + self.small(ids)).sum(axis=1)

    def shift(self, ids):
        return self.table(ids + 1).sum(axis=1)

    def double(self, ids):
        return ids * 2

    def one_hot(self, ids):
        return ops.one_hot(ids, 10, mindspore.Tensor(1.0), mindspore.Tensor(0.0)).sum(axis=1)

    class Network(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.weights = mindspore.Parameter(ops.ones((10, 4)), name="weights")
            self.small = nn.Embedding(7, 4)

    Network.construct = {
        function.__name__: function for function in (embed, cast_and_reshape, embed_twice, shift, double, one_hot)
    }[kind]
    return Network()


def export(path: Path, network: nn.Cell, **options: Any) -> ModelBundle:
    import mindspore

    with write_checkpoint(path / "checkpoint", epoch=1, step=1, seed=1, network=NetworkSpec("")) as directory:
        mindspore.save_checkpoint(network, str(directory / "network.ckpt"))
    return export_mindir(path / "checkpoint", path / "model", samples={"ids": IDS}, network=network, **options)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("embed", TEN_ROWS),
        ("cast_and_reshape", TEN_ROWS),
        ("embed_twice", (0, 6)),
        ("double", None),
        ("one_hot", None),
    ],
)
def test_range_is_derived_from_graph(
    kind: str, expected: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (spec,) = export(tmp_path, build_network(kind)).signature.inputs
    assert spec.range == expected
    assert not caplog.records


def test_range_is_taken_from_samples_with_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        (spec,) = export(tmp_path, build_network("shift")).signature.inputs
    assert spec.range == (0, 4)
    assert "'ids' is used as an index and the graph does not fix its range" in caplog.text


def test_range_of_metadata_has_precedence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    signature = export(tmp_path, build_network("shift"), metadata={"ranges": '{"ids": [0, 8]}'}).signature
    assert (signature.inputs[0].range, "ranges" in signature.metadata) == ((0, 8), False)
    assert not caplog.records


def test_range_of_encrypted_model(tmp_path: Path) -> None:
    (spec,) = export(tmp_path, build_network("embed"), key=bytes(16)).signature.inputs
    assert spec.range == TEN_ROWS


def test_values_outside_range_are_refused_before_graph(tmp_path: Path) -> None:
    bundle = export(tmp_path, build_network("embed"))
    expected = bundle.read_verified().outputs["output"]
    with GraphRunner(bundle, warm=()) as runner:
        for value in (10, -1, 1_000_000):
            with pytest.raises(ValidationError, match=f"input 'ids': values must be 0 to 9, got {value}"):
                runner.predict({"ids": np.array([[0, value, 1]], np.int32)})
        np.testing.assert_allclose(runner.predict({"ids": IDS})["output"], expected, atol=1e-6)
