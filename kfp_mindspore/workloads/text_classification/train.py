"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os
from collections.abc import Sequence

import numpy as np
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.transform import Tokenize, build_pipeline
from kfp_mindspore.workloads.text_classification.network import Network
from mindspore import nn
from numpy.typing import NDArray


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--forget", type=float, default=0.05, help="share of the tokens that training makes unknown")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(argv)

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    (tokenize,) = (step for step in build_pipeline(dataset.preprocessing).pre if isinstance(step, Tokenize))
    # The export step builds the network with the same arguments: JSON types only.
    arguments = {"size": tokenize.size, "classes": len(dataset.labels), "padding": tokenize.padding}

    # The training split's words are all known, a request's may not be.
    def forget_tokens(ids: NDArray[np.int32], random: np.random.Generator) -> NDArray[np.int32]:
        forgotten = (random.random(ids.shape) < options.forget) & (ids != tokenize.padding)
        return np.where(forgotten, np.int32(tokenize.unknown), ids)

    set_seed(options.seed)
    network = Network(**arguments)
    fit(
        network,
        dataset,
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.AdamWeightDecay(
            network.trainable_params(), options.learning_rate, weight_decay=options.weight_decay
        ),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            schedule="cosine",
            augment=forget_tokens,
            metrics=("accuracy",),
            seed=options.seed,
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
