"""Ray Serve with dynamic request batching.

https://docs.ray.io/en/latest/serve/advanced-guides/dyn-req-batch.html
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

# isort: off
from network import MAX_BATCH, SIZES, Network  # MindSpore before Ray

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
# isort: on


@serve.deployment(max_ongoing_requests=2 * MAX_BATCH)
class Predictor:
    """Handles POST / with {"image": [[[…]]]}."""

    def __init__(self) -> None:
        self.network = Network(warm=SIZES)

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=0.0)
    async def predict(self, images: list[Any]) -> list[Any]:
        """Compute one batch."""
        return self.network.compute_padded(np.stack(images)).tolist()

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Handle one request; GET is the readiness probe."""
        if request.method == "GET":
            return {"ready": True}
        body = await request.json()
        return {"prediction": await self.predict(np.array(body["image"], np.float32))}


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, _temp_dir=os.environ["RAY_HOME"], log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Predictor.bind())
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
