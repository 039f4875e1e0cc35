"""How accurate is the digits recipe on the test split, over five seeds?

The recipe was chosen on the validation split alone; the test split is read here, after training, and in the pipeline's
evaluation. The split is the same for all seeds; the seed is that of initial weights, shuffling and augmentation.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from harness import build_parser, build_target, print_result

from kfp_mindspore import training
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.formats.dataset import Dataset, load_dataset
from kfp_mindspore.pipelines.digits_lifecycle import train as recipe
from kfp_mindspore.pipelines.digits_lifecycle.network import LeNet5
from kfp_mindspore.settings import DATASET_VARIABLE, OUTPUT_VARIABLE

import mindspore  # isort: skip

SEEDS = (1, 2, 3, 4, 5)
MEDIAN_GOAL = 0.97
WORST_GOAL = 0.955


def train_recipe(output: Path, seed: int) -> training.FitResult:
    os.environ[OUTPUT_VARIABLE] = str(output)
    with contextlib.redirect_stdout(sys.stderr):
        return recipe.train(recipe.EPOCHS, recipe.BATCH_SIZE, recipe.LEARNING_RATE, seed)


def measure_accuracy(dataset: Dataset, output: Path) -> float:
    found = Checkpoint.open(output / "checkpoint")
    network = LeNet5(**found.network.arguments)
    mindspore.load_checkpoint(str(found.network_file), network)
    network.set_train(False)
    features, labels = dataset.read("test")
    return float((network(mindspore.Tensor(features)).asnumpy().argmax(axis=1) == labels).mean())


def main() -> None:
    options = build_parser(__doc__ or "").parse_args()
    seeds = SEEDS[:2] if options.quick else SEEDS
    test, validation, seconds = [], [], []
    with tempfile.TemporaryDirectory() as root:
        dataset = load_dataset("digits", Path(root, "digits"))
        os.environ[DATASET_VARIABLE] = str(dataset.path)
        for seed in seeds:
            result = train_recipe(Path(root, str(seed)), seed)
            test.append(round(measure_accuracy(dataset, Path(root, str(seed))), 4))
            validation.append(round(result.metrics["accuracy"], 4))
            seconds.append(round(result.seconds, 1))
    print_result(
        "accuracy",
        [
            build_target("test accuracy, median over the seeds", test, MEDIAN_GOAL, at_least=True),
            build_target("test accuracy, worst of the seeds", test, WORST_GOAL, at_least=True, worst=True),
            build_target("training, seconds", seconds),
        ],
        {"seeds": seeds, "test": test, "validation": validation, "seconds": seconds, "epochs": recipe.EPOCHS},
    )


if __name__ == "__main__":
    main()
