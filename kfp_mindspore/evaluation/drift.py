"""Drift between training values and later ones: summaries of bounded size, tests against them, Holm's correction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import require_extra

Floats = NDArray[np.float64]
Summary = Mapping[str, Any]
Values = Floats | Sequence[str | None]

# An empirical distribution of so many quantiles is off by at most 0.002.
QUANTILES = 256
MAX_CATEGORIES = 1000
BINS = 20
_PLOTTED = 24
# Below, chi-squared's distribution is no good approximation (Cochran, 1954).
_LEAST_EXPECTED = 5.0


@dataclass(frozen=True)
class DriftTest:
    """One test of a column.

    Args:
        column: Column name.
        measure: What was measured: `value`, or for texts, images and lists such as `length`.
        test: `ks`, `chi_squared`, `missing`, `unseen` or `range`.
        statistic: The test's statistic; of shares the window's.
        p_value: Without correction.
        effect: The population stability index.
        least_effect: Least effect of a drift.
        adjusted: The p-value by Holm's correction for all tests.
    """

    column: str
    measure: str
    test: str
    statistic: float
    p_value: float
    effect: float
    least_effect: float
    adjusted: float = 1.0

    def is_drift(self, significance: float) -> bool:
        """Return whether the difference is significant, and large enough to matter."""
        return self.adjusted < significance and self.effect >= self.least_effect


@dataclass(frozen=True)
class Distribution:
    """Training values' and window values' shares, to plot.

    Args:
        column: Column name.
        measure: See `DriftTest`.
        labels: The bins' lower bounds, or the categories.
        reference: The training values' shares.
        window: The window's shares.
    """

    column: str
    measure: str
    labels: tuple[str, ...]
    reference: tuple[float, ...]
    window: tuple[float, ...]


def summarize_values(values: Values, *, missing: int | None = None, rows: int | None = None) -> dict[str, Any]:
    """Return a summary as JSON types.

    Args:
        values: Numbers as an array, NaN where missing; else categories, None where missing.
        missing: How many of `rows` were missing, where `values` were filled in; default those among the values.
        rows: Default as many as there are values.
    """
    if isinstance(values, np.ndarray):
        numbers = np.sort(values[np.isfinite(values)])
        places = (np.arange(QUANTILES) + 0.5) / QUANTILES
        kept = numbers if len(numbers) <= QUANTILES else np.quantile(numbers, places, method="inverted_cdf")
        found: dict[str, Any] = {"kind": "number", "quantiles": [float(f"{value:.9g}") for value in kept.tolist()]}
        if len(numbers):
            statistics = {"minimum": numbers[0], "maximum": numbers[-1], "mean": numbers.mean()}
            statistics["deviation"] = numbers.std()
            found |= {name: float(f"{value:.9g}") for name, value in statistics.items()}
        known = len(numbers)
    else:
        counts = Counter(value for value in values if value is not None)
        found = {"kind": "category", "counts": dict(counts.most_common(MAX_CATEGORIES))}
        known = counts.total()
    total = len(values) if rows is None else rows
    return {**found, "values": known, "rows": total, "missing": total - known if missing is None else missing}


def compare_values(
    column: str, measure: str, reference: Summary, values: Values, *, missing: int | None = None, effect: float = 0.1
) -> tuple[list[DriftTest], Distribution]:
    """Compare a window's values with the training's, without correction for several tests.

    Numbers have the two-sample Kolmogorov-Smirnov test, categories the chi-squared test. Missing values, values out of
    the training's range and unseen categories have Fisher's exact test: an unseen category is as probable as the
    training's categories with one value are (Good, 1953).

    Args:
        column: Column name.
        measure: See `DriftTest`.
        reference: The summary.
        values: The window's, as for `summarize_values`.
        missing: How many were missing, where they were filled in.
        effect: Least stability index of a drift.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    tests: list[DriftTest] = []

    def add(test: str, statistic: float, p_value: float, size: float) -> None:
        tests.append(DriftTest(column, measure, test, float(statistic), float(p_value), float(size), effect))

    def add_share(test: str, found: int, total: int, known: int, known_total: int, *, two_sided: bool = False) -> None:
        # Without one on either side, the test cannot reject, and costs the others no correction (Tarone, 1990).
        if found + known and total and known_total:
            with require_extra("scipy", "train"):
                from scipy.stats import fisher_exact
            table = [[found, total - found], [known, known_total - known]]
            _, p_value = fisher_exact(table, alternative="two-sided" if two_sided else "greater")
            add(test, found / total, p_value, _compute_stability(*np.array(table[::-1], np.float64)))

    known = int(reference["values"])
    if isinstance(values, np.ndarray):
        numbers = np.sort(values[np.isfinite(values)])
        absent = len(values) - len(numbers)
        quantiles = np.asarray(reference["quantiles"], np.float64)
        numbers = _snap(numbers, quantiles, reference)
        distribution = _build_histogram(column, measure, quantiles, numbers)
        if len(numbers) and len(quantiles):
            distance, p_value = _test_distance(quantiles, known, numbers)
            add("ks", distance, p_value, _compute_number_stability(quantiles, known, numbers))
            outside = int(((numbers < reference["minimum"]) | (numbers > reference["maximum"])).sum())
            # A further value is beyond the known ones with the probability 2 / (known + 1).
            add_share("range", outside, len(numbers), min(2 if outside else 0, known), known)
    else:
        counts = Counter(value for value in values if value is not None)
        absent = len(values) - counts.total()
        expected = Counter({str(name): int(count) for name, count in reference["counts"].items()})
        shown = [name for name, _ in (expected + counts).most_common(BINS)]
        distribution = Distribution(
            column,
            measure,
            tuple(shown),
            tuple(expected[name] / max(known, 1) for name in shown),
            tuple(counts[name] / max(counts.total(), 1) for name in shown),
        )
        if counts and known:
            table = _merge_rare(expected, counts)
            if table.shape[1] > 1:
                with require_extra("scipy", "train"):
                    from scipy.stats import chi2_contingency
                found = chi2_contingency(table, correction=False)
                add("chi_squared", found.statistic, found.pvalue, _compute_stability(*table))
            unseen = sum(count for name, count in counts.items() if name not in expected)
            once = sum(count == 1 for count in expected.values())
            add_share("unseen", unseen, counts.total(), once if unseen else 0, known)
    absent = absent if missing is None else missing
    add_share("missing", absent, len(values), int(reference["missing"]), int(reference["rows"]), two_sided=True)
    return tests, distribution


