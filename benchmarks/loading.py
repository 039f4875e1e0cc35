"""How long does load_dataset take for a large CSV file, and how much memory, compared with pyarrow alone?

A table of random numbers with an integer target; the peer is `pyarrow.csv.read_csv` of the same file, which neither
splits nor writes. Each candidate runs in a process of its own. Memory is the peak beyond that of the imports, divided
by the bytes of the columns that are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import build_parser, build_target, compute_ratios, print_result, run_in_turn

COLUMNS = 20
TIME_GOAL, MEMORY_GOAL = 1.3, 2.0
_BYTES_PER_ROW = COLUMNS * 9 + 2
_OURS = """
from kfp_mindspore.data import load_dataset
import pyarrow.csv, sklearn.model_selection, kfp_mindspore.data.preprocessing
def run(source, output):
    load_dataset(source, output, split="random")
"""
_PEER = """
import pyarrow.csv
def run(source, output):
    pyarrow.csv.read_csv(source)
"""
_MEASURE = """
import json, resource, sys, time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
run(*sys.argv[1:])
seconds = time.perf_counter() - start
print(json.dumps([seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024]))
"""


def write_table(file: Path, rows: int) -> None:
    """Write a CSV file in blocks."""
    generator = np.random.default_rng(0)
    with file.open("w") as stream:
        stream.write(",".join([*(f"x{index}" for index in range(COLUMNS)), "label"]) + "\n")
        for start in range(0, rows, 10_000):
            count = min(10_000, rows - start)
            block = np.column_stack([generator.normal(size=(count, COLUMNS)), generator.integers(0, 2, count)])
            np.savetxt(stream, block, fmt=["%.6f"] * COLUMNS + ["%d"], delimiter=",")


def measure(program: str, source: Path, output: Path) -> tuple[float, float]:
    """Return the seconds and the bytes of memory of a program in a new process."""
    argv = [sys.executable, "-c", program + _MEASURE, str(source), str(output)]
    seconds, memory = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return seconds, memory


def main() -> None:
    options = build_parser(__doc__ or "").parse_args()
    size, rounds = (50_000_000, 3) if options.quick else (1_000_000_000, 5)
    rows = size // _BYTES_PER_ROW
    kept = rows * (COLUMNS + 1) * 4
    memory: dict[str, list[float]] = {"load_dataset": [], "pyarrow": []}
    with tempfile.TemporaryDirectory() as root:
        source = Path(root, "table.csv")
        write_table(source, rows)

        def time(name: str, program: str) -> float:
            seconds, peak = measure(program, source, Path(root, "dataset"))
            memory[name].append(peak)
            return seconds

        candidates = {"load_dataset": lambda: time("load_dataset", _OURS), "pyarrow": lambda: time("pyarrow", _PEER)}
        seconds = run_in_turn(candidates, rounds)
        megabytes = source.stat().st_size / 1e6
    targets = [
        build_target(
            "load_dataset / pyarrow.csv.read_csv, seconds",
            compute_ratios(seconds["load_dataset"], seconds["pyarrow"]),
            TIME_GOAL,
        ),
        build_target(
            "peak memory of load_dataset / columns kept", [peak / kept for peak in memory["load_dataset"]], MEMORY_GOAL
        ),
    ]
    bars = {"seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()}}
    print_result(
        "loading", targets, {"bars": bars, "megabytes": round(megabytes), "rows": rows, "memory_bytes": memory}
    )


if __name__ == "__main__":
    main()
