"""Which channels a graph's operators share, and why those behind the others are left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kfp_mindspore.compression.structure import ELEMENT_WISE, get_layer
from tests.support.models.traced_graphs import Graph, describe_groups

OUTPUT = "the network's output"
IMAGE = (2, 1, 4, 4)
MAPS = (2, 6, 4, 4)


def follow(build: Callable[[Graph, str], str]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the groups with an operator between the layers `first`, (2, 6) or (2, 6, 4, 4), and `last`."""
    graph = Graph((2, 5))
    values = build(graph, graph.add_dense("x", "first", 5, 6))
    sizes, left = describe_groups(graph.find_groups(graph.add_dense(values, "last", 6, 3)))
    return dict(sizes), dict(left)


def follow_image(build: Callable[[Graph, str], str], inputs: int = 6) -> tuple[dict[str, int], dict[str, str]]:
    graph = Graph(IMAGE)
    values = build(graph, graph.add_convolution("x", "first", 1, 6))
    sizes, left = describe_groups(graph.find_groups(graph.add_dense(values, "last", inputs, 3)))
    return dict(sizes), dict(left)


def pool_all(graph: Graph, values: str, channels: int = 6) -> str:
    return graph.add("ReduceMean", values, graph.add_constant((2, 3)), shape=(2, channels))


def test_channels_pass_all_element_wise_operators() -> None:
    def build(graph: Graph, values: str) -> str:
        for operator in sorted(ELEMENT_WISE):
            values = graph.add(operator, values, shape=(2, 6))
        return values

    assert follow(build) == ({"first": 6}, {"last": OUTPUT})


@pytest.mark.parametrize("operator", ["Add", "Divs", "PowScalarTensor", "RemainderScalarTensor", "LerpScalar"])
@pytest.mark.parametrize("place", [0, 1], ids=["number first", "number last"])
@pytest.mark.parametrize("number", [2, 0.5])
def test_number_beside_channels_leaves_them_cuttable(operator: str, place: int, number: float) -> None:
    def build(graph: Graph, values: str) -> str:
        inputs = [values, graph.add_constant(number)]
        return graph.add(operator, *(inputs[::-1] if place == 0 else inputs), shape=(2, 6))

    assert follow(build)[0] == {"first": 6}


def add_bias(graph: Graph, values: str) -> str:
    return graph.add("Add", values, graph.add_weight("shift", 6), shape=(2, 6))


def add_other(graph: Graph, values: str) -> str:
    return graph.add("Add", values, graph.add_dense("x", "other", 5, 6), shape=(2, 6))


def scale_wide(graph: Graph, values: str) -> str:
    return graph.add("Mul", values, graph.add_dense("x", "gate", 5, 1), shape=(2, 6))


def add_table(graph: Graph, values: str) -> str:
    return graph.add("Add", values, graph.add_constant((6,), is_tensor=True), shape=(2, 6))


def sum_channels(graph: Graph, values: str) -> str:
    total = graph.add("ReduceSum", values, graph.add_constant((1,)), shape=(2, 1))
    return graph.add("Mul", values, total, shape=(2, 6))


def soften(graph: Graph, values: str) -> str:
    return graph.add("Softmax", values, graph.add_constant((-1,)), shape=(2, 6))


def mix_channels(graph: Graph, values: str) -> str:
    return graph.add("CumSum", values, graph.add_constant(1), shape=(2, 6), layer="mixer")


def normalize(graph: Graph, values: str) -> str:
    weights = (graph.add_weight("norm.gamma", 6), graph.add_weight("norm.beta", 6))
    found = graph.add("LayerNorm", values, *weights, shape=[(2, 6), (2, 1), (2, 1)])
    return graph.get_part(found, 0, (2, 6))


def halve(graph: Graph, values: str) -> str:
    axis = graph.add_constant(1)
    parts = graph.add("Split", values, axis, graph.add_constant(2), shape=[(2, 3), (2, 3)])
    both = graph.add("MakeTuple", *(graph.get_part(parts, index, (2, 3)) for index in (1, 0)), shape=[(2, 3), (2, 3)])
    return graph.add("Concat", both, axis, shape=(2, 6))


