"""The training of parallel_script.py with PyTorch, for torchrun: `python torch_script.py DIRECTORY STEPS`.

See https://docs.pytorch.org/docs/stable/elastic/train_script.html
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn


def main() -> None:
    """Train a small network on random data."""
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    (directory / f"pid-{rank}").write_text(str(os.getpid()))
    torch.manual_seed(1)
    network = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9)
    generator = torch.Generator().manual_seed(rank)
    features = torch.rand(32, 64, generator=generator)
    labels = torch.randint(0, 10, (32,), generator=generator)
    for number in range(steps):
        optimizer.zero_grad()
        loss(network(features), labels).backward()
        optimizer.step()
        if number == 0:
            temporary = directory / f".first-step-{rank}"
            temporary.write_text(repr(time.time()))
            temporary.replace(directory / f"first-step-{rank}")


if __name__ == "__main__":
    main()
