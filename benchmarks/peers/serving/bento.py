"""BentoML with adaptive batching.

https://docs.bentoml.com/en/latest/get-started/adaptive-batching.html
"""

from __future__ import annotations

# isort: off
from network import MAX_BATCH, SIZES, Network  # MindSpore before BentoML

import bentoml
import numpy as np
# isort: on


@bentoml.service(workers=1)
class Predictor:
    """Handles POST /predict with {"images": [[[[…]]]]}; the first dimension is the batch."""

    def __init__(self) -> None:
        self.network = Network(warm=SIZES)

    @bentoml.api(batchable=True, batch_dim=0, max_batch_size=MAX_BATCH, max_latency_ms=10_000)
    def predict(self, images: np.ndarray) -> np.ndarray:
        """Compute one batch."""
        return self.network.compute_padded(images.astype(np.float32))
