"""What do KFP, MSJob and supervision cost over a plain script that runs the same stages?

Three ways to the same smoke-tested prediction, in turn: the pipeline by `kfp-mindspore run` with caching off, a plain
script with one Python process a stage, and the same script in one process. Then a cached re-run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import build_parser, build_target, pair_ratios, print_result, run_in_turn, time_command

PLAIN = Path(__file__).parent / "peers" / "plain_lifecycle.py"
STAGES = ("load", "train", "export", "evaluate", "serve")
# What is worth keeping of a run; its folder is gone.
KEPT = ("accuracy", "max_abs_diff", "seconds", "body_seconds", "overhead_seconds", "wall_seconds")
NEVER_CACHED = ("deploy-kserve", "smoke-test")


def run_pipeline(home: str, *flags: str) -> tuple[float, dict[str, object]]:
    """Run the lifecycle by the command line; return wall seconds and its JSON."""
    argv = [sys.executable, "-m", "kfp_mindspore.cli.main", "run", "digits_lifecycle", "--json", *flags]
    start = time.perf_counter()
    done = subprocess.run(
        argv, env={**os.environ, "KFP_MINDSPORE_HOME": home}, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"the pipeline left with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, json.loads(done.stdout.splitlines()[-1])


def time_pipeline() -> float:
    with tempfile.TemporaryDirectory() as home:
        return run_pipeline(home, "--no-cache")[0]


def time_stages() -> float:
    with tempfile.TemporaryDirectory() as directory:
        return sum(time_command([sys.executable, str(PLAIN), stage, directory]) for stage in STAGES)


def time_one_process() -> float:
    with tempfile.TemporaryDirectory() as directory:
        return time_command([sys.executable, str(PLAIN), "all", directory])


def sum_cached_seconds(home: str) -> float:
    """Re-run from the cache; return the seconds of the steps that were answered from it, together."""
    _, result = run_pipeline(home)
    steps = result["seconds"]
    assert isinstance(steps, dict)
    return sum(seconds for step, seconds in steps.items() if step not in NEVER_CACHED)


def main() -> None:
    arguments = build_parser(__doc__ or "").parse_args()
    rounds = 1 if arguments.quick else 5
    raw = run_in_turn({"pipeline": time_pipeline, "stages": time_stages, "one process": time_one_process}, rounds)
    with tempfile.TemporaryDirectory() as home:
        _, first = run_pipeline(home)
        cached = [sum_cached_seconds(home) for _ in range(max(rounds, 2))]
    print_result(
        "lifecycle",
        [
            build_target("pipeline / one process a stage", pair_ratios(raw["pipeline"], raw["stages"]), 1.10),
            build_target("pipeline / one process", pair_ratios(raw["pipeline"], raw["one process"])),
            build_target("seconds of the cached steps of a re-run, together", cached, 1.0),
        ],
        {**raw, "cached seconds": cached, "first run": {name: first[name] for name in KEPT}},
    )


if __name__ == "__main__":
    main()
