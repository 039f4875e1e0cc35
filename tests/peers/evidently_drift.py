"""Print evidently's values and verdicts for pairs of tables as JSON: python evidently_drift.py DIRECTORY."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from evidently import Report
from evidently.metrics import ValueDrift

METHODS = {"number": ("ks", "psi"), "category": ("chisquare", "psi")}


def main(directory: Path) -> None:
    """Compare `<pair>-reference.json` with `<pair>-window.json`, which have lists by column."""
    found: dict[str, Any] = {}
    for file in sorted(directory.glob("*-reference.json")):
        pair = file.name.removesuffix("-reference.json")
        reference, window = (
            pd.read_json(directory / f"{pair}-{kind}.json", dtype=False) for kind in ("reference", "window")
        )
        metrics, names = [], []
        for column in reference.columns:
            kind = "category" if reference[column].dtype == object else "number"
            for method in (*METHODS[kind], None):
                metrics.append(ValueDrift(column=column, **({"method": method} if method else {})))
                names.append((column, method or "default"))
        results = Report(metrics).run(window, reference).dict()["metrics"]
        for (column, method), result in zip(names, results, strict=True):
            # Distances are a drift from the threshold on, p-values below it.
            threshold, text = result["config"]["threshold"], result["config"]["method"]
            value = float(result["value"])
            is_p_value = "p_value" in text or text in ("ks", "chisquare")
            found.setdefault(pair, {}).setdefault(column, {})[method] = {
                "method": text,
                "value": value,
                "drift": value < threshold if is_p_value else value >= threshold,
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
