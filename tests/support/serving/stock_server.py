"""A stock kserve.ModelServer of a bundle of digits, as kserve's documentation writes one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mindspore  # before kserve
import numpy as np

import kserve  # isort: skip
from kserve.utils.utils import get_predict_input, get_predict_response  # isort: skip


class Predictor(kserve.Model):  # type: ignore[misc]
    def __init__(self, name: str, bundle: Path) -> None:
        super().__init__(name)
        self.network = mindspore.nn.GraphCell(mindspore.load(str(bundle / "model.mindir")))
        self.ready = True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        images = get_predict_input(payload).astype(np.float32)
        return get_predict_response(payload, self.network(mindspore.Tensor(images)).asnumpy(), self.name)


if __name__ == "__main__":
    bundle, http_port, grpc_port = sys.argv[1:]
    kserve.ModelServer(http_port=int(http_port), grpc_port=int(grpc_port)).start([Predictor("digits", Path(bundle))])
