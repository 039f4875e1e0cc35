"""A bundle's statistics as they are read, without the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle

VERSION = 1


def read_statistics(bundle: ModelBundle) -> dict[str, Any]:
    """Return a bundle's statistics, with columns.

    Raises:
        UserError: It has none, or they are another version's.
    """
    statistics = bundle.read_statistics()
    if not statistics.get("columns"):
        raise UserError(
            f"{bundle.path}: has no statistics of its training data to compare with",
            hint="Give a dataset directory as reference, or write the bundle again with --dataset DIR: "
            "kfp-mindspore model export CHECKPOINT_DIR or model import FILE.",
        )
    if statistics.get("version") != VERSION:
        raise UserError(f"{bundle.path}: statistics: version must be {VERSION}, got {statistics.get('version')!r}")
    return statistics


def list_summaries(statistics: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a row for each measured column and prediction, to print."""
    entries = {
        (name, one): value for name, entry in statistics["columns"].items() for one, value in entry["measures"].items()
    }
    entries |= {(name, "prediction"): value for name, value in statistics.get("predictions", {}).items()}
    rows = []
    for (name, measure), summary in entries.items():
        if summary["kind"] == "category":
            counts = summary["counts"]
            shown = ", ".join(
                f"{category} {count / max(summary['values'], 1):.0%}" for category, count in list(counts.items())[:3]
            )
            text = f"{len(counts)} values: {shown}"
        else:
            numbers = {
                one: f"{summary[one]:.4g}" for one in ("minimum", "mean", "maximum", "deviation") if one in summary
            }
            text = ", ".join(f"{one} {number}" for one, number in numbers.items()) or "no values"
        share = summary["missing"] / max(summary["rows"], 1)
        rows.append(
            {
                "column": name,
                "measure": measure,
                "values": str(summary["values"]),
                "missing": f"{share:.1%}",
                "statistics": text,
            }
        )
    return rows
