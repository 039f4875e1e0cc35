"""Rounds in turn, ratios with their spread, and the JSON line that every benchmark ends with.

A ratio is computed round by round between two candidates that ran one after the other, so it holds while the speed of
the machine drifts. The median of the ratios is reported, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PACKAGES = ("kfp", "kserve", "mindspore", "numpy", "protobuf")


@dataclass(frozen=True)
class Target:
    """One measured ratio or figure and its goal.

    Attributes:
        name: What is measured, with its unit, such as `fit step / bare loop step`.
        ratio: The median of the rounds.
        goal: Upper bound of `ratio`, or lower bound with `at_least`; None for a figure without a goal.
        met: Whether the goal is met; None without a goal.
        spread: Smallest and largest value of the rounds.
    """

    name: str
    ratio: float
    goal: float | None
    met: bool | None
    spread: tuple[float, float]


def build_target(name: str, values: Sequence[float], goal: float | None = None, *, at_least: bool = False) -> Target:
    """Summarise the rounds of one figure.

    Args:
        name: What is measured.
        values: One value per round.
        goal: An upper bound, or with `at_least` a lower bound.
        at_least: Whether larger is better.
    """
    value = statistics.median(values)
    met = None if goal is None else (value >= goal if at_least else value <= goal)
    return Target(name, round(value, 4), goal, met, (round(min(values), 4), round(max(values), 4)))


def compute_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def run_in_turn(candidates: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each candidate once per round, in reverse order every other round.

    Args:
        candidates: Name to a function that returns its figure, in seconds as a rule.
        rounds: Number of rounds.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        order = list(candidates) if number % 2 == 0 else list(reversed(candidates))
        for name in order:
            samples[name].append(candidates[name]())
    return samples


def time_command(argv: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    """Run a command to its end and return its wall-clock seconds.

    Raises:
        RuntimeError: It failed; the message holds the end of its output.
    """
    start = time.perf_counter()
    done = subprocess.run(argv, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RuntimeError(f"{' '.join(argv)} exited with {done.returncode}:\n{tail}")
    return seconds


def pick_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def build_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with `--quick`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: figures are rough")
    return parser


def log(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def describe_machine() -> dict[str, Any]:
    """Return the number of cores and the versions of Python and the packages measured."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"cores": os.cpu_count(), "versions": versions}


def print_result(benchmark: str, targets: Sequence[Target], raw: Mapping[str, Any]) -> None:
    """Print targets to standard error and the result as one line of JSON, the last line of standard output.

    Args:
        benchmark: Name of the benchmark.
        targets: The targets.
        raw: All samples. redraw.py plots `bars` (title to name to samples, ours first) and prints `table` (rows of
            cells, header first).
    """
    for target in targets:
        goal = "" if target.goal is None else f"goal {target.goal:g} {'met' if target.met else 'NOT MET'}"
        low, high = target.spread
        log(f"{target.name:<66} {target.ratio:9.3f}  ({low:.3f} to {high:.3f})  {goal}")
    line = {
        "benchmark": benchmark,
        "machine": describe_machine(),
        "targets": [asdict(target) for target in targets],
        "raw": raw,
    }
    print(json.dumps(line), flush=True)
