"""Locked-text tuning (Zhai et al., 2022, arXiv:2111.07991) on drawn pictures, compared on unseen combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn
from numpy.typing import NDArray

from kfp_mindspore import training
from kfp_mindspore.mindir.environment import use_graph_mode
from kfp_mindspore.mindir.graph.runner import ModelRunner
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.transform.images import DecodeImage
from kfp_mindspore.vision.bundle import TextEncoder
from kfp_mindspore.vision.drawings import Drawing, draw_pictures, write_drawings
from kfp_mindspore.vision.network import BlockConfig, ImageConfig, ImageNetwork
from kfp_mindspore.vision.options import LAST, ContrastiveOptions
from kfp_mindspore.vision.retrieval import measure_retrieval
from kfp_mindspore.vision.training import create_weights, finetune

EPOCHS, CLASSIFIER_EPOCHS = 20, 12
_BATCH = 120


def compare(
    model: Path, directory: Path, *, epochs: int = EPOCHS, pictures: int = 20, seed: int = 0
) -> Mapping[str, Mapping[str, float]]:
    """Train the dual encoder and the baselines, and measure them on combinations that no training picture has.

    Args:
        model: An embedding model's bundle.
        directory: For `drawings` and the trained bundle, `model`.
        epochs: Passes over the training pairs.
        pictures: For each combination.
        seed: Seed for pictures and training.

    Returns:
        For `dual encoder`, `nearest picture` (its caption), `classifier` (of known captions; their texts' mean by its
        probabilities) and `chance`: `accuracy` among the 36 held-out captions, `accuracy_of_all` among all 180, and
        `recall_at_5`, the fraction of held-out captions with an own picture among the first five.
    """
    drawings = draw_pictures(pictures, seed=seed)
    write_drawings(directory / "drawings", drawings)
    options = ContrastiveOptions(
        epochs=epochs, learning_rate=2e-3, batch_size=128, length=16, layers=3, keep=LAST, held_out=0.05, seed=seed
    )
    finetune(model, str(directory / "drawings"), directory / "model", options)
    known = [drawing for drawing in drawings if not drawing.held_out]
    held = [drawing for drawing in drawings if drawing.held_out]
    captions = sorted({drawing.caption for drawing in held})
    others = sorted({drawing.caption for drawing in known})
    encoder = TextEncoder.open(directory / "model")
    texts, other_texts = encoder.embed(captions), encoder.embed(others)
    classes = np.array([others.index(drawing.caption) for drawing in known])
    right = np.array([captions.index(drawing.caption) for drawing in held])
    pixels, held_pixels = decode(known), decode(held)
    distances = -2 * held_pixels.reshape(len(held), -1) @ pixels.reshape(len(known), -1).T
    distances += (pixels.reshape(len(known), -1) ** 2).sum(1)
    # Equal rows are in random order: a tie counts as an error.
    noise = np.random.default_rng(seed).normal(0, 1e-6, (len(held), texts.shape[1]))
    rows = {
        "dual encoder": embed(directory / "model", held),
        "nearest picture": other_texts[classes[distances.argmin(1)]] + noise,
        "classifier": classify(pixels, classes, held_pixels, seed) @ other_texts + noise,
        "chance": np.random.default_rng(seed).normal(size=noise.shape),
    }
    every = np.concatenate([texts, other_texts])
    return {
        name: {
            **measure_retrieval(row, texts, right),
            "accuracy_of_all": float(((row @ every.T).argmax(1) == right).mean()),
        }
        for name, row in rows.items()
    }


def embed(bundle: Path, drawings: Sequence[Drawing]) -> NDArray[np.float32]:
    """Return pictures' embeddings by a bundle's image graph."""
    parts = []
    with ModelRunner(bundle) as runner:
        for start in range(0, len(drawings), _BATCH):
            images = [drawing.image for drawing in drawings[start : start + _BATCH]]
            parts.append(runner.predict({"image": fill_objects(images)})["output"])
    return np.concatenate(parts)


def decode(drawings: Sequence[Drawing]) -> NDArray[np.float32]:
    """Return pictures with values from -1 to 1, float32 with shape (N, 3, H, W)."""
    step = DecodeImage()
    return np.concatenate([step.compute(fill_objects([drawing.image])) for drawing in drawings]) * 2 - 1


def classify(
    pixels: NDArray[np.float32], classes: NDArray[np.int64], held: NDArray[np.float32], seed: int
) -> NDArray[Any]:
    """Train the dual encoder's image network on known captions, and return held-out pictures' probabilities."""
    training.set_seed(seed)
    config = ImageConfig(BlockConfig(64, 3, 4, 256, "gelu", 1e-6), (32, 32), 8, outputs=int(classes.max()) + 1)
    network = ImageNetwork(config, create_weights(config, seed))
    training.fit(
        network,
        (pixels, classes.astype(np.int32)),
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), 2e-3, weight_decay=0.01),
        config=training.TrainingConfig(
            epochs=CLASSIFIER_EPOCHS,
            batch_size=128,
            schedule={"name": "cosine", "warmup_epochs": 1},
            clip_norm=1.0,
            seed=seed,
            export_check="off",
        ),
    )
    network.set_train(False)
    with use_graph_mode():
        parts = [
            network(mindspore.Tensor(held[start : start + _BATCH])).asnumpy() for start in range(0, len(held), _BATCH)
        ]
    scores = np.exp(np.concatenate(parts))
    shares: NDArray[Any] = scores / scores.sum(1, keepdims=True)
    return shares
