"""Groups of channels: which units stay, and a network's sizes without the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.compression.groups import ChannelGroups, get_common_path, list_reshaped_sizes, select_units
from tests.support.models.traced_graphs import Graph, describe_groups


def build_chain(*widths: int) -> ChannelGroups:
    """Group the channels of dense layers `layer1`, `layer2`, … from one width to the next."""
    graph = Graph((2, widths[0]))
    values = "x"
    for index in range(1, len(widths)):
        values = graph.add_dense(values, f"layer{index}", widths[index - 1], widths[index])
    return graph.find_groups(values)


CHAIN = build_chain(5, 20, 7, 3)


@settings(max_examples=25)
@given(
    part=st.floats(0, 1),
    scores=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=20, max_size=20),
)
def test_least_scored_units_go(part: float, scores: list[float]) -> None:
    kept = select_units(CHAIN, {"layer1": np.array(scores), "layer2": np.arange(7.0)}, part)

    for name, expected in (("layer1", np.array(scores)), ("layer2", np.arange(7.0))):
        stays = kept[name]
        assert stays.sum() == max(CHAIN.groups[name].least, round(len(stays) * (1 - part)))
        assert max(expected[~stays], default=0.0) <= min(expected[stays])


@pytest.mark.parametrize(("width", "least"), [(2, 1), (10, 1), (11, 2), (20, 2), (64, 7)])
def test_group_keeps_a_tenth_of_its_units(width: int, least: int) -> None:
    groups = build_chain(5, width, 3)

    assert groups.groups["layer1"].least == least
    assert select_units(groups, {"layer1": np.zeros(width)}, 1.0)["layer1"].sum() == least


def test_first_of_equal_units_stay() -> None:
    kept = select_units(CHAIN, {"layer1": np.ones(20), "layer2": np.ones(7)}, 0.5)

    assert kept["layer1"].tolist() == [True] * 10 + [False] * 10


@settings(max_examples=25)
@given(
    first=st.lists(st.booleans(), min_size=20, max_size=20).filter(any),
    second=st.lists(st.booleans(), min_size=7, max_size=7).filter(any),
)
def test_sizes_follow_the_kept_units(first: list[bool], second: list[bool]) -> None:
    kept = {"layer1": np.array(first), "layer2": np.array(second)}
    one, two = sum(first), sum(second)

    assert CHAIN.get_shapes(kept) == {
        "layer1.weight": (one, 5),
        "layer2.weight": (two, one),
        "layer3.weight": (3, two),
    }
    assert CHAIN.count_parameters(kept) == 5 * one + one * two + 3 * two
    # The graph has two rows, and a multiplication is two operations.
    assert CHAIN.count_flops(kept) == 2 * 2 * CHAIN.count_parameters(kept)
    assert CHAIN.count_layer_flops(kept)["layer2.weight"] == 2 * 2 * one * two
    indices = CHAIN.list_indices(kept)
    assert set(indices) == {
        name
        for name, is_cut in (
            ("layer1.weight", not all(first)),
            ("layer2.weight", not all(first + second)),
            ("layer3.weight", not all(second)),
        )
        if is_cut
    }
    for name, axes in indices.items():
        assert tuple(map(len, axes)) == CHAIN.get_shapes(kept)[name]


def test_parameters_that_are_not_trained_do_not_count() -> None:
    graph = Graph((2, 5))
    values = graph.add_dense("x", "first", 5, 6)
    groups = graph.find_groups(graph.add_dense(values, "last", 6, 3), untrained=["first.weight"])

    assert groups.count_parameters(groups.whole) == math.prod((6, 3))


def test_layers_that_are_added_are_cut_together() -> None:
    graph = Graph((2, 5))
    one, other = graph.add_dense("x", "one", 5, 6), graph.add_dense("x", "other", 5, 6)
    total = graph.add("Add", one, other, shape=(2, 6))

    groups = graph.find_groups(graph.add_dense(total, "last", 6, 3))

    (group,) = groups.groups.values()
    assert {name for name, _ in group.produced} == {"one.weight", "other.weight"}
    assert group.consumed == (("last.weight", 1),)
    assert set(groups.list_indices({group.name: np.arange(6) < 4})) == {"one.weight", "other.weight", "last.weight"}


def test_layer_of_one_unit_is_left() -> None:
    assert describe_groups(build_chain(5, 1, 3)) == ({}, {"layer1": "one unit", "layer2": "the network's output"})


def test_groups_can_be_left_for_a_reason() -> None:
    fewer = CHAIN.without(["layer1"], "the layer's code needs this width")

    assert list(fewer.groups) == ["layer2"]
    assert describe_groups(fewer)[1]["layer1"] == "the layer's code needs this width"
    assert list(CHAIN.groups) == ["layer1", "layer2"]


def test_group_behind_a_layer_norm_is_not_exact() -> None:
    graph = Graph((2, 5))
    values = graph.add_dense("x", "first", 5, 6)
    weights = (graph.add_weight("norm.gamma", 6), graph.add_weight("norm.beta", 6))
    values = graph.get_part(graph.add("LayerNorm", values, *weights, shape=[(2, 6), (2, 1), (2, 1)]), 0, (2, 6))
    values = graph.add_dense(values, "second", 6, 4)

    groups = graph.find_groups(graph.add_dense(values, "last", 4, 3))

    assert {name: group.is_exact for name, group in groups.groups.items()} == {"first": False, "second": True}


def test_reshaped_axes_of_a_group_are_listed() -> None:
    graph = Graph((2, 5))
    wide = graph.add("Reshape", graph.add_dense("x", "first", 5, 6), graph.add_constant((2, 3, 2)), shape=(2, 3, 2))
    flat = graph.add("Reshape", wide, graph.add_constant((2, 6)), shape=(2, 6))
    groups = graph.find_groups(graph.add_dense(graph.add_dense(flat, "second", 6, 4), "last", 4, 3))

    assert list_reshaped_sizes(groups.structure, groups.groups["first"]) == {2, 3, 6}
    assert list_reshaped_sizes(groups.structure, groups.groups["second"]) == set()


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (["encoder.0.query.weight", "encoder.0.key.bias"], "encoder.0"),
        (["encoder.0.query.weight", "encoder.0.query.bias"], "encoder.0.query"),
        (["stem.weight", "head.weight"], ""),
        (["positions"], ""),
    ],
)
def test_common_path_holds_all_parameters(names: list[str], path: str) -> None:
    assert get_common_path(names) == path
