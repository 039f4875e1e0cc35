"""Detection without a server: python detect.py ours|transformers MODEL BATCH STEPS; python detect.py write MODEL.

Prints the median seconds that a batch takes as JSON: `images`. `write` makes a random YolosForObjectDetection.
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

SIDE = 256


def write(model: str) -> None:
    """Write a random detector of YOLOS-Ti's sizes with its processor."""
    from transformers import YolosConfig, YolosForObjectDetection, set_seed

    set_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
    config = YolosConfig(**sizes, image_size=[SIDE, SIDE], id2label={index: f"class {index}" for index in range(91)})
    YolosForObjectDetection(config).save_pretrained(model)
    processor = {"image_processor_type": "YolosImageProcessor", "size": {"shortest_edge": SIDE, "longest_edge": SIDE}}
    Path(model, "preprocessor_config.json").write_text(json.dumps(processor))


def open_ours(model: str, batch: int) -> Callable[[Any], Any]:
    """Return the function that computes images in batches of one size."""
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.mindir.graph.runner import GraphRunner

    runner = GraphRunner(ModelBundle.open(model), warm=(batch,))
    return lambda images: runner.predict({"image": images, "extent": np.full((len(images), 2), SIDE, np.float32)})


def open_transformers(model: str, _: int) -> Callable[[Any], Any]:
    """As `open_ours`."""
    import torch
    from transformers import YolosForObjectDetection

    torch.set_num_threads(os.cpu_count() or 1)
    network: Any = YolosForObjectDetection.from_pretrained(model, dtype=torch.float32).eval()

    def compute(images: Any) -> Any:
        with torch.inference_mode():
            found = network(torch.from_numpy(images))
            return found.logits.numpy(), found.pred_boxes.numpy()

    return compute


def main(framework: str, model: str, batch: int, steps: int) -> None:
    """Measure and print."""
    compute = (open_ours if framework == "ours" else open_transformers)(model, batch)
    images = np.random.default_rng(0).normal(size=(batch, 3, SIDE, SIDE)).astype(np.float32)
    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        compute(images)
        seconds.append(time.perf_counter() - start)
    # The first one compiles or allocates.
    print(json.dumps({"images": statistics.median(seconds[1:])}))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        main(*sys.argv[1:3], *map(int, sys.argv[3:]))
