"""kserve's server modules without what a server does not need."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
from mindsporeserver.lazy_imports import light_imports
with light_imports():
    from mindsporeserver.server import Server
result = {"heavy": sorted({"kubernetes", "pandas"} & set(sys.modules))}
import kserve
from kserve.protocol import infer_type
import numpy as np
frame = infer_type.InferRequest("m", [infer_type.InferInput("x", [2], "FP32", data=[1.0, 2.0])]).as_dataframe()
result["frame"] = [type(frame).__module__.split(".")[0], frame["x"].tolist()]
result["is_frame"] = [isinstance(frame, infer_type.pd.DataFrame), isinstance(1, infer_type.pd.DataFrame)]
from kserve import KServeClient, logging
result["client"] = [KServeClient.__name__, kserve.Model is sys.modules["kserve.model"].Model, logging.__name__]
try:
    kserve.nothing
except AttributeError as error:
    result["missing"] = str(error)
print(json.dumps(result))
"""


def test_light_imports() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {
        "heavy": [],
        "frame": ["pandas", [1.0, 2.0]],
        "is_frame": [True, False],
        "client": ["KServeClient", True, "kserve.logging"],
        "missing": "module 'kserve' has no attribute 'nothing'",
    }
