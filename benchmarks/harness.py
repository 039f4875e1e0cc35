"""What every benchmark shares: rounds taken in turn, ratios with their spread, one JSON line at the end.

A ratio is taken round by round between two things that ran one after the other, so that it holds when the machine's
speed drifts; what is quoted is the median of those ratios, beside the smallest and the largest.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PACKAGES = ("kfp", "kserve", "mindspore", "numpy", "protobuf")


@dataclass(frozen=True)
class Target:
    """One question and its answer.

    Attributes:
        name: The question, such as `fit step / bare loop step`.
        ratio: The median, in the unit that the name says (a bare ratio, or seconds).
        goal: What `ratio` must not exceed; None where a figure is only reported. With `at_least`, what it must reach.
        met: Whether it does; None without a goal.
        spread: The smallest and the largest of the rounds.
    """

    name: str
    ratio: float
    goal: float | None
    met: bool | None
    spread: tuple[float, float]


def build_target(
    name: str, values: Sequence[float], goal: float | None = None, *, at_least: bool = False, worst: bool = False
) -> Target:
    """Summarise the rounds of one question.

    Args:
        name: The question.
        values: One value a round.
        goal: An upper bound, or with `at_least` a lower one.
        at_least: Whether more is better.
        worst: Judge the worst round instead of the median.
    """
    worst_value = min(values) if at_least else max(values)
    value = worst_value if worst else statistics.median(values)
    met = None if goal is None else (value >= goal if at_least else value <= goal)
    return Target(name, round(value, 4), goal, met, (round(min(values), 4), round(max(values), 4)))


def pair_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def run_in_turn(candidates: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each candidate once a round, in turn, reversing the order every other round.

    Args:
        candidates: Name to a function that returns its own figure, seconds as a rule.
        rounds: How many rounds.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        order = list(candidates) if number % 2 == 0 else list(reversed(candidates))
        for name in order:
            samples[name].append(candidates[name]())
    return samples


def time_command(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | None = None) -> float:
    """Run a command to its end and return its wall seconds.

    Raises:
        RuntimeError: It failed; its last lines are in the message.
    """
    start = time.perf_counter()
    done = subprocess.run(argv, env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RuntimeError(f"{' '.join(argv)} left with {done.returncode}:\n{tail}")
    return seconds


def build_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with `--quick`, fewer rounds for a look."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, not a figure to quote")
    return parser


def describe_machine() -> dict[str, Any]:
    """Return the cores and the versions that matter."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"cores": os.cpu_count(), "versions": versions}


def print_result(benchmark: str, targets: Sequence[Target], raw: Mapping[str, Any]) -> None:
    """Print the result as one line of JSON, the last that a benchmark prints."""
    line = {
        "benchmark": benchmark,
        "machine": describe_machine(),
        "targets": [asdict(target) for target in targets],
        "raw": raw,
    }
    print(json.dumps(line), flush=True)
