"""The same small network on Ray Train, by MindSporeTrainer or TorchTrainer: prints seconds as JSON.

python benchmarks/peers/training/ray_training.py mindspore DIRECTORY
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZE, CLASSES, BATCH, STEPS, EPOCHS = 256, 10, 32, 50, 4
# The step, from 1 on, before which rank 1 is killed in the first attempt.
KILLED = 2 * STEPS + 1


def make_samples() -> tuple[Any, Any]:
    """Return inputs with shape (N, 256) and their classes."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(BATCH * STEPS, SIZE)).astype(np.float32)
    return inputs, inputs[:, :CLASSES].argmax(axis=1).astype(np.int32)


def mark(directory: str, name: str) -> None:
    """Append the time to a file."""
    with (Path(directory) / name).open("a") as file:
        file.write(f"{time.time()}\n")


def begin_step(directory: str, rank: int, step: int) -> None:
    """Record a step of rank 0, and kill rank 1 once."""
    if rank == 0:
        mark(directory, "steps")
    elif step == KILLED and not (Path(directory) / "killed").exists():
        mark(directory, "killed")
        os.kill(os.getpid(), signal.SIGKILL)


def train_mindspore(config: dict[str, Any]) -> None:
    """Train by `fit`, which reports after each epoch."""
    from mindspore import nn
    from mindspore.train import Callback

    from kfp_mindspore import training

    class Record(Callback):
        def on_train_step_begin(self, run_context: Any) -> None:
            rank = int(os.environ.get("MS_NODE_ID", "0"))
            begin_step(config["directory"], rank, run_context.original_args().cur_step_num)

    training.set_seed(1)
    network = nn.SequentialCell(nn.Dense(SIZE, SIZE), nn.ReLU(), nn.Dense(SIZE, CLASSES))
    training.fit(
        network,
        make_samples(),
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.Adam(network.trainable_params(), 1e-3),
        callbacks=[Record()],
        config=training.TrainingConfig(epochs=EPOCHS, batch_size=BATCH, verbose=False),
    )


def train_torch(config: dict[str, Any]) -> None:
    """Train as Ray's guide for PyTorch does, with a checkpoint after each epoch."""
    import ray.train
    import ray.train.torch
    import torch

    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, CLASSES))
    network = ray.train.torch.prepare_model(network)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    inputs, labels = (torch.from_numpy(array) for array in make_samples())
    first = 0
    if (found := ray.train.get_checkpoint()) is not None:
        with found.as_directory() as directory:
            state = torch.load(Path(directory) / "state.pt")
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    for epoch in range(first, EPOCHS):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for step in range(STEPS):
            begin_step(config["directory"], rank, epoch * STEPS + step + 1)
            chosen = order[step * BATCH : (step + 1) * BATCH][rank::size]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(inputs[chosen]), labels[chosen].long())
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, Path(directory) / "state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(directory) if rank == 0 else None
            ray.train.report({"loss": loss.item()}, checkpoint=checkpoint)


def read_step(directory: Path) -> float:
    """Return the seconds of a step: the median without the first epoch."""
    times = [float(line) for line in (directory / "steps").read_text().split()]
    return float(np.median(np.diff(times[STEPS:])))


def summarise(directory: Path, started: float) -> dict[str, float]:
    """Return seconds: start to first step, kill to next step, a step, a report."""
    steps = [float(line) for line in (directory / "steps").read_text().split()]
    killed = float((directory / "killed").read_text())
    # Rank 0 may have begun a step while rank 1 died.
    after = [later for earlier, later in itertools.pairwise(steps) if later > killed and later - earlier > 1]
    step = read_step(directory)
    # A report, with the epoch's end, lies between two epochs' steps.
    report = steps[STEPS] - steps[STEPS - 1] - step
    return {"start": steps[0] - started, "recovery": after[0] - killed, "step": step, "report": report}


def main(framework: str, directory: Path) -> None:
    """Train with two workers and one killed worker, or as a worker of an MSJob."""
    if framework == "msjob":
        train_mindspore({"directory": str(directory)})
        return
    if framework == "mindspore":
        import kfp_mindspore  # noqa: F401  MindSpore's protobuf before Ray's
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    options: dict[str, Any] = {
        "train_loop_config": {"directory": str(directory)},
        "scaling_config": ScalingConfig(num_workers=2),
        "run_config": RunConfig(storage_path=str(directory), failure_config=FailureConfig(max_failures=1)),
    }
    if framework == "mindspore":
        from kfp_mindspore.ray import MindSporeTrainer

        trainer: Any = MindSporeTrainer(train_mindspore, **options)
    else:
        from ray.train.torch import TorchTrainer

        trainer = TorchTrainer(train_torch, **options)
    started = time.time()
    trainer.fit()
    ray.shutdown()
    print(json.dumps(summarise(directory, started)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
