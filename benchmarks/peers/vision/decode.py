"""Decoding and resizing of a JPEG file: python decode.py ours|pillow|cv2 FILE COUNT.

Prints a line of JSON: the median seconds to 224 x 224 float32 pixels, of one thread. cv2 averages areas, since its
bicubic filter reads few of a large image's pixels.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 224


def open_ours() -> Callable[[bytes], Any]:
    """Return the function from a file to pixels (3, 224, 224)."""
    from kfp_mindspore.transform.base import fill_objects
    from kfp_mindspore.transform.declaration import build_pipeline
    from kfp_mindspore.vision.processor import parse_processor

    steps, _ = parse_processor({"size": SIDE}, "CLIP", "processor")
    pipeline = build_pipeline({"pre": steps})
    return lambda content: pipeline.preprocess({"image": fill_objects([content])})["image"][0]


def open_pillow() -> Callable[[bytes], Any]:
    """As `open_ours`."""
    from PIL import Image

    def prepare(content: bytes) -> Any:
        with Image.open(io.BytesIO(content)) as image:
            scale = SIDE / min(image.size)
            width, height = (round(side * scale) for side in image.size)
            small = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC))
        return normalise(small)

    return prepare


def open_cv2() -> Callable[[bytes], Any]:
    """As `open_ours`."""
    import cv2

    cv2.setNumThreads(1)

    def prepare(content: bytes) -> Any:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        scale = SIDE / min(image.shape[:2])
        height, width = (round(side * scale) for side in image.shape[:2])
        return normalise(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)[:, :, ::-1])

    return prepare


def normalise(pixels: Any) -> Any:
    """Return the centre (3, 224, 224), float32."""
    top, left = ((side - SIDE) // 2 for side in pixels.shape[:2])
    return (pixels[top : top + SIDE, left : left + SIDE].astype(np.float32) / 255 - 0.5).transpose(2, 0, 1).copy()


def main(way: str, file: str, count: int) -> None:
    """Measure and print."""
    prepare = {"ours": open_ours, "pillow": open_pillow, "cv2": open_cv2}[way]()
    content, seconds = Path(file).read_bytes(), []
    for _ in range(count + 1):
        start = time.perf_counter()
        pixels = prepare(content)
        seconds.append(time.perf_counter() - start)
    if pixels.shape != (3, SIDE, SIDE):
        raise ValueError(f"{way}: {pixels.shape}")
    print(json.dumps({"seconds": statistics.median(seconds[1:])}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
