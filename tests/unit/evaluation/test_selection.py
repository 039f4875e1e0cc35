import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation import select_samples
from kfp_mindspore.evaluation.selection import STRATEGIES

# Probabilities of three classes: certain, torn between two, torn between three, fairly certain.
SCORES = np.array([[0.98, 0.01, 0.01], [0.49, 0.5, 0.01], [0.36, 0.32, 0.32], [0.8, 0.15, 0.05]])


@pytest.mark.parametrize(
    ("strategy", "order"),
    [("entropy", [2, 1, 3, 0]), ("margin", [1, 2, 3, 0])],
)
def test_uncertain_samples_are_selected_first(strategy, order) -> None:
    for count in range(1, 5):
        assert select_samples(SCORES, count, strategy=strategy).tolist() == order[:count]
    # Logits: the same after softmax, also where a probability is 0.
    assert select_samples(np.log(SCORES) - 3, 4, strategy=strategy).tolist() == order
    assert select_samples(np.array([[0.0, -np.inf], [0.0, 0.0]]), 1, strategy=strategy).tolist() == [1]


def test_k_centre_covers_what_is_far_from_labelled_samples() -> None:
    points = np.array([[0.0, 0.1], [5.0, 0.0], [5.1, 0.0], [0.0, 9.0]])
    assert select_samples(points, 2, strategy="k_centre", labelled=np.zeros((1, 2))).tolist() == [3, 2]
    assert select_samples(points, 3, strategy="k_centre", labelled=np.array([[0.0, 9.0], [0, 0]])).tolist()[0] == 2


@given(
    strategy=st.sampled_from(STRATEGIES),
    size=st.integers(0, 30),
    count=st.integers(1, 40),
    seed=st.integers(0, 5),
    distinct=st.booleans(),
)
def test_selection_has_no_sample_twice_and_repeats_with_its_seed(strategy, size, count, seed, distinct) -> None:
    scores = np.random.default_rng(seed).normal(size=(size, 4)) if distinct else np.zeros((size, 4))
    selected = select_samples(scores, count, strategy=strategy, seed=seed)
    assert len(set(selected.tolist())) == len(selected) == min(size, count)
    assert set(selected.tolist()) <= set(range(size))
    assert selected.tolist() == select_samples(scores, count, strategy=strategy, seed=seed).tolist()


@given(seed=st.integers(0, 50))
def test_k_centre_radius_is_at_most_twice_best(seed) -> None:
    points = np.random.default_rng(seed).normal(size=(7, 2))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    # With one labelled sample, two further centres of the seven points.
    rest = points[1:]
    chosen = 1 + select_samples(rest, 2, strategy="k_centre", labelled=points[:1])
    radius = distances[:, [0, *chosen]].min(axis=1).max()
    best = min(distances[:, [0, a, b]].min(axis=1).max() for a in range(1, 7) for b in range(a + 1, 7))
    assert radius <= 2 * best + 1e-9


@pytest.mark.parametrize(
    ("scores", "count", "arguments", "message"),
    [
        (SCORES, 1, {"strategy": "entropie"}, "strategy: must be one of entropy, margin, k_centre, random, got 'entr"),
        (SCORES, 0, {}, "count: must be at least 1, got 0"),
        (SCORES[:, 0], 1, {}, r"scores: must have shape \(N, K\), got \(4,\)"),
        (SCORES[:, :1], 1, {}, "scores: margin needs one per class, at least 2"),
        (SCORES * np.nan, 1, {}, "scores: NaN or infinite for 4 of 4 rows"),
        (SCORES, 1, {"strategy": "k_centre", "labelled": np.zeros((2, 5))}, r"labelled: must have shape \(M, 3\), got"),
    ],
)
def test_invalid_arguments_are_refused(scores, count, arguments, message) -> None:
    with pytest.raises(UserError, match=message):
        select_samples(scores, count, **arguments)
