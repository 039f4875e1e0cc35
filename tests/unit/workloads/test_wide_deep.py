"""Wide & Deep: ids that training replaces, and padding of genres."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore


def test_training_replaces_some_ids_by_index_of_unknown_ones() -> None:
    from kfp_mindspore.workloads.wide_deep.train import forget_ids

    inputs = {"user": np.full(2000, 7, np.int32), "movie": np.full(2000, 9, np.int32), "genres": np.ones((2000, 3))}
    changed = forget_ids(inputs, np.random.default_rng(0))
    assert {name: array.dtype for name, array in changed.items()} == {n: a.dtype for n, a in inputs.items()}
    assert set(changed["user"]) == {0, 7}
    assert set(changed["movie"]) == {0, 9}
    assert (changed["user"] == 0).mean() == pytest.approx(0.3, abs=0.05)
    assert (changed["movie"] == 0).mean() == pytest.approx(0.1, abs=0.03)
    assert (changed["genres"] == inputs["genres"]).all()
    assert (inputs["user"] == 7).all(), "the samples themselves are unchanged"


def test_probabilities_do_not_depend_on_padding() -> None:
    from mindspore import Tensor

    from kfp_mindspore.workloads.wide_deep.network import Network

    network = Network(users=5, movies=6, genres=4).set_train(False)
    user, movie = Tensor(np.array([1, 0], np.int32)), Tensor(np.array([5, 0], np.int32))
    genres = np.array([[2, 3], [0, 0]], np.int32)
    short = network(user, movie, Tensor(genres)).asnumpy()
    long = network(user, movie, Tensor(np.pad(genres, ((0, 0), (0, 3))))).asnumpy()
    np.testing.assert_allclose(short, long, atol=1e-6)
    np.testing.assert_allclose(short.sum(axis=1), 1, atol=1e-6)
