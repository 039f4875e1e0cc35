"""The model behind every peer: `mindspore.load` and `nn.GraphCell`, as MindSpore's documentation shows.

https://www.mindspore.cn/docs/en/r2.9.0/api_python/mindspore/mindspore.load.html

A peer imports this module before its own framework: MindSpore's generated protobuf modules load only when MindSpore is
the first to import protobuf. A graph compiles again for each new batch size (0.1 s and more), so batching peers pad to
powers of two and compile all of them before they are ready.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")

import mindspore
import numpy as np
from mindspore import nn

MAX_BATCH = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Network:
    """The model in a directory.

    Args:
        model_dir: Holds model.mindir and signature.json; default the environment's MODEL_DIR.
        warm: Batch sizes to compile now.
    """

    def __init__(self, model_dir: str | None = None, warm: Sequence[int] = ()) -> None:
        directory = Path(model_dir or os.environ["MODEL_DIR"])
        self.shape = tuple(json.loads((directory / "signature.json").read_text())["inputs"][0]["shape"][1:])
        self.cell = nn.GraphCell(mindspore.load(str(directory / "model.mindir")))
        for size in warm:
            self.compute(np.zeros((size, *self.shape), np.float32))

    def compute(self, images: Any) -> Any:
        """Return the logits, float32 of shape (N, classes), of images, float32 of shape (N, channels, H, W)."""
        return self.cell(mindspore.Tensor(images)).asnumpy()

    def compute_padded(self, images: Any) -> Any:
        """Compute in batches of compiled sizes."""
        count = len(images)
        if count > MAX_BATCH:
            parts = [self.compute_padded(images[start : start + MAX_BATCH]) for start in range(0, count, MAX_BATCH)]
            return np.concatenate(parts)
        padded = np.zeros((1 << (count - 1).bit_length(), *self.shape), np.float32)
        padded[:count] = images
        return self.compute(padded)[:count]
