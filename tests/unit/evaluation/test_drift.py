from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import ks_2samp

from kfp_mindspore.evaluation.drift import DriftTest, adjust_tests, compare_values, summarize_values


def make_table(kind: str, seed: int, rows: int) -> dict[str, object]:
    """Return columns by name: 20 normal ones, skewed ones with ties and missing values, or categories."""
    generator = np.random.default_rng(seed)
    if kind == "normal":
        return {f"n{index}": generator.normal(size=rows) for index in range(20)}
    if kind == "skewed":
        prices = {f"p{index}": np.round(generator.lognormal(size=rows), 1) for index in range(8)}
        counts = {f"c{index}": generator.poisson(4, rows).astype(float) for index in range(8)}
        return {
            name: np.where(generator.random(rows) < 0.1, np.nan, values) for name, values in (prices | counts).items()
        }
    sizes = (2, 3, 10, 40, 200, 900)
    shares = [1 / np.arange(1, size + 1) for size in sizes]
    drawn = [generator.choice(size, rows, p=share / share.sum()) for size, share in zip(sizes, shares, strict=True)]
    return {
        f"k{size}": [None if not index % 17 else str(value) for index, value in enumerate(values.tolist())]
        for size, values in zip(sizes, drawn, strict=True)
    }


def compare_tables(reference: dict[str, object], window: dict[str, object]) -> list[DriftTest]:
    summaries = {name: json.loads(json.dumps(summarize_values(values))) for name, values in reference.items()}
    return adjust_tests(
        [test for name in summaries for test in compare_values(name, "value", summaries[name], window[name])[0]]
    )


@pytest.mark.parametrize("rows", [200, 1000])
@pytest.mark.parametrize("kind", ["normal", "skewed", "categories"])
def test_at_most_five_of_hundred_unshifted_tables_raise_alarm(kind: str, rows: int) -> None:
    alarms = significant = 0
    for seed in range(100):
        tests = compare_tables(make_table(kind, seed, 4000), make_table(kind, 1000 + seed, rows))
        alarms += any(test.is_drift(0.05) for test in tests)
        significant += any(test.adjusted < 0.05 for test in tests)
    print(f"{kind}, {rows} rows: {alarms} of 100 alarms, {significant} without a least effect")
    assert alarms <= 5
    # The p-values themselves hold their rate, within three deviations of a binomial count.
    assert significant <= 11


@pytest.mark.parametrize(("rows", "shift", "least"), [(1000, 0.5, 95), (300, 0.5, 90), (1000, 1.0, 100)])
def test_shift_of_one_column_of_twenty_is_found(rows: int, shift: float, least: int) -> None:
    found = alone = 0
    for seed in range(100):
        window = make_table("normal", 2000 + seed, rows)
        window["n7"] = window["n7"] + shift
        drifted = {
            test.column for test in compare_tables(make_table("normal", seed, 4000), window) if test.is_drift(0.05)
        }
        found += "n7" in drifted
        alone += drifted == {"n7"}
    print(f"shift of {shift} deviations, {rows} rows: found in {found} of 100, alone in {alone}")
    assert found >= least
    assert alone >= found - 5


def test_large_window_with_small_difference_is_no_drift() -> None:
    generator = np.random.default_rng(0)
    summary = summarize_values(generator.normal(size=20_000))
    (test, _), _ = compare_values("x", "value", summary, generator.normal(0.05, size=200_000))
    assert test.p_value < 1e-6
    assert not test.is_drift(0.05)


@pytest.mark.parametrize("count", [100, 5000])
def test_distance_is_that_of_whole_samples(count: int) -> None:
    generator = np.random.default_rng(3)
    reference, window = generator.gamma(2, size=count), generator.gamma(2.3, size=800)
    (test, *_), _ = compare_values("x", "value", summarize_values(reference), window)
    exact = ks_2samp(reference, window, method="asymp")
    assert test.statistic == pytest.approx(exact.statistic, abs=0.004)
    assert np.log(test.p_value) == pytest.approx(np.log(exact.pvalue), rel=0.15)


def count_texts(**counts: int) -> list[str | None]:
    return [None if name == "none" else name for name, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("reference", "window", "drifts"),
    [
        (count_texts(a=500, b=500), count_texts(a=480, b=520), set()),
        (count_texts(a=500, b=500), count_texts(a=300, b=700), {"chi_squared"}),
        (count_texts(a=500, b=500), count_texts(a=480, b=480, c=40), {"unseen", "chi_squared"}),
        (count_texts(a=500, b=500), count_texts(a=500, b=498, c=2), set()),
        (count_texts(a=500, b=500), count_texts(a=440, b=440, none=120), {"missing"}),
        (count_texts(a=500, none=500), count_texts(a=1000), {"missing"}),
        (count_texts(a=1000), count_texts(b=1000), {"unseen", "chi_squared"}),
        (np.arange(1000.0), np.arange(1000.0), set()),
        (np.arange(1000.0), np.append(np.arange(900.0), np.full(100, 5e6)), {"range"}),
        (np.arange(1000.0), np.append(np.arange(900.0), np.full(100, np.nan)), {"missing", "ks"}),
        (np.arange(1000.0), np.append(np.arange(900.0), np.full(100, np.inf)), {"missing", "ks"}),
        (np.arange(1000.0), np.full(1000, np.nan), {"missing"}),
        (np.full(1000, np.nan), np.arange(1000.0), {"missing"}),
        (np.full(1000, 3.0), np.full(1000, 3.0), set()),
    ],
)
def test_tests_that_find_drift(reference, window, drifts) -> None:
    tests, distribution = compare_values("x", "value", summarize_values(reference), window)
    found = {test.test for test in adjust_tests(tests) if test.is_drift(0.05)}
    assert found - {"ks"} == drifts - {"ks"}
    assert len(distribution.labels) == len(distribution.reference) == len(distribution.window)
    assert all(0 <= share <= 1 for share in (*distribution.reference, *distribution.window))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounded_numbers_are_trainings(scale: float) -> None:
    generator = np.random.default_rng(5)
    values = np.array([-1.234567, 0.0, 0.1, 1 / 3]) * scale
    stored = generator.choice(values, 2000).astype(np.float32).astype(np.float64)
    moved = generator.choice(values, 2000) * (1 + 1e-7 * generator.normal(size=2000))
    tests, _ = compare_values("x", "value", summarize_values(stored), moved)
    assert [test.test for test in tests] == ["ks"]
    assert tests[0].statistic < 0.05


def test_holm_correction() -> None:
    tests = [DriftTest("x", "value", "ks", 0, p, 1, 0) for p in (0.01, 0.04, 0.03, 0.9)]
    assert [test.adjusted for test in adjust_tests(tests)] == pytest.approx([0.04, 0.09, 0.09, 0.9])
    assert adjust_tests([]) == []


@pytest.mark.parametrize(
    "values", [np.random.default_rng(0).normal(size=50_000), [str(index) for index in range(9999)]]
)
def test_summary_has_bounded_size(values) -> None:
    assert len(json.dumps(summarize_values(values))) < 20_000
