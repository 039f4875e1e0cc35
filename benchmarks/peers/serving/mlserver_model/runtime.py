"""MLServer with a custom runtime and adaptive batching.

https://docs.seldon.ai/mlserver/user-guide/custom and https://docs.seldon.ai/mlserver/user-guide/adaptive-batching
"""

from __future__ import annotations

# isort: off
from network import SIZES, Network  # MindSpore before MLServer

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
# isort: on


class MindSporeRuntime(MLModel):
    """The implementation in model-settings.json; `predict` gets merged requests."""

    async def load(self) -> bool:
        """Load the graph and compile its batch sizes."""
        self.network = Network(warm=SIZES)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Compute one merged request."""
        images = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        output = self.network.compute_padded(images.astype(np.float32, copy=False))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("output", output)])
