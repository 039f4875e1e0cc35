"""Scores read from weights, and the cut that they lead to, without running a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.compression.cutting import Cutter, drop_one
from kfp_mindspore.compression.groups import select_units
from kfp_mindspore.compression.scores import compute_scores
from kfp_mindspore.errors import UserError
from tests.support.models.traced_graphs import Graph

IMAGE = (2, 6, 4, 4)


def build_cutter(*, normalized: bool) -> Cutter:
    """Return a convolution, a BatchNorm or none, and two dense layers with random weights."""
    graph = Graph((2, 1, 4, 4))
    values = graph.add_convolution("x", "stem", 1, 6)
    if normalized:
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        weights = [graph.add_weight(f"norm.{name}", 6) for name in names]
        values = graph.get_part(graph.add("BatchNorm", values, *weights, shape=[IMAGE] + [(6,)] * 4), 0, IMAGE)
    values = graph.add("ReduceMean", values, graph.add_constant((2, 3)), shape=(2, 6))
    values = graph.add_dense(values, "middle", 6, 5)
    groups = graph.find_groups(graph.add_dense(values, "last", 5, 3))
    generator = np.random.default_rng(0)
    arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in graph.shapes.items()}
    return Cutter(lambda: None, arrays, {}, groups)


CUTTER, PLAIN = build_cutter(normalized=True), build_cutter(normalized=False)


def score(method: str, cutter: Cutter, seed: int = 0) -> dict[str, Any]:
    return compute_scores(method, cutter, None, [], 1, seed)


def test_magnitude_is_the_mean_weight_relative_to_the_layer() -> None:
    sums = np.abs(CUTTER.values["stem.weight"]).sum((1, 2, 3))

    scores = score("l1", CUTTER)

    np.testing.assert_allclose(scores["stem"], sums / sums.mean(), rtol=1e-6)
    assert {name: value.mean() for name, value in scores.items()} == pytest.approx({"stem": 1, "middle": 1})


@settings(max_examples=25)
@given(factor=st.floats(1e-3, 1e3))
def test_magnitude_does_not_depend_on_a_layer_scale(factor: float) -> None:
    values = {**CUTTER.values, "stem.weight": CUTTER.values["stem.weight"] * np.float32(factor)}

    scaled = score("l1", Cutter(CUTTER.build, values, {}, CUTTER.groups))

    np.testing.assert_allclose(scaled["stem"], score("l1", CUTTER)["stem"], rtol=1e-4)


def test_weights_of_zero_have_finite_scores() -> None:
    values = {name: np.zeros_like(value) for name, value in CUTTER.values.items()}

    for method in ("l1", "bn"):
        for scores in score(method, Cutter(CUTTER.build, values, {}, CUTTER.groups)).values():
            assert scores.tolist() == [0] * len(scores)


def test_batch_norm_scale_replaces_the_magnitude_where_there_is_one() -> None:
    scores = score("bn", CUTTER)

    np.testing.assert_array_equal(np.argsort(scores["stem"]), np.argsort(np.abs(CUTTER.values["norm.gamma"])))
    np.testing.assert_array_equal(scores["middle"], score("l1", CUTTER)["middle"])


def test_batch_norm_scores_need_a_batch_norm() -> None:
    with pytest.raises(UserError, match=r"method: 'bn' needs BatchNorm layers behind the layers to cut, found none"):
        score("bn", PLAIN)


def test_equal_seeds_score_equally() -> None:
    one, again, other = (score("random", CUTTER, seed) for seed in (1, 1, 2))

    assert {name: found.shape for name, found in one.items()} == {"stem": (6,), "middle": (5,)}
    for name, found in one.items():
        np.testing.assert_array_equal(found, again[name])
        assert (found != other[name]).any()


def multiply(values: Any, samples: Any) -> Any:
    """Return what the network without its BatchNorm computes for means of its image's pixels."""
    stem = samples @ values["stem.weight"].sum((1, 2, 3))[None]
    return stem @ values["middle.weight"].T @ values["last.weight"].T


@settings(max_examples=25)
@given(
    stem=st.lists(st.booleans(), min_size=6, max_size=6).filter(any),
    middle=st.lists(st.booleans(), min_size=5, max_size=5).filter(any),
)
def test_taken_weights_compute_what_masked_ones_do(stem: list[bool], middle: list[bool]) -> None:
    kept = {"stem": np.array(stem), "middle": np.array(middle)}
    samples = np.arange(4.0)[:, None]

    taken, masked = PLAIN.take(kept), PLAIN.mask(kept)

    assert {name: value.shape for name, value in taken.items()} == PLAIN.groups.get_shapes(kept)
    assert {name: value.shape for name, value in masked.items()} == PLAIN.groups.shapes
    np.testing.assert_allclose(multiply(taken, samples), multiply(masked, samples), rtol=1e-4, atol=1e-5)


def test_mask_leaves_the_weights_as_they_are() -> None:
    before = {name: value.copy() for name, value in PLAIN.values.items()}

    PLAIN.mask(drop_one(PLAIN.groups, ["stem", "middle"]))

    for name, value in before.items():
        np.testing.assert_array_equal(PLAIN.values[name], value)


def test_described_cut_adds_to_the_former_one() -> None:
    former = {"shapes": {"stem.weight": [8, 1, 3, 3], "gone.weight": [4]}, "attributes": {"block": {"heads": 4}}}
    edits = {"stem": [("block", "width", 12)], "middle": [("other", "size", 5)]}
    cutter = Cutter(PLAIN.build, PLAIN.values, {}, PLAIN.groups, edits, former)

    described = cutter.describe(drop_one(PLAIN.groups, ["stem"]))

    assert described["shapes"] == {"stem.weight": [5, 1, 3, 3], "gone.weight": [4], "middle.weight": [5, 5]}
    assert described["attributes"] == {"block": {"heads": 4, "width": 10}}
    assert cutter.describe(PLAIN.groups.whole) == former


def test_random_cut_of_a_fraction_keeps_the_best_units() -> None:
    scores = score("random", CUTTER, 5)

    kept = select_units(CUTTER.groups, scores, 0.5)

    assert {name: int(mask.sum()) for name, mask in kept.items()} == {"stem": 3, "middle": 2}
    assert set(np.flatnonzero(kept["stem"])) == set(np.argsort(scores["stem"])[-3:])
