"""How much time do KFP, MSJob and supervision add to a plain script of the same stages, and how long is a start?

Three ways to the same smoke-tested prediction, in turn: the pipeline by `kfp-mindspore run` with caching off, a plain
script with one Python process per stage, and the same script in one process. Then a cached re-run, and the times of
`import kfp_mindspore` and `kfp-mindspore --help` beside those of kfp.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from functools import partial
from pathlib import Path

from harness import build_parser, build_target, compute_ratios, print_result, run_in_turn, time_command

PLAIN = Path(__file__).parent / "peers" / "plain_lifecycle.py"
STAGES = ("load", "train", "export", "evaluate", "serve")
# Results of a run that do not refer to its deleted directory.
KEPT = ("metric", "value", "max_abs_diff", "seconds", "body_seconds", "overhead_seconds", "wall_seconds")
NEVER_CACHED = ("deploy-kserve",)


def run_pipeline(home: str, *flags: str) -> tuple[float, dict[str, object]]:
    """Run the lifecycle by the command line; return wall seconds and its JSON."""
    argv = [sys.executable, "-m", "kfp_mindspore.cli.main", "run", "digits_lifecycle", "--json", *flags]
    start = time.perf_counter()
    done = subprocess.run(
        argv, env={**os.environ, "KFP_MINDSPORE_HOME": home}, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"the pipeline exited with {done.returncode}:\n{done.stderr[-2000:]}")
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
    """Re-run with caching; return the total seconds of the cached steps."""
    _, result = run_pipeline(home)
    steps = result["seconds"]
    assert isinstance(steps, dict)
    return sum(seconds for step, seconds in steps.items() if step not in NEVER_CACHED)


def time_starts(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of starts, without those of the interpreter for the imports."""
    scripts = Path(sysconfig.get_path("scripts"))
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import kfp_mindspore": [sys.executable, "-c", "import kfp_mindspore"],
        "import kfp": [sys.executable, "-c", "import kfp"],
        "kfp-mindspore --help": [str(scripts / "kfp-mindspore"), "--help"],
        "kfp --help": [str(scripts / "kfp"), "--help"],
    }
    candidates = {name: partial(time_command, argv) for name, argv in commands.items()}
    run_in_turn(candidates, 1)
    samples = run_in_turn(candidates, rounds)
    bare = samples.pop("python")
    for name in ("import kfp_mindspore", "import kfp"):
        samples[name] = [seconds - python for seconds, python in zip(samples[name], bare, strict=True)]
    return samples


def main() -> None:
    arguments = build_parser(__doc__ or "").parse_args()
    rounds = 1 if arguments.quick else 5
    raw = run_in_turn({"pipeline": time_pipeline, "stages": time_stages, "one process": time_one_process}, rounds)
    with tempfile.TemporaryDirectory() as home:
        _, first = run_pipeline(home)
        cached = [sum_cached_seconds(home) for _ in range(max(rounds, 2))]
    starts = time_starts(3 * rounds)
    print_result(
        "lifecycle",
        [
            build_target("pipeline / one process per stage", compute_ratios(raw["pipeline"], raw["stages"]), 1.10),
            build_target("pipeline / one process", compute_ratios(raw["pipeline"], raw["one process"])),
            build_target("seconds of all cached steps of a re-run", cached, 1.0),
            build_target("seconds of import kfp_mindspore", starts["import kfp_mindspore"], 0.1),
            build_target("seconds of kfp-mindspore --help", starts["kfp-mindspore --help"], 0.3),
            build_target(
                "kfp-mindspore --help / kfp --help",
                compute_ratios(starts["kfp-mindspore --help"], starts["kfp --help"]),
            ),
        ],
        {
            "bars": {"seconds of a lifecycle": raw, "seconds of a start": starts},
            "cached seconds": cached,
            "first run": {name: first[name] for name in KEPT},
        },
    )


if __name__ == "__main__":
    main()
