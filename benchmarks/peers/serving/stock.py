"""kserve.Model with a synchronous predict: the custom predictor of KServe's documentation.

https://kserve.github.io/website/docs/model-serving/predictive-inference/frameworks/custom-predictor/custom-predictor
"""

from __future__ import annotations

import argparse
from typing import Any

# isort: off
from network import Network  # MindSpore before kserve

import kserve
import numpy as np
from kserve.utils.utils import get_predict_input, get_predict_response
# isort: on


class Predictor(kserve.Model):
    """Compute each request on arrival."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.load()

    def load(self) -> bool:
        """Load the graph."""
        self.network = Network()
        self.ready = True
        return self.ready

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """Handle V1, V2 and gRPC with kserve's helpers, as its scikit-learn server does."""
        images = get_predict_input(payload).astype(np.float32)
        return get_predict_response(payload, self.network.compute(images), self.name)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(parents=[kserve.model_server.parser]).parse_args()
    kserve.ModelServer().start([Predictor(arguments.model_name)])
