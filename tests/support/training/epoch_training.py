"""A training that counts epochs: `epoch_training.py EPOCHS DIRECTORY`, with the training contract's directories.

It resumes from its checkpoint, which it writes every two epochs. DIRECTORY/epochs records each epoch that was run, also
those that were run again. In the middle it waits for the file DIRECTORY/continue. It needs Python alone.
"""

import json
import os
import sys
import time
from pathlib import Path

CHECKPOINT_EPOCHS = 2


def main(epochs: int, directory: Path) -> None:
    """Train."""
    output, kept = (Path(os.environ[f"KFP_MINDSPORE_{name}_DIR"]) for name in ("OUTPUT", "CHECKPOINT"))
    checkpoint = kept / "checkpoint.json"
    history = json.loads(checkpoint.read_text()) if checkpoint.exists() else []
    while len(history) < epochs:
        epoch = len(history) + 1
        history.append({"epoch": epoch, "loss": 1 / epoch})
        with (directory / "epochs").open("a") as file:
            file.write(f"{epoch}\n")
        (output / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in history))
        print(f"epoch {epoch}", flush=True)
        if epoch % CHECKPOINT_EPOCHS == 0:
            (kept / ".partial").write_text(json.dumps(history))
            (kept / ".partial").rename(checkpoint)
        while epoch == epochs // 2 + 1 and not (directory / "continue").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
