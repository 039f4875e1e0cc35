"""Triton's Python backend: one instance that pads and computes the batches of Triton's dynamic batcher.

https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/python_backend/README.html
"""

from __future__ import annotations

import os
import sys
from typing import Any

# The stub's interpreter ignores PYTHONPATH.
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)

# isort: off
from network import SIZES, Network  # noqa: E402  MindSpore before anything else

import numpy as np  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402
# isort: on


class TritonPythonModel:
    """The class that Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the graph and compile its batch sizes."""
        self.network = Network(warm=SIZES)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Compute a batch of requests."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "image").as_numpy() for request in requests]
        outputs = self.network.compute_padded(np.concatenate(inputs))
        parts = np.split(outputs, np.cumsum([len(part) for part in inputs])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("output", part)]) for part in parts]
