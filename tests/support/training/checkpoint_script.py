"""A training without MindSpore that writes checkpoints and metrics as `fit` does; a line on a FIFO starts each epoch.

Usage: checkpoint_script.py EPOCHS FIFO. The line `exit N` ends the process with code N.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from kfp_mindspore.formats import checkpoint as checkpoints
from kfp_mindspore.formats.checkpoint import NetworkSpec


def write(path: Path, epoch: int) -> None:
    """Write the checkpoint of an epoch."""
    with checkpoints.write_checkpoint(path, epoch=epoch, step=epoch * 10, seed=1, network=NetworkSpec("")) as directory:
        (directory / "network.ckpt").write_bytes(bytes([epoch]) * 4096)
        (directory / "optimizer.ckpt").write_bytes(bytes([epoch]) * 4096)


def main() -> None:
    """Train."""
    epochs, fifo = int(sys.argv[1]), sys.argv[2]
    dataset = sorted(path.name for path in Path(os.environ["KFP_MINDSPORE_DATASET_DIR"]).iterdir())
    root = Path(os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"])
    output = Path(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
    secrets = sorted(name for name in os.environ if name.startswith("KFP_MINDSPORE_STORE"))
    found = checkpoints.get_latest_checkpoint(root)
    done = found.epoch if found else 0

    def stop(number: int, frame: object) -> None:
        write(root / checkpoints.name_checkpoint(done, done * 10 + 5), done)
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)
    print(f"started: epoch {done}, data {dataset}, secrets {secrets}", flush=True)
    with Path(fifo).open() as lines:
        while done < epochs:
            line = lines.readline().split()
            if not line:
                signal.pause()
            if line[:1] == ["exit"]:
                raise SystemExit(int(line[1]))
            done += 1
            with (output / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"epoch": done, "loss": 1 / done}) + "\n")
            write(root / checkpoints.name_checkpoint(done, done * 10), done)
            checkpoints.prune_checkpoints(root, 2)
            print(f"epoch {done}", flush=True)
    write(output / "checkpoint", done)


if __name__ == "__main__":
    main()
