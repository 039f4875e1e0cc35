"""What becomes of a service in ten days whose inputs change, when a pipeline retrains it without a person?

tests/local/test_ten_days.py has the days (2.5 minutes). Their figures and their plot are written to
docs/benchmarks; `--draw` draws an earlier run's.

    python benchmarks/ten_days.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TEST = "tests/local/test_ten_days.py"
FIGURES = ROOT / "docs" / "benchmarks" / "ten_days.json"
VERDICTS = {
    "no drift": "#90a4ae",
    "no log": "#263238",
    "drift": "#ef6c00",
    "drift, metric fallen": "#c62828",
    "metric fallen": "#6a1b9a",
}


def describe_run(day: Mapping[str, Any], version: int) -> str:
    """Return what a day's run did to the service.

    Args:
        day: The day's figures.
        version: The version that served before.
    """
    if not day["retrain"]:
        return ""
    if day["deployment"] == "failed":
        return "rolled back"
    return f"version {day['version']}\npromoted" if day["version"] > version else "trained,\nnot better"


def draw(figures: Mapping[str, Any], file: Path) -> None:
    """Draw the accuracy of each day's requests, the run's verdict and what became of the model."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = file.stem
    import matplotlib.pyplot as plt

    days = figures["days"]
    figure, axis = plt.subplots(figsize=(8, 3.4))
    axis.plot([day["day"] for day in days], [day["accuracy"] for day in days], color="#b0bec5", zorder=1)
    names = {"drifted": "drift", "fallen": "metric fallen"}
    verdicts = [", ".join(text for name, text in names.items() if day[name]) for day in days]
    found = [one or ("no log" if day["retrain"] else "no drift") for one, day in zip(verdicts, days, strict=True)]
    for verdict, color in VERDICTS.items():
        shown = [day for day, name in zip(days, found, strict=True) if name == verdict]
        if shown:
            places = [day["day"] for day in shown], [day["accuracy"] for day in shown]
            axis.scatter(*places, color=color, s=40, label=verdict, zorder=2)
    for before, day in zip([days[0], *days], days, strict=False):
        text = describe_run(day, before["version"])
        # Beside the line, which falls and rises.
        offset, side = ((0, 9), "bottom") if day["accuracy"] > 0.5 else ((0, -9), "top")
        place = day["day"], day["accuracy"]
        axis.annotate(text, place, offset, textcoords="offset points", ha="center", va=side, fontsize=7)
    events = {"shift": "mirrored,\ndarker\nimages", "labels": "their labels", "bad": "a bad model"}
    for name, text in events.items():
        axis.axvline(figures[name] - 0.5, color="#cfd8dc", linestyle="--", linewidth=0.8, zorder=0)
        axis.text(figures[name] - 0.45, 1.16, text, va="top", fontsize=7, color="#546e7a")
    requests, lost = (sum(day[name] for day in days) for name in ("requests", "lost"))
    axis.set_title(f"{requests:,} requests of {figures['rows']} images, {lost} lost", fontsize=8, loc="left")
    axis.set(xlabel="day", ylabel="accuracy before the day's run", ylim=(0, 1.18), xticks=[day["day"] for day in days])
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axis.tick_params(labelsize=7)
    axis.xaxis.label.set_size(8)
    axis.yaxis.label.set_size(8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(title="the run's verdict", fontsize=7, title_fontsize=7, loc="center right", frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, facecolor="white")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="run nothing, draw the figures of an earlier run")
    if not parser.parse_args().draw:
        argv = [sys.executable, "-m", "pytest", "-q", "-n0", TEST]
        subprocess.run(argv, cwd=ROOT, env={**os.environ, "KFP_MINDSPORE_TEN_DAYS": str(FIGURES)}, check=True)
    draw(json.loads(FIGURES.read_text()), FIGURES.with_suffix(".svg"))


if __name__ == "__main__":
    main()
