"""A data-parallel training script after MindSpore's documentation, for msrun and for an MSJob.

`python parallel_script.py DIRECTORY STEPS`: each worker writes `pid-<rank>` and the seconds of `init()` (`init-<rank>`)
before its first optimizer step, and the time at the end of that step into `first-step-<rank>`. See https://www.mindspore.cn/tutorials/en/stable/parallel/msrun_launcher.html
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init


class Step(nn.Cell):
    """Forward, backward, reduce over the workers, update."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__()
        self.gradient = ms.value_and_grad(network, None, optimizer.parameters)
        self.reducer = nn.DistributedGradReducer(optimizer.parameters)
        self.optimizer = optimizer

    def construct(self, features: ms.Tensor, labels: ms.Tensor) -> ms.Tensor:
        """Run one step and return the loss."""
        loss, gradients = self.gradient(features, labels)
        self.optimizer(self.reducer(gradients))
        return loss


def main() -> None:
    """Train a small network on random data."""
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    begun = time.time()
    init()
    rank, size = get_rank(), get_group_size()
    (directory / f"pid-{rank}").write_text(str(os.getpid()))
    (directory / f"init-{rank}").write_text(repr(time.time() - begun))
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=size)
    ms.set_seed(1)
    network = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
    step = Step(nn.WithLossCell(network, nn.CrossEntropyLoss()), nn.Momentum(network.trainable_params(), 0.01, 0.9))
    generator = np.random.default_rng(rank)
    features = ms.Tensor(generator.random((32, 64), np.float32))
    labels = ms.Tensor(generator.integers(0, 10, 32, np.int32))
    for number in range(steps):
        step(features, labels).asnumpy()
        if number == 0:
            temporary = directory / f".first-step-{rank}"
            temporary.write_text(repr(time.time()))
            temporary.replace(directory / f"first-step-{rank}")


if __name__ == "__main__":
    main()
