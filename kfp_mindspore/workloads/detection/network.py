"""A small YOLOS detector (Fang et al., 2021, arXiv:2106.00666), built by `train.py` and by the export step."""

import math
from collections.abc import Sequence

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
    layers: int = 4,
    heads: int = 4,
    seed: int = 42,
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
        seed: Seed for the weights.
    """
    blocks = BlockConfig(width, layers, heads, 2 * width, "gelu", 1e-6)
    config = DetectorConfig(blocks, (size[0], size[1]), patch, queries, classes)
    weights = draw_weights(list_detector_weights(config), seed)
    # Patches and queries know their places from the start (as anchors, Wang et al., 2022, arXiv:2109.07107): fewer
    # pictures are enough.
    side = math.ceil(math.sqrt(queries))
    weights["positions"][1 : config.tokens - queries] = compute_positions(*config.grid, config.grid, width)
    weights["positions"][config.tokens - queries :] = compute_positions(side, side, config.grid, width)[:queries]
    return DetectorNetwork(config, weights)


def compute_positions(rows: int, columns: int, grid: tuple[int, int], width: int) -> npt.NDArray[np.float32]:
    """Return sines and cosines of places that fill a picture (Beyer et al., 2022, arXiv:2205.01580).

    Args:
        rows: Places in height.
        columns: Places in width.
        grid: The picture's height and width in patches.
        width: Token width, a multiple of 4.

    Returns:
        Shape (rows · columns, width).
    """
    rates = 10000.0 ** -np.linspace(0, 1, width // 4)
    sides = [(np.arange(count) + 0.5) / count * length for count, length in zip((rows, columns), grid, strict=True)]
    places = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 2, 1)
    angles = (places * rates).reshape(rows * columns, -1)
    positions: npt.NDArray[np.float32] = np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32)
    return positions
