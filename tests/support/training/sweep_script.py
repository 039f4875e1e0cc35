"""A training without MindSpore: its loss falls with each epoch to (x - 0.3)², and kind b never gets as low.

Kind hangs writes no epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float, required=True)
    parser.add_argument("--kind", default="a")
    parser.add_argument("--y", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    if options.kind == "fails":
        sys.exit("no such kind")
    output = Path(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
    output.mkdir(parents=True, exist_ok=True)
    for epoch in range(1, options.epochs + 1):
        time.sleep(options.seconds)
        loss = float("nan") if options.kind == "nan" else (options.x - 0.3) ** 2 + 1 / epoch + (options.kind == "b")
        loss += options.seed / 1000
        record = {"epoch": epoch, "step": epoch, "pid": os.getpid(), "loss": loss, "latency": 1 - options.x}
        record["cores"] = [os.environ.get("OMP_NUM_THREADS"), os.environ.get("KFP_MINDSPORE_CORES")]
        if options.kind == "hangs":
            time.sleep(1000)
        if options.kind == "silent":
            del record["loss"]
        with (output / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
