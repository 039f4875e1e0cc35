"""Draws benchmark results as SVG files; the same figures give the same file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, PEER, LIMIT = "#2e7d32", "#90a4ae", "#cfd8dc"
LIMITS = ("asgi", "graph")
# Where a request's time goes, in the order of a request's way.
STAGES = {
    "http": ("read, parse HTTP", "#1565c0"),
    "asgi": ("route, headers, limits", "#42a5f5"),
    "json": ("JSON", "#00897b"),
    "array": ("array, validate", "#4db6ac"),
    "queue": ("queue, wake up", "#fbc02d"),
    "batch": ("join, pad, split", "#fb8c00"),
    "graph": ("graph", "#c62828"),
    "encode": ("encode the answer", "#8e24aa"),
    "write": ("write", "#5e35b1"),
    "observe": ("metrics, logs", "#8d6e63"),
    "other": ("event loop, sockets", "#bdbdbd"),
}


def prepare(salt: str) -> Any:
    """Return pyplot, set to write SVG files that do not change with the clock."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = salt
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, file: Path) -> None:
    """Write a figure as an SVG file."""
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None}, facecolor="white")
    prepare(file.stem).close(figure)


def draw_targets(name: str, targets: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw each target's median, its spread and its goal, each on a scale of its own: seconds stand beside ratios."""
    plt = prepare(name)
    figure, axes = plt.subplots(len(targets), 1, figsize=(8, 0.4 + 0.45 * len(targets)), squeeze=False)
    for axis, target in zip(axes[:, 0], targets, strict=True):
        low, high = target["spread"]
        color = "#777777" if target["met"] is None else "#2e7d32" if target["met"] else "#c62828"
        axis.barh(0, target["ratio"], color=color, alpha=0.75, height=0.6)
        axis.plot([low, high], [0, 0], color="black", linewidth=1.5)
        told = f"{target['ratio']:.3g}  ({low:.3g} to {high:.3g})"
        if target["goal"] is not None:
            axis.plot([target["goal"]] * 2, [-0.45, 0.45], color="black", linestyle=":")
            told += f"  goal {target['goal']:g}"
        axis.set_xlim(min(0, low), 1.05 * max(high, target["goal"] or 0))
        axis.text(1.02, 0.5, told, transform=axis.transAxes, fontsize=8, va="center")
        axis.set_yticks([0], [target["name"]], fontsize=8)
        axis.set_xticks([])
        axis.set_ylim(-0.5, 0.5)
        axis.tick_params(length=0)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    axes[-1, 0].set_xlabel("bar: median, line: smallest to largest, dots: goal", fontsize=8)
    file = directory / f"{name}.svg"
    save(figure, file)
    return [file]


def draw_servers(name: str, raw: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw each scenario's requests/s and p99 by server, one picture a model.

    Args:
        name: The benchmark's.
        raw: What benchmarks/serving.py keeps.
        directory: Where the files go.
    """
    return [
        _draw_model(f"{name}-{model}", samples, dict(raw["scenarios"]), dict(raw["servers"]), directory)
        for model, samples in raw["models"].items()
    ]


def draw_stages(name: str, profiles: Mapping[str, Mapping[str, float]], directory: Path) -> list[Path]:
    """Draw where a request's time goes.

    Args:
        name: The picture's.
        profiles: Title to stage to microseconds a request; the stages are STAGES'.
        directory: Where the file goes.
    """
    plt = prepare(name)
    figure, axis = plt.subplots(figsize=(9, 1.3 + 0.8 * len(profiles)))
    for row, stages in enumerate(profiles.values()):
        left, total = 0.0, sum(stages.values())
        for stage, (_, color) in STAGES.items():
            width = 100 * stages.get(stage, 0.0) / total
            axis.barh(row, width, left=left, color=color, height=0.6)
            if width > 3.5:
                text = f"{stages[stage]:.0f}"
                axis.text(left + width / 2, row, text, ha="center", va="center", fontsize=7, color="white")
            left += width
        axis.text(101, row, f"{total:.0f} µs", va="center", fontsize=8)
    axis.set_yticks(range(len(profiles)), list(profiles), fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of a request in %, with its microseconds", fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for _, color in STAGES.values()]
    labels = [title for title, _ in STAGES.values()]
    figure.legend(handles, labels, ncols=4, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, -0.22), frameon=False)
    file = directory / f"{name}.svg"
    save(figure, file)
    return [file]


def _draw_model(
    name: str,
    samples: Mapping[str, Any],
    scenarios: Mapping[str, str],
    servers: Mapping[str, str],
    directory: Path,
) -> Path:
    plt = prepare(name)
    asked = [scenario for scenario in scenarios if scenario in samples]
    bars = {scenario: [server for server in servers if server in samples[scenario]] for scenario in asked}
    heights = [len(bars[scenario]) + 1.6 for scenario in asked]
    figure, grid = plt.subplots(
        len(asked), 2, figsize=(10, 0.26 * sum(heights)), gridspec_kw={"height_ratios": heights}, squeeze=False
    )
    for axes, scenario in zip(grid, asked, strict=True):
        names = bars[scenario]
        for axis, figure_name, unit in zip(axes, ("requests_per_second", "p99_ms"), ("", " ms"), strict=True):
            rounds = [samples[scenario][server][figure_name] for server in names]
            for row, (server, values) in enumerate(zip(names, rounds, strict=True)):
                color = OURS if server == "ours" else LIMIT if server in LIMITS else PEER
                middle = statistics.median(values)
                axis.barh(row, middle, color=color, height=0.7)
                axis.plot([min(values), max(values)], [row, row], color="black", linewidth=0.8)
                text = f"  {middle:,.0f}{unit}" if middle >= 10 else f"  {middle:.2g}{unit}"
                axis.text(max(values), row, text, va="center", fontsize=7)
            axis.set_yticks(range(len(names)), [servers[server] for server in names], fontsize=7)
            axis.invert_yaxis()
            axis.set_xlim(0, 1.18 * max(max(values) for values in rounds))
            axis.set_xticks([])
            axis.spines[["top", "right", "bottom"]].set_visible(False)
        axes[1].set_yticks([])
        axes[0].set_title(f"{scenarios[scenario]}: requests/s", fontsize=8, loc="left")
        axes[1].set_title("99th percentile", fontsize=8, loc="left")
    figure.tight_layout()
    file = directory / f"{name}.svg"
    save(figure, file)
    return file
