"""Train the network. The pipeline runs this script as an MSJob; it also runs standalone.

The dataset is in KFP_MINDSPORE_DATASET_DIR, the output goes to KFP_MINDSPORE_OUTPUT_DIR, and checkpoints go to
KFP_MINDSPORE_CHECKPOINT_DIR: `fit` reads all three variables.
"""

import argparse
import os
from functools import partial
from typing import Any

from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import TrainingConfig, fit, set_seed
from kfp_mindspore.training.detection import DetectionLoss, augment_boxes
from kfp_mindspore.vision.fine_tuning import read_start
from kfp_mindspore.workloads.detection.network import build_network, compute_anchors, compute_places
from mindspore import nn


def main() -> None:
    """Parse the options and train the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--initial", help="bundle or checkpoint to start from")
    parser.add_argument("--freeze", action="append", default=[], help="such as patch.* or blocks.*; may be repeated")
    options = parser.parse_args()

    dataset = Dataset.open(os.environ.get("KFP_MINDSPORE_DATASET_DIR", "data"))
    samples = read_samples(dataset, "train")
    (images,) = samples.inputs.values()
    if dataset.task != "detection" or samples.target is None:
        parser.error(f"{dataset.path}: is for {dataset.task}, expected pictures with boxes")
    counts = (samples.target[..., 0] >= 0).sum(axis=1)
    # The export step builds the network with the same arguments: JSON types only.
    arguments: dict[str, Any] = {
        "size": list(images.shape[2:]),
        "classes": len(dataset.labels),
        "queries": max(16, 2 * int(counts.max())),
    }

    start = read_start(options.initial) if options.initial else None
    if start:
        # Its dimensions are the network's.
        arguments |= start.arguments

    set_seed(options.seed)
    network = build_network(**arguments, seed=options.seed, dense=start is None)
    loss = DetectionLoss(counts.mean())
    if start:
        start.load_into(network, arguments["size"])
    else:
        anchors, patches = compute_anchors(arguments["queries"]), compute_places(*network.grid)
        loss = DetectionLoss(counts.mean(), anchors=anchors, patches=patches)
    fit(
        network,
        dataset,
        loss=loss,
        optimizer=nn.AdamWeightDecay(network.trainable_params(), options.learning_rate, weight_decay=1e-4),
        config=TrainingConfig(
            epochs=options.epochs,
            batch_size=options.batch_size,
            schedule={"name": "cosine", "warmup_epochs": 1},
            clip_norm=1.0,
            augment=partial(augment_boxes, least=0.8),
            ema=0.99,
            metrics=("map50", "map50_95"),
            validation_epochs=5,
            initial=None if start else options.initial or None,
            initial_strict=False,
            freeze=options.freeze,
            seed=options.seed,
            network_factory=f"{build_network.__module__}:build_network",
            network_arguments=arguments,
        ),
    )


if __name__ == "__main__":
    main()
