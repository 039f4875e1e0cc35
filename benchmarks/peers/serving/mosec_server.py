"""mosec with dynamic batching.

https://mosecorg.github.io/mosec/reference/concept.html#dynamic-batching
"""

from __future__ import annotations

import sys
from typing import Any

# isort: off
from network import MAX_BATCH, SIZES, Network  # MindSpore before mosec

import numpy as np
from mosec import Server, Worker
# isort: on


class Predictor(Worker):
    """Handles POST /inference with {"image": [[[…]]]}."""

    def __init__(self) -> None:
        self.network = Network(warm=SIZES)

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Compute one batch."""
        images = np.array([item["image"] for item in data], np.float32)
        return [{"prediction": row} for row in self.network.compute_padded(images).tolist()]


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", sys.argv[1]]
    server = Server()
    server.append_worker(Predictor, max_batch_size=MAX_BATCH, max_wait_time=1)
    server.run()
