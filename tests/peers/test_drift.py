"""Drift of ten pairs of tables beside evidently's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.evaluation.drift import DriftTest, adjust_tests, compare_values, summarize_values

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
# Rows, and what differs in the window: a shift in deviations, the deviation's factor, a share of other categories.
PAIRS: dict[str, tuple[int, dict[str, float]]] = {
    "equal-500": (500, {}),
    "equal-1000": (1000, {}),
    "equal-3000": (3000, {}),
    "shift-0.5": (1000, {"shift": 0.5}),
    "shift-1": (500, {"shift": 1.0}),
    "shift-0.1": (3000, {"shift": 0.1}),
    "wide": (1000, {"factor": 2.0}),
    "categories": (1000, {"moved": 0.3}),
    "few-moved": (3000, {"moved": 0.04}),
    "both": (800, {"shift": -0.7, "moved": 0.5}),
}


def make_table(
    rows: int, seed: int, *, shift: float = 0.0, factor: float = 1.0, moved: float = 0.0
) -> dict[str, list[Any]]:
    """Return six columns, of which the first number and the first category differ."""
    generator = np.random.default_rng(seed)
    categories = generator.choice(["a", "b", "c", "d"], rows, p=[0.5, 0.3, 0.15, 0.05])
    return {
        "changed": (generator.normal(size=rows) * factor + shift).tolist(),
        "normal": generator.normal(size=rows).tolist(),
        "skewed": np.round(generator.lognormal(size=rows), 2).tolist(),
        "whole": generator.poisson(30, rows).astype(float).tolist(),
        "category": np.where(generator.random(rows) < moved, "d", categories).tolist(),
        "other": generator.choice(["x", "y", "z"], rows).tolist(),
    }


def to_values(values: list[Any]) -> Any:
    return values if isinstance(values[0], str) else np.array(values)


def compare(reference: dict[str, list[Any]], window: dict[str, list[Any]]) -> dict[str, list[DriftTest]]:
    tests = []
    for name, values in reference.items():
        tests += compare_values(name, "value", summarize_values(to_values(values)), to_values(window[name]))[0]
    adjusted = adjust_tests(tests)
    return {name: [test for test in adjusted if test.column == name] for name in reference}


def test_verdicts_are_evidentlys_or_explained(peers: Path, tmp_path: Path) -> None:
    tables = {}
    for index, (pair, (rows, changes)) in enumerate(PAIRS.items()):
        tables[pair] = make_table(2000, index), make_table(rows, 100 + index, **changes)
        for kind, table in zip(("reference", "window"), tables[pair], strict=True):
            (tmp_path / f"{pair}-{kind}.json").write_text(json.dumps(table))
    done = subprocess.run(
        [str(peers), str(HERE / "evidently_drift.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "DO_NOT_TRACK": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    agreed = total = 0
    explained = []
    for pair, (reference, window) in tables.items():
        for column, tests in compare(reference, window).items():
            found = theirs[pair][column]
            main = next(test for test in tests if test.test in ("ks", "chi_squared"))
            if main.test == "ks":
                # The same test, on at most 256 quantiles.
                assert main.statistic == pytest.approx(_get_distance(reference[column], window[column]), abs=0.005)
                assert np.log(main.p_value) == pytest.approx(np.log(found["ks"]["value"]), rel=0.15, abs=0.5)
            drifts, other = any(test.is_drift(0.05) for test in tests), found["default"]
            total += 1
            agreed += drifts == other["drift"]
            if drifts != other["drift"]:
                explained.append((pair, column, main, other))
    print(f"{agreed} of {total} verdicts are evidently's")
    for pair, column, main, other in explained:
        print(f"{pair} {column}: {main.test} {main.adjusted:.3g}, index {main.effect:.3f}; {other}")
        # A p-value that holds for one column alone, or a difference below our least effect or evidently's.
        is_uncorrected = "p_value" in other["method"] and main.adjusted >= 0.05
        is_small = 0.05 < main.effect < 0.15
        assert is_uncorrected or is_small
    assert agreed >= 0.9 * total
    for pair, column in (("shift-0.5", "changed"), ("shift-1", "changed"), ("wide", "changed"), ("both", "category")):
        assert (pair, column) not in {(one[0], one[1]) for one in explained}


def _get_distance(reference: list[float], window: list[float]) -> float:
    from scipy.stats import ks_2samp

    return float(ks_2samp(reference, window).statistic)
