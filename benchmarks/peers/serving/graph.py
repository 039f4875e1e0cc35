"""The graph without a server: one GraphCell, called in a loop by one thread.

https://www.mindspore.cn/docs/en/r2.9.0/api_python/nn/mindspore.nn.GraphCell.html

`python graph.py BUNDLE ROWS SECONDS` prints one JSON object: the seconds that compiling all batch sizes took, calls/s,
images/s, and the median and 99th percentile of a call in milliseconds. mindsporeserver can be faster: it calls the
executor beneath GraphCell.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from network import SIZES, Network


def measure(network: Network, rows: int, seconds: float) -> dict[str, Any]:
    images = np.random.default_rng(0).random((rows, *network.shape), np.float32)
    latencies = []
    start = now = time.perf_counter()
    while now - start < seconds:
        network.compute(images)
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    return {
        "requests": len(latencies),
        "requests_per_second": len(latencies) / (now - start),
        "images_per_second": rows * len(latencies) / (now - start),
        "p50_ms": p50,
        "p99_ms": p99,
    }


if __name__ == "__main__":
    network = Network(sys.argv[1])
    start = time.perf_counter()
    for size in SIZES:
        network.compute(np.zeros((size, *network.shape), np.float32))
    warm_up = time.perf_counter() - start
    print(json.dumps({"warm_up_seconds": warm_up, **measure(network, int(sys.argv[2]), float(sys.argv[3]))}))
