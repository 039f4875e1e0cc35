"""Strategies compared on a labelled dataset: the accuracy by label count, before any label is paid for.

Example:
    python -m kfp_mindspore.workloads.active_learning.compare digits --rounds 3 --seeds 3
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.evaluation import select_samples
from kfp_mindspore.evaluation.selection import STRATEGIES
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.workloads.active_learning.train import EPOCHS, train

if TYPE_CHECKING:
    from numpy.typing import NDArray


def simulate(
    dataset: Dataset | Path | str,
    strategy: str,
    *,
    first: int = 40,
    count: int = 20,
    rounds: int = 3,
    epochs: int = EPOCHS,
    seed: int = 0,
) -> list[float]:
    """Return each round's network accuracy on the test split; the first labels depend on the seed only.

    Args:
        dataset: A labelled dataset with one input.
        strategy: See `kfp_mindspore.evaluation.select_samples`.
        first: Label count for the first network, selected at random.
        count: Labels added by each round.
        rounds: Selection count.
        epochs: Passes over the labelled samples, in each round.
        seed: Seed for the first labels, the networks and random selection.

    Returns:
        rounds + 1 accuracies, 0 to 1.
    """
    import mindspore

    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    samples, held_out = (read_samples(dataset, split) for split in ("train", "test"))
    (inputs,), (tests,) = samples.inputs.values(), held_out.inputs.values()
    target = _get_target(samples.target)
    arguments = {"features": int(np.prod(inputs.shape[1:])), "classes": len(dataset.labels)}
    labelled = select_samples(np.empty((len(inputs), 0)), first, strategy="random", seed=seed)
    accuracies = []
    for number in range(rounds + 1):
        network = train((inputs[labelled], target[labelled]), arguments, epochs=epochs, seed=seed)

        def compute(arrays: NDArray[Any], network: Any = network) -> NDArray[Any]:
            scores: NDArray[Any] = network(mindspore.Tensor(arrays)).asnumpy()
            return scores

        accuracies.append(float((compute(tests).argmax(axis=1) == _get_target(held_out.target)).mean()))
        if number < rounds:
            pool = np.setdiff1d(np.arange(len(inputs)), labelled)
            chosen = select_samples(
                compute(inputs[pool]),
                count,
                strategy=strategy,
                labelled=compute(inputs[labelled]),
                seed=seed + number + 1,
            )
            labelled = np.concatenate([labelled, pool[chosen]])
    return accuracies


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and print one line per strategy."""
    parser = argparse.ArgumentParser(description="Compare strategies of active learning on a labelled dataset.")
    parser.add_argument("dataset", nargs="?", default="digits", help="name, path or URI of a dataset")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--first", type=int, default=40, help="labels of the first network")
    parser.add_argument("--count", type=int, default=20, help="labels added by each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="number of repetitions with other first labels")
    options = parser.parse_args(argv)
    labels = [options.first + options.count * number for number in range(options.rounds + 1)]
    print("labels", *labels, sep="\t")
    with tempfile.TemporaryDirectory() as directory:
        dataset = load_dataset(options.dataset, Path(directory, "data"))
        for strategy in options.strategies:
            runs = [
                simulate(
                    dataset,
                    strategy,
                    first=options.first,
                    count=options.count,
                    rounds=options.rounds,
                    seed=seed,
                )
                for seed in range(options.seeds)
            ]
            print(strategy, *(f"{mean:.3f}" for mean in np.mean(runs, axis=0)), sep="\t", flush=True)


def _get_target(target: NDArray[Any] | None) -> NDArray[Any]:
    assert target is not None
    return target


if __name__ == "__main__":
    main()
