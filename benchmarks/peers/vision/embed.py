"""Embeddings without a server: python embed.py ours|transformers MODEL BATCH STEPS; python embed.py write MODEL SIZE.

Prints the median seconds that a batch takes as JSON: `images`, `texts`. `write` makes a random CLIPModel.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIDE, LENGTH, VOCABULARY = 224, 77, 49_408
# Width, blocks and heads of both towers, and a patch's side: ViT-S/32's, and ViT-B/32's with CLIP's texts.
SIZES: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], int]] = {
    "S": ((384, 12, 6), (256, 6, 4), 32),
    "B": ((768, 12, 12), (512, 12, 8), 32),
}


def write(model: str, size: str) -> None:
    """Write a random CLIPModel without its tokenizer."""
    from transformers import CLIPConfig, CLIPModel, set_seed

    set_seed(0)
    images, texts, patch = SIZES[size]
    towers: list[dict[str, Any]] = [
        {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
        }
        for width, layers, heads in (images, texts)
    ]
    towers[0] |= {"image_size": SIDE, "patch_size": patch}
    towers[1] |= {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "eos_token_id": VOCABULARY - 1}
    config = CLIPConfig(vision_config=towers[0], text_config=towers[1], projection_dim=texts[0])
    CLIPModel(config).save_pretrained(model)


def open_ours(model: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the functions that compute images and token IDs."""
    from kfp_mindspore.vision.serving import load

    runner = load(Path(model))
    return runner.compute, runner.compute


def open_transformers(model: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """As `open_ours`."""
    import torch
    from transformers import CLIPModel

    torch.set_num_threads(os.cpu_count() or 1)
    network: Any = CLIPModel.from_pretrained(model, dtype=torch.float32).eval()

    def compute(function: Any, rows: Any) -> Any:
        with torch.inference_mode():
            found = function(torch.from_numpy(np.stack(rows)))
            return (found / found.norm(dim=-1, keepdim=True)).numpy()

    return (
        lambda images: compute(network.get_image_features, images),
        lambda ids: compute(network.get_text_features, [row.astype(np.int64) for row in ids]),
    )


def main(framework: str, model: str, batch: int, steps: int) -> None:
    """Measure and print."""
    images, texts = (open_ours if framework == "ours" else open_transformers)(model)
    random = np.random.default_rng(0)
    pixels = [random.normal(size=(3, SIDE, SIDE)).astype(np.float32) for _ in range(batch)]
    ids = [random.integers(0, VOCABULARY - 1, LENGTH).astype(np.int32) for _ in range(batch)]
    for row in ids:
        row[-1] = VOCABULARY - 1
    found = {}
    for name, function, rows in (("images", images, pixels), ("texts", texts, ids)):
        seconds = []
        for _ in range(steps + 1):
            start = time.perf_counter()
            function(rows)
            seconds.append(time.perf_counter() - start)
        # The first one compiles or allocates.
        found[name] = statistics.median(seconds[1:])
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        main(*sys.argv[1:3], *map(int, sys.argv[3:]))
