"""A small YOLOS detector (Fang et al., 2021, arXiv:2106.00666), built by `train.py` and by the export step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from kfp_mindspore.vision.network import (
    BlockConfig,
    DetectorConfig,
    DetectorNetwork,
    draw_weights,
    list_detector_weights,
)


def build_network(
    size: Sequence[int],
    classes: int,
    queries: int,
    patch: int = 8,
    width: int = 64,
    layers: int = 3,
    heads: int = 8,
    stem: int = 256,
    seed: int = 42,
    blocks: Mapping[str, Any] | None = None,
    mid_positions: bool = False,
    dense: bool = False,
) -> DetectorNetwork:
    """Return a detector with random weights.

    Args:
        size: The pictures' height and width, multiples of `patch`.
        classes: Class count.
        queries: Most boxes of a picture that the network can find.
        patch: A patch's side in pixels.
        width: Token width, divisible by `heads`.
        layers: Layer count.
        heads: Heads per layer.
        stem: Inner size of a patch's embedding by two layers; 0 for YOLOS' own, which is one.
        seed: Seed for the weights.
        blocks: Fields of `BlockConfig`, such as an imported detector's, in place of width, layers and heads.
        mid_positions: Whether the layers have positions of their own, as a published detector's may.
        dense: Whether patches have outputs in training.
    """
    built = BlockConfig(**blocks) if blocks else BlockConfig(width, layers, heads, 2 * width, "relu", 1e-6)
    config = DetectorConfig(built, (size[0], size[1]), patch, queries, classes, mid_positions, stem)
    weights = draw_weights(list_detector_weights(config), seed)
    # Patches and queries know their places from the start (as anchors, Wang et al., 2022, arXiv:2109.07107): fewer
    # pictures are enough.
    lengths = np.array(config.grid[::-1])
    places = np.concatenate([compute_places(*config.grid), compute_anchors(queries)])
    weights["positions"][1:] = compute_positions(places * lengths, built.width)
    return DetectorNetwork(config, weights, dense=dense)


def compute_places(rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Return the centres of a grid's fields, row by row: x and y, 0 to 1, shape (rows · columns, 2)."""
    y, x = np.meshgrid((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij")
    places: npt.NDArray[np.float64] = np.stack([x, y], -1).reshape(-1, 2)
    return places


def compute_anchors(queries: int) -> npt.NDArray[np.float64]:
    """Return the places of queries, which fill a picture, shape (queries, 2)."""
    side = math.ceil(math.sqrt(queries))
    return compute_places(side, side)[:queries]


def compute_positions(places: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float32]:
    """Return sines and cosines of places (Beyer et al., 2022, arXiv:2205.01580).

    Args:
        places: x and y in patches, shape (P, 2).
        width: Token width, a multiple of 4.

    Returns:
        Shape (P, width).
    """
    rates = 10000.0 ** -np.linspace(0, 1, width // 4)
    angles = (places[:, ::-1, np.newaxis] * rates).reshape(len(places), -1)
    positions: npt.NDArray[np.float32] = np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32)
    return positions