def adjust_tests(tests: Sequence[DriftTest]) -> list[DriftTest]:
    """Return the tests with p-values by Holm's correction, which holds the rate of any false alarm."""
    adjusted, largest = {}, 0.0
    for place, index in enumerate(sorted(range(len(tests)), key=lambda one: tests[one].p_value)):
        largest = max(largest, min(1.0, (len(tests) - place) * tests[index].p_value))
        adjusted[index] = largest
    return [replace(test, adjusted=adjusted[index]) for index, test in enumerate(tests)]


def _snap(numbers: Floats, quantiles: Floats, reference: Summary) -> Floats:
    """Return numbers with those that rounding has moved off a training value at that value.

    JSON has 0.1 where training has float32, and a batch of another size another last digit: ties would be broken.
    """
    if not len(numbers) or not len(quantiles):
        return numbers
    known = np.unique([reference["minimum"], *quantiles, reference["maximum"]])
    places = np.searchsorted(known, numbers)
    around = [known[np.clip(places + step, 0, len(known) - 1)] for step in (-1, 0)]
    nearest = np.where(np.abs(numbers - around[0]) < np.abs(numbers - around[1]), *around)
    is_close = np.abs(numbers - nearest) <= 1e-5 * reference["deviation"] + 5e-7 * np.abs(nearest)
    return np.sort(np.where(is_close, nearest, numbers))


def _test_distance(quantiles: Floats, known: int, numbers: Floats) -> tuple[float, float]:
    """Return the largest distance of two empirical distributions, and its p-value for the values behind both."""
    with require_extra("scipy", "train"):
        from scipy.stats import kstwo
    points = np.concatenate([quantiles, numbers])
    shares = [np.searchsorted(sample, points, side="right") / len(sample) for sample in (quantiles, numbers)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    return distance, float(kstwo.sf(distance, max(1, round(known * len(numbers) / (known + len(numbers))))))


def _compute_number_stability(quantiles: Floats, known: int, numbers: Floats) -> float:
    edges = np.unique(np.quantile(quantiles, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    shares = [
        np.diff([0, *np.searchsorted(sample, edges, side="right"), len(sample)]) / len(sample)
        for sample in (quantiles, numbers)
    ]
    return _compute_stability(shares[0] * known, shares[1] * len(numbers))


def _compute_stability(reference: NDArray[Any], window: NDArray[Any]) -> float:
    """Return the population stability index of counts by bin; half a value is added to each, so that none is empty."""
    first, second = ((counts + 0.5) / (counts.sum() + len(counts) / 2) for counts in (reference, window))
    return float(((second - first) * np.log(second / first)).sum())


def _merge_rare(reference: Mapping[str, int], window: Mapping[str, int]) -> NDArray[np.float64]:
    """Return counts of shape (2, K) with the rare and the unseen categories in the last one."""
    names = list(reference)
    counts = np.array([[source.get(name, 0) for name in names] for source in (reference, window)], np.float64)
    rest = np.array([0.0, sum(window.values()) - counts[1].sum()])
    totals = counts.sum(axis=1) + rest
    least = _LEAST_EXPECTED * totals.sum() / totals.min()
    order = np.argsort(-counts.sum(axis=0), kind="stable")
    frequent = [index for index in order if counts[:, index].sum() >= least]
    rest += counts[:, [index for index in order if counts[:, index].sum() < least]].sum(axis=1)
    kept = counts[:, frequent]
    if rest.sum() >= least or not frequent:
        return np.column_stack([kept, rest])
    kept[:, -1] += rest
    return kept


def _build_histogram(column: str, measure: str, quantiles: Floats, numbers: Floats) -> Distribution:
    both = np.concatenate([quantiles, numbers])
    # Few values far out would make one bar of all others.
    low, high = np.quantile(both, [0.005, 0.995]) if len(both) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1, _PLOTTED + 1)
    shares = [
        np.histogram(np.clip(sample, edges[0], edges[-1]), edges)[0] / max(len(sample), 1)
        for sample in (quantiles, numbers)
    ]
    digits = max(2, 1 - math.floor(math.log10(max(edges[1] - edges[0], 1e-12) / max(np.abs(edges).max(), 1e-12))))
    labels = tuple(f"{edge:.{min(digits, 9)}g}" for edge in edges[:-1])
    return Distribution(column, measure, labels, tuple(shares[0].tolist()), tuple(shares[1].tolist()))
