"""A training without MindSpore that resumes: x grows by its rate in each epoch, and the loss is its distance to 10."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    output = Path(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
    checkpoint = Path(os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"], "state.json")
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"x": 0.0, "epoch": 0}
    while state["epoch"] < options.epochs:
        state = {"x": state["x"] + options.rate, "epoch": state["epoch"] + 1}
        checkpoint.write_text(json.dumps(state))
        record = {"epoch": state["epoch"], "loss": abs(10 - state["x"])}
        with (output / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