def split_unequally(graph: Graph, values: str) -> str:
    axis = graph.add_constant(1)
    parts = graph.add("Split", values, axis, graph.add_constant(2), shape=[(2, 2), (2, 4)])
    both = graph.add("MakeTuple", *(graph.get_part(parts, index, (2, 2)) for index in (0, 1)), shape=[(2, 2), (2, 4)])
    return graph.add("Concat", both, axis, shape=(2, 6))


def swap_twice(graph: Graph, values: str) -> str:
    order = graph.add_constant((1, 0))
    return graph.add("Transpose", graph.add("Transpose", values, order, shape=(6, 2)), order, shape=(2, 6))


@pytest.mark.parametrize(
    ("build", "sizes", "reasons"),
    [
        (add_bias, {"first": 6}, {}),
        (add_other, {"first": 6}, {}),
        (scale_wide, {"first": 6}, {"gate": "broadcast over channels"}),
        (add_table, {}, {"first": "a constant tensor"}),
        (sum_channels, {}, {"first": "reduces channels (operator ReduceSum in the network)"}),
        (soften, {}, {"first": "compares channels (operator Softmax in the network)"}),
        (mix_channels, {}, {"first": "operator CumSum in mixer"}),
        (normalize, {"first": 6}, {}),
        (halve, {"first": 3}, {}),
        (split_unequally, {}, {"first": "unequal parts (operator Split in the network)"}),
        (swap_twice, {"first": 6}, {}),
    ],
)
def test_channels_are_followed_or_left_with_a_reason(
    build: Callable[[Graph, str], str], sizes: dict[str, int], reasons: dict[str, str]
) -> None:
    assert follow(build) == (sizes, {**reasons, "last": OUTPUT})


def pool(graph: Graph, values: str) -> str:
    return pool_all(graph, graph.add("MaxPool", values, shape=(2, 6, 2, 2)))


def convolve_depthwise(graph: Graph, values: str) -> str:
    return pool_all(graph, graph.add_convolution(values, "depth", 6, 6, group=6))


def convolve_grouped(graph: Graph, values: str) -> str:
    return pool_all(graph, graph.add_convolution(values, "grouped", 6, 6, group=2))


def normalize_batch(graph: Graph, values: str) -> str:
    weights = [graph.add_weight(f"norm.{name}", 6) for name in ("gamma", "beta", "moving_mean", "moving_variance")]
    return pool_all(graph, graph.get_part(graph.add("BatchNorm", values, *weights, shape=[MAPS] + [(6,)] * 4), 0, MAPS))


def crop(graph: Graph, values: str) -> str:
    begin, end, steps = (graph.add_constant(numbers) for numbers in ((0, 0, 1, 1), (2, 6, 3, 3), (1, 1, 1, 1)))
    masks = [graph.add_constant(0) for _ in range(5)]
    return pool_all(graph, graph.add("StridedSlice", values, begin, end, steps, *masks, shape=(2, 6, 2, 2)))


def take_half(graph: Graph, values: str) -> str:
    numbers = ((0, 3, 0, 0), (2, 6, 4, 4), (1, 1, 1, 1))
    masks = [graph.add_constant(0) for _ in range(5)]
    constants = [graph.add_constant(found) for found in numbers]
    return pool_all(graph, graph.add("StridedSlice", values, *constants, *masks, shape=(2, 3, 4, 4)), 3)


