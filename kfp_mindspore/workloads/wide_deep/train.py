"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os

import numpy as np
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.transform import Tokenize, Vocabulary, build_pipeline
from kfp_mindspore.workloads.wide_deep.network import Network
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray


def forget_ids(inputs: dict[str, NDArray[np.int32]], generator: np.random.Generator) -> dict[str, NDArray[np.int32]]:
    """Replace some ids in a batch by 0, the index for unknown ids, which no sample in the training split has.

    Most users and many movies in the test split are unknown.
    """
    changed = dict(inputs)
    for name, probability in {"user": 0.3, "movie": 0.1}.items():
        kept = generator.random(len(inputs[name])) >= probability
        changed[name] = inputs[name] * kept.astype(np.int32)
    return changed


def compute_loss(probabilities: Tensor, liked: Tensor) -> Tensor:
    """Return the truth's mean negative log probability."""
    return ops.nll_loss(ops.log(probabilities + 1e-7), liked)


def main() -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=10.0)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    # The dataset's preprocessing maps ids to indexes below these sizes.
    steps = build_pipeline(dataset.preprocessing).pre
    sizes = {step.column: step.size for step in steps if isinstance(step, Vocabulary | Tokenize)}
    arguments = {"users": sizes["user"], "movies": sizes["movie"], "genres": sizes["genres"]}

    set_seed(options.seed)
    network = Network(**arguments)
    # The weight decay is large, 1 % a step: rare ids' rows stay near 0, and the validation selects the epoch.
    fit(
        network,
        dataset,
        loss=compute_loss,
        optimizer=nn.AdamWeightDecay(
            network.trainable_params(), options.learning_rate, weight_decay=options.weight_decay
        ),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            metrics=("roc_auc",),
            keep_best="roc_auc",
            ema=0.995,
            augment=forget_ids,
            seed=options.seed,
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
