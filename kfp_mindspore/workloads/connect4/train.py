"""Train the network by self-play. The pipeline runs this script as an MSJob with several workers.

Before each epoch every worker plays its share of the games with the newest weights; all workers' samples replace the
oldest ones that `fit` trains on.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from kfp_mindspore.formats.dataset import Column, write_dataset
from kfp_mindspore.training import TrainingConfig, fit, init_distributed, set_seed
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.workloads.connect4.network import COLUMNS, ROWS, Network
from kfp_mindspore.workloads.connect4.self_play import SelfPlay, mirror, split
from mindspore import Tensor, nn, ops
from mindspore.train import Callback, RunContext
from numpy.typing import NDArray


class Replay(Callback):
    """The newest self-play samples. `fit` does not copy the arrays: it trains on what is written to them.

    Args:
        network: The network that plays.
        options: The script options.
        worker: Rank and world size.
    """

    def __init__(self, network: Network, options: argparse.Namespace, worker: WorkerInfo) -> None:
        super().__init__()
        self.network, self.worker, self.moves = network, worker, options.moves
        self.games = SelfPlay(options.games // worker.size, options.simulations, (options.seed, worker.rank))
        # A round has at most so many samples: whole games, whose first moves were played in earlier rounds.
        self.rows = options.games // worker.size * (self.moves + ROWS * COLUMNS)
        self.boards = np.zeros((options.samples, ROWS, COLUMNS), np.float32)
        self.policies = np.zeros((options.samples, COLUMNS), np.float32)
        self.values = np.zeros(options.samples, np.float32)
        self.written = 0

    def on_train_begin(self, run_context: RunContext) -> None:
        """Fill the arrays, with the checkpoint's weights after a restart."""
        while self.written < len(self.values):
            self.play()

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Replace the oldest samples."""
        self.play()

    def play(self) -> None:
        """Play with all workers, and replace the oldest samples."""
        samples = mirror(self.gather(self.games.play(self.evaluate, self.moves)))
        indexes = (self.written + np.arange(len(samples))) % len(self.values)
        self.boards[indexes], self.policies[indexes], self.values[indexes] = split(samples)
        self.written += len(samples)

    def evaluate(self, boards: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return column probabilities and board values."""
        outputs = self.network(Tensor(boards))
        return ops.softmax(outputs["policy"], 1).asnumpy(), outputs["value"].asnumpy()

    def gather(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return all workers' samples."""
        if self.worker.size == 1:
            return samples
        # AllGather needs as many rows from each worker; a sample has a policy, so zero rows are no samples.
        rows = np.zeros((self.rows, samples.shape[1]), np.float32)
        rows[: len(samples)] = samples
        gathered = ops.AllGather()(Tensor(rows)).asnumpy()
        found: NDArray[np.float32] = gathered[gathered.any(axis=1)]
        return found


def main() -> None:
    """Parse the options, play and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--games", type=int, default=256, help="games played at once, by all workers")
    parser.add_argument("--moves", type=int, default=16, help="moves of each game before an epoch")
    parser.add_argument("--simulations", type=int, default=32, help="simulations of the search for each move")
    parser.add_argument(
        "--samples", type=int, default=32768, help="newest samples, mirrored ones included, to train on"
    )
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()

    worker = init_distributed()
    set_seed(options.seed)
    network = Network()
    replay = Replay(network, options, worker)
    fit(
        network,
        (replay.boards, {"policy": replay.policies, "value": replay.values}),
        loss={"policy": nn.CrossEntropyLoss(), "value": nn.MSELoss()},
        optimizer=nn.Adam(network.trainable_params(), options.learning_rate),
        callbacks=[replay],
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=256,
            schedule="cosine",
            seed=options.seed,
            network_factory="kfp_mindspore.workloads.connect4.network:Player",
        ),
    )
    if worker.is_writer:
        # Export compares the graph with the network on self-play positions.
        write_dataset(
            Path(os.environ.get("KFP_MINDSPORE_OUTPUT_DIR", "output"), "dataset"),
            name="connect4",
            task="none",
            columns=[Column("board", "float32", (ROWS, COLUMNS))],
            splits={"test": {"board": replay.boards}},
        )


if __name__ == "__main__":
    main()