@pytest.mark.parametrize(
    ("build", "inputs", "sizes", "reasons"),
    [
        (pool, 6, {"first": 6}, {}),
        (normalize_batch, 6, {"first": 6}, {}),
        (convolve_depthwise, 6, {"first": 6}, {}),
        (convolve_grouped, 6, {}, {"first": "a grouped convolution (operator Conv2D in grouped)"}),
        (crop, 6, {"first": 6}, {}),
        (take_half, 3, {}, {"first": "one unit"}),
    ],
)
def test_channels_of_images_are_followed(
    build: Callable[[Graph, str], str], inputs: int, sizes: dict[str, int], reasons: dict[str, str]
) -> None:
    found, left = follow_image(build, inputs)

    assert found == sizes
    assert left.pop("last") == OUTPUT
    assert {layer: reason for layer, reason in left.items() if layer in reasons} == reasons


def test_flattened_maps_are_cut_with_all_their_places() -> None:
    graph = Graph(IMAGE)
    maps = graph.add_convolution("x", "first", 1, 6)
    groups = graph.find_groups(graph.add_dense(graph.add("Flatten", maps, shape=(2, 96)), "last", 96, 3))

    places = groups.groups["first"].slots["last.weight", 1]
    np.testing.assert_array_equal(places, np.repeat(np.arange(6), 16))


@pytest.mark.parametrize(("operator", "order"), [("Gather", (0, 1)), ("Embedding", (1, 0))])
def test_width_of_an_embedding_is_cut_but_not_its_rows(operator: str, order: tuple[int, int]) -> None:
    graph = Graph((2, 9))
    inputs = (graph.add_weight("table.weight", 20, 6), "x")
    numbers = [graph.add_constant(0)]
    found = graph.add(operator, *(inputs[index] for index in order), *numbers, shape=(2, 9, 6))

    groups = graph.find_groups(graph.add_dense(found, "last", 6, 3, lead=(2, 9)))

    assert set(groups.groups["table"].slots) == {("table.weight", 1), ("last.weight", 1)}


def test_attention_is_cut_by_heads() -> None:
    graph = Graph((2, 5, 8))
    heads = {}
    for name in ("query", "key", "value"):
        flat = graph.add_dense("x", name, 8, 12, lead=(2, 5))
        wide = graph.add("Reshape", flat, graph.add_constant((2, 5, 4, 3)), shape=(2, 5, 4, 3))
        heads[name] = graph.add("Transpose", wide, graph.add_constant((0, 2, 1, 3)), shape=(2, 4, 5, 3))
    flags = [graph.add_constant(value) for value in (0, 1)]
    scores = graph.add("BatchMatMul", heads["query"], heads["key"], *flags, shape=(2, 4, 5, 5))
    scores = graph.add("Softmax", scores, graph.add_constant((-1,)), shape=(2, 4, 5, 5))
    found = graph.add("BatchMatMul", scores, heads["value"], flags[0], flags[0], shape=(2, 4, 5, 3))
    found = graph.add("Transpose", found, graph.add_constant((0, 2, 1, 3)), shape=(2, 5, 4, 3))
    found = graph.add("Reshape", found, graph.add_constant((2, 5, 12)), shape=(2, 5, 12))

    groups = graph.find_groups(graph.add_dense(found, "last", 12, 3, lead=(2, 5)))

    (group,) = groups.groups.values()
    assert len(group) == 4
    assert {name for name, _ in group.slots} == {"query.weight", "key.weight", "value.weight", "last.weight"}
    np.testing.assert_array_equal(group.slots["last.weight", 1], np.repeat(np.arange(4), 3))


def test_unknown_operator_is_named_once() -> None:
    graph = Graph((2, 6))
    values = "x"
    for _ in range(3):
        values = graph.add("CumSum", values, graph.add_constant(1), shape=(2, 6), layer="mixer")

    assert graph.trace(values).unknown == ["operator CumSum in mixer"]


@pytest.mark.parametrize(
    ("scope", "layer"),
    [
        ("Default/encoder-SequentialCell/0-Block/Add-op0", "encoder.0"),
        ("Default/head-Dense/MatMul-op3", "head"),
        ("Default/Add-op0", ""),
        ("", ""),
    ],
)
def test_layer_is_read_from_the_scope(scope: str, layer: str) -> None:
    assert get_layer(scope) == layer
