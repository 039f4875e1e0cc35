"""Knock-off samples: the samples' moments, nothing of a single sample; units that need no real features score low."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from kfp_mindspore.compression.cutting import Cutter
from kfp_mindspore.compression.scop import MixedLayer, build_knockoffs, score_scop
from kfp_mindspore.errors import UserError
from tests.support.models.cut_networks import Pair
from tests.support.models.traced_graphs import Graph

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def cutter() -> Cutter:
    graph = Graph((2, 5))
    groups = graph.find_groups(graph.add_dense(graph.add_dense("x", "first", 5, 6), "last", 6, 3))
    generator = np.random.default_rng(0)
    values = {name: generator.normal(size=shape).astype(np.float32) for name, shape in graph.shapes.items()}
    # The last two units have no weight in the outputs.
    values["last.weight"][:, 4:] = 0
    return Cutter(Pair, values, {}, groups)


def make_batches(cutter: Cutter) -> list[tuple[Any, ...]]:
    rows = np.random.default_rng(1).normal(size=(32, 5)).astype(np.float32)
    labels = (rows @ cutter.values["first.weight"].T @ cutter.values["last.weight"].T).argmax(1).astype(np.int32)
    return [(rows[:16], labels[:16]), (rows[16:], labels[16:])]


def test_units_that_outputs_do_not_depend_on_get_no_real_features(cutter: Cutter) -> None:
    batches = make_batches(cutter)

    scores = score_scop(cutter, nn.CrossEntropyLoss(), batches, 1, seed=0)["first"]
    again = score_scop(cutter, nn.CrossEntropyLoss(), batches, 1, seed=0)["first"]

    assert scores[:4].mean() > 0.5
    np.testing.assert_allclose(scores[4:], 0.5, atol=1e-6)
    np.testing.assert_allclose(scores, again, rtol=1e-5)


@pytest.mark.parametrize("kind", [np.int32, np.bool_])
def test_knock_offs_need_real_numbers(kind: type[Any], cutter: Cutter) -> None:
    batches = [(np.zeros((2, 5), kind), np.zeros(2, np.int32))]

    with pytest.raises(UserError, match="method: 'scop' needs inputs of real numbers for its knock-off samples"):
        score_scop(cutter, None, batches, 1, 0)


def test_mixed_layer_mixes_the_real_half_only() -> None:
    factors = Parameter(Tensor(np.array([100.0, -100.0], np.float32)), name="factors")
    layer = MixedLayer(nn.Identity(), factors, np.array([0, 1, -1]), -1)
    real, knockoff = np.ones((2, 3), np.float32), np.full((2, 3), 7, np.float32)

    found = layer(Tensor(np.concatenate([real, knockoff]))).asnumpy()

    np.testing.assert_allclose(found[:2], [[1, 7, 1]] * 2)
    np.testing.assert_allclose(found[2:], knockoff)


def test_knockoffs_have_moments_of_samples_and_no_copies() -> None:
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(4, 4))
    samples = (generator.normal(size=(4000, 4)) @ mixing + 3).astype(np.float32)

    knockoffs = build_knockoffs(samples, generator)

    np.testing.assert_allclose(knockoffs.mean(0), samples.mean(0), atol=0.2)
    np.testing.assert_allclose(knockoffs.std(0), samples.std(0), rtol=0.1)
    assert all(abs(np.corrcoef(samples[:, index], knockoffs[:, index])[0, 1]) < 0.95 for index in range(4))


@pytest.mark.parametrize(
    "shape", [(1, 3), (6, 1), (5, 2, 3, 4), (3, 1025)], ids=["one sample", "one value", "images", "without covariance"]
)
def test_knockoffs_have_the_samples_shape_and_are_finite(shape: tuple[int, ...]) -> None:
    samples = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    knockoffs = build_knockoffs(samples, np.random.default_rng(1))

    assert (knockoffs.shape, knockoffs.dtype) == (shape, np.float32)
    assert np.isfinite(knockoffs).all()
    np.testing.assert_array_equal(knockoffs, build_knockoffs(samples, np.random.default_rng(1)))


def test_constant_values_have_equal_knockoffs() -> None:
    knockoffs = build_knockoffs(np.full((20, 3), 4, np.float32), np.random.default_rng(0))

    np.testing.assert_array_equal(knockoffs, np.full((20, 3), 4))
