"""Calls of a compiled graph equal GraphCell's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.compat import graph_executor as compiled
from kfp_mindspore.compat.graph_executor import CompiledGraph
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.graph.encryption import load_graph

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def images(models: Path) -> np.ndarray:
    return np.asarray(ModelBundle.open(models / "free").read_verified().inputs["image"])


def open_graph(models: Path) -> CompiledGraph:
    return CompiledGraph(load_graph(ModelBundle.open(models / "free"), None))


def count_calls(graph: CompiledGraph) -> list[tuple[int, ...]]:
    """Return a list of the shapes of all calls of GraphCell."""
    cell, calls = graph._cell, []

    class Counted:
        def __call__(self, *tensors: Any) -> Any:
            calls.append(tuple(tensors[0].shape))
            return cell(*tensors)

        def __getattr__(self, name: str) -> Any:
            return getattr(cell, name)

    graph._cell = Counted()
    return calls


def test_fault_upstream_graph_cell_computes_compilation_key_in_every_call(
    models: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindspore import Tensor, nn

    cell = nn.GraphCell(load_graph(ModelBundle.open(models / "free"), None))
    original, calls = nn.GraphCell.compile, []
    monkeypatch.setattr(nn.GraphCell, "compile", lambda self, *inputs: (calls.append(1), original(self, *inputs))[1])
    for _ in range(3):
        cell(Tensor(images[:4]))
    assert len(calls) == 3, "fixed upstream: delete the patch"


def test_only_new_shapes_use_graph_cell(models: Path, images: np.ndarray) -> None:
    graph = open_graph(models)
    calls = count_calls(graph)
    first = [graph.run([images[:rows]])[0].copy() for rows in (1, 4)]
    again = [graph.run([images[:rows]])[0].copy() for rows in (4, 1, 4)]
    assert calls == [images[:1].shape, images[:4].shape]
    for answer, index in zip(again, (1, 0, 1), strict=True):
        np.testing.assert_array_equal(answer, first[index])


def test_without_executor_every_call_uses_graph_cell(
    models: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_graph(models).run([images[:4]])[0].copy()
    monkeypatch.setattr(compiled, "_get_executor", lambda: None)
    graph = open_graph(models)
    calls = count_calls(graph)
    for _ in range(3):
        np.testing.assert_array_equal(graph.run([images[:4]])[0], expected)
    assert len(calls) == 3


def test_outputs_are_not_overwritten_by_next_call(models: Path, images: np.ndarray) -> None:
    graph = open_graph(models)
    graph.run([images[:1]])
    answers = [graph.run([images[index : index + 1]])[0] for index in range(8)]
    for index, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, graph.run([images[index : index + 1]])[0])


def test_renew_discards_compiled_shapes(models: Path, images: np.ndarray) -> None:
    graph = open_graph(models)
    before = graph.run([images[:4]])[0].copy()
    graph.renew()
    calls = count_calls(graph)
    np.testing.assert_array_equal(graph.run([images[:4]])[0], before)
    assert calls == [images[:4].shape]
