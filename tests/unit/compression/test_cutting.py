"""Channel groups by kind of network, and the invariant: a cut network is the whole one with zeros."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore.ops.auto_generate import gen_ops_prim

from kfp_mindspore.compression import structure
from kfp_mindspore.compression.cutting import Cutter, drop_one, find_groups, read_proto, set_parameters
from kfp_mindspore.compression.groups import select_units
from kfp_mindspore.compression.lowbit import search_weights
from kfp_mindspore.compression.scop import mix_layers
from kfp_mindspore.compression.structure import trace
from kfp_mindspore.mindir.export.graph import export_graph
from kfp_mindspore.mindir.parameters.network import scratch_directory
from kfp_mindspore.training import set_seed
from kfp_mindspore.workloads.vit.network import Network
from tests.support.models import cut_networks

pytestmark = [pytest.mark.mindspore, pytest.mark.timeout(600)]

NETWORKS: Mapping[str, Callable[[], Any]] = {
    **{
        name: getattr(cut_networks, name)
        for name in (
            *("Plain", "Residual", "Depthwise", "Concatenated", "Gated", "Shared", "Sorted", "Hardwired", "Tokens"),
            "Attention",
        )
    },
    "ViT": lambda: Network(16, 3, width=16, depth=1, heads=4),
}
# Units by group, and the layers that are left with their reasons.
OUTPUT = "the network's output"
EXPECTED: Mapping[str, tuple[dict[str, int], dict[str, str]]] = {
    "Plain": ({"layers.0": 6, "layers.4": 8, "layers.7": 10}, {"layers.9": OUTPUT}),
    "Residual": ({"stem": 6, "first": 5}, {"head": OUTPUT}),
    "Depthwise": ({"stem": 6, "pointwise": 7}, {"head": OUTPUT}),
    "Concatenated": ({"left": 4, "right": 5, "mix": 6}, {"head": OUTPUT}),
    "Gated": ({"stem": 6, "down": 4}, {"head": OUTPUT}),
    "Shared": ({"first": 6}, {"head": OUTPUT}),
    "Sorted": ({"middle": 5}, {"stem": "operator CumSum in the network", "head": OUTPUT}),
    "Tokens": ({"embedding": 6, "neighbours": 8}, {"head": OUTPUT}),
    "Hardwired": ({"middle": 5}, {"stem": "the layer's code needs this width", "head": OUTPUT}),
    "Attention": ({"embed": 12, "query": 4, "project": 12}, {"head": OUTPUT}),
    "ViT": (
        {"embed.0": 8, "embed.2": 16, "embed.4": 16, "encoder.0.attention.1.project": 4, "encoder.0.dense.1": 32},
        {"classifier": OUTPUT},
    ),
}


@cache
def find(name: str) -> Cutter:
    set_seed(7)
    network = NETWORKS[name]()
    generator = np.random.default_rng(1)
    values = {}
    for parameter in network.get_parameters():
        noise = generator.normal(0, 0.3, parameter.shape).astype(np.float32)
        values[parameter.name] = (
            np.abs(parameter.asnumpy() + noise) if "moving" in parameter.name else (parameter.asnumpy() + noise)
        )
    if name == "Tokens":
        return find_groups(NETWORKS[name], values, {"ids": generator.integers(0, 20, (2, 9)).astype(np.int32)})
    size = 16 if name == "ViT" else 8
    return find_groups(NETWORKS[name], values, {"image": generator.normal(size=(2, 1, size, size)).astype(np.float32)})


@pytest.mark.parametrize("name", NETWORKS)
def test_groups_are_found(name: str) -> None:
    groups = find(name).groups

    assert {group.name: len(group) for group in groups.groups.values()} == EXPECTED[name][0]
    assert {left.layer: left.reason for left in groups.left} == EXPECTED[name][1]


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_cut_network_computes_whole_one_with_zeros(name: str, data: st.DataObject) -> None:
    cutter = find(name)
    kept = dict(cutter.groups.whole)
    for group in cutter.groups.groups.values():
        if group.is_exact:
            mask = data.draw(st.lists(st.booleans(), min_size=len(group), max_size=len(group)).filter(any))
            kept[group.name] = np.array(mask)
    masked = cutter.build().set_train(False)
    set_parameters(masked, cutter.mask(kept))
    cut = cutter.cut(kept)

    (expected,), (found,) = cutter.compute(masked), cutter.compute(cut)

    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(expected).max())))
    assert cutter.groups.count_parameters(kept) == sum(item.size for item in cut.trainable_params())


def test_element_wise_operators_with_numbers_are_known() -> None:
    with scratch_directory() as scratch:
        network = cut_networks.ElementWise().set_train(False)
        found = trace(read_proto(export_graph(network, scratch, {"rows": np.ones((2, 4), np.float32)}, 1, {})))

    assert found.unknown == []
    assert {name for name, _ in found.produced} == {"first.weight", "second.weight"}


def test_scalar_forms_of_this_mindspore_are_known() -> None:
    # Written in place, of gradients, or of indices and bits, which channels do not pass through.
    others = re.compile(r"^(Inplace|Bitwise|Bernoulli|IndexFill)|^(FillScalar|ScalarCast|TensorToScalar)$|Grad")
    scalar = re.compile(r"Scalar(Tensor|Other|Self)?$|^[A-Z]\w*(iv|ul|dd|ub|ow|od)s$")
    names = {name for name in dir(gen_ops_prim) if scalar.search(name) and not others.search(name)}

    assert {"Divs", "Muls", "AddScalar", "PowTensorScalar"} <= names
    assert sorted(names - structure.ELEMENT_WISE) == []


def test_width_behind_layer_norm_is_cut_with_its_attribute() -> None:
    cutter = find("ViT")
    kept = drop_one(cutter.groups, ["embed.4", "encoder.0.attention.1.project"])

    cut = cutter.cut(kept)

    assert not cutter.groups.groups["embed.4"].is_exact
    assert (cut.width, cut.encoder[0].attention[1].heads, cut.positions.shape[-1]) == (15, 3, 15)
    assert np.isfinite(cutter.compute(cut)[0]).all()


def test_searched_and_mixed_layers_of_equal_blocks_have_names_of_their_own() -> None:
    cutter = find("ViT")
    build = lambda: Network(16, 3, width=16, depth=2, heads=4)  # noqa: E731
    searched = build()
    names = {parameter.name for parameter in searched.get_parameters()}

    layers, _ = search_weights(searched, 4)

    found = [parameter.name for parameter in searched.get_parameters()]
    assert len(found) == len(set(found))
    assert names <= set(found)
    assert "encoder.1.attention.1.project.weight" in layers
    mixed = cutter.cut(cutter.groups.whole)
    factors = mix_layers(mixed, cutter)
    assert {parameter.name for parameter in mixed.get_parameters()} == {
        *cutter.values,
        *(factor.name for factor in factors.values()),
    }


def test_flops_follow_widths() -> None:
    groups = find("Plain").groups
    half = select_units(groups, {name: np.arange(len(group)) for name, group in groups.groups.items()}, 0.5)

    assert groups.count_flops(groups.whole) == 2 * (9 * 6 * 64 + 9 * 6 * 8 * 16 + 128 * 10 + 10 * 3)
    assert groups.count_flops(half) == 2 * (9 * 3 * 64 + 9 * 3 * 4 * 16 + 64 * 5 + 5 * 3)
    assert half["layers.0"].tolist() == [False] * 3 + [True] * 3
