"""A data-parallel training with faults: `gang_script.py DIRECTORY`.

DIRECTORY/plan.json has `epochs` and `faults`, each with the number of its attempt, the `rank` that executes it, its
`phase` (`rendezvous`, `compile`, `step` with a number, `checkpoint` with an epoch, of rank 0 when the first file of the
checkpoint is written) and what it does (`do`): `kill-<member>`, `raise`, `hang`, `terminate` (SIGTERM), `stop`
(SIGSTOP) or `sleep`; a kill in a step waits for the checkpoint of the epoch before; each step takes `pause` seconds
more. Each rank appends `attempt step` to DIRECTORY/steps-<rank>; rank 0 writes DIRECTORY/weights.npz at the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(sys.argv[1])
IS_SCHEDULER = os.environ.get("MS_ROLE") == "MS_SCHED"
RANK = 0 if IS_SCHEDULER else int(os.environ.get("MS_NODE_ID", "0"))


def register() -> int:
    """Record this start and return the number of the attempt, from 0."""
    member = "scheduler" if IS_SCHEDULER else f"worker-{RANK}"
    (ROOT / f"pid-{member}").write_text(str(os.getpid()))
    starts = ROOT / f"starts-{member}"
    with starts.open("a") as file:
        file.write(f"{os.environ.get('MS_WORKER_NUM', '1')} {time.time()}\n")
    return len(starts.read_text().splitlines()) - 1


# Before the imports: a peer that fails early ends this process within them.
ATTEMPT = register()

import numpy as np  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from kfp_mindspore import training  # noqa: E402

import mindspore  # noqa: E402 # isort: skip
from mindspore import nn  # noqa: E402 # isort: skip
from mindspore.train import Callback  # noqa: E402 # isort: skip

SAVE = mindspore.save_checkpoint
SAMPLES = 256
BATCH = 32
STEPS = SAMPLES // BATCH


class Faults(Callback):
    """Executes the faults of this attempt and records the steps."""

    def __init__(self, faults: list[dict[str, Any]], pause: float) -> None:
        self.pause = pause
        self.faults = [] if IS_SCHEDULER else faults

    def execute(self, phase: str, number: int = 0) -> None:
        for fault in self.faults:
            key = (fault["attempt"], fault["rank"], fault["phase"], fault.get("number", 0))
            if key == (ATTEMPT, RANK, phase, number):
                (ROOT / f"fault-{ATTEMPT}").touch()
                if phase == "step" and fault["do"].startswith("kill-"):
                    self.await_checkpoint((number - 1) // STEPS)
                self.do(fault["do"])

    def await_checkpoint(self, epoch: int) -> None:
        """Wait until the checkpoint of an epoch is complete: a thread of rank 0 writes it beside the next steps."""
        while epoch and not (ROOT / "checkpoints" / f"{epoch:05d}-{epoch * STEPS}").exists():
            time.sleep(0.01)

    def do(self, what: str) -> None:
        if what.startswith("kill-"):
            os.kill(int((ROOT / what.replace("kill", "pid")).read_text()), signal.SIGKILL)
            time.sleep(60)
        elif what == "raise":
            raise ValueError("a fault of the script")
        elif what == "hang":
            time.sleep(600)
        elif what == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        elif what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what.startswith("sleep"):
            time.sleep(float(what.removeprefix("sleep")))

    def on_train_begin(self, run_context: Any) -> None:
        self.execute("compile")

    def on_train_step_begin(self, run_context: Any) -> None:
        self.execute("step", run_context.original_args().cur_step_num)

    def on_train_step_end(self, run_context: Any) -> None:
        time.sleep(self.pause)
        with (ROOT / f"steps-{RANK}").open("a") as file:
            file.write(f"{ATTEMPT} {run_context.original_args().cur_step_num}\n")

    def save_checkpoint(self, parameters: Any, path: str) -> None:
        SAVE(parameters, path)
        if found := re.match(r"\.(\d+)-", Path(path).parent.name):
            self.execute("checkpoint", int(found[1]))


def main() -> None:
    plan = json.loads((ROOT / "plan.json").read_text())
    faults = Faults(plan["faults"], plan["pause"])
    mindspore.save_checkpoint = faults.save_checkpoint
    faults.execute("rendezvous")
    images, labels = load_digits(return_X_y=True)
    training.set_seed(1)
    network = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
    training.fit(
        network,
        (np.asarray(images[:SAMPLES], np.float32) / 16, np.asarray(labels[:SAMPLES], np.int32)),
        loss=nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        optimizer=nn.Momentum(network.trainable_params(), 0.1, 0.9),
        callbacks=[faults],
        config=training.TrainingConfig(
            epochs=plan["epochs"], batch_size=BATCH, checkpoint_dir=ROOT / "checkpoints", output_dir=ROOT / "output"
        ),
    )
    if RANK == 0:
        np.savez(ROOT / "weights.npz", *[parameter.asnumpy() for parameter in network.trainable_params()])


if __name__ == "__main__":
    main()
