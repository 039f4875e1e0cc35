"""The graph alone: one GraphCell in one process, called in a loop by one thread, as MindSpore documents it.

https://www.mindspore.cn/docs/en/r2.9.0/api_python/nn/mindspore.nn.GraphCell.html

It is a peer and no upper limit: mindsporeserver calls beneath GraphCell, and computes small graphs on one core.

Once it is warm it prints a line of JSON with the seconds that compiling each batch size took. Each line `ROWS SECONDS`
on its input is answered by one: calls, calls/s, images/s, and the median and 99th percentile of a call in milliseconds.
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


def main() -> None:
    network = Network(sys.argv[1])
    start = time.perf_counter()
    for size in SIZES:
        network.compute(np.zeros((size, *network.shape), np.float32))
    print(json.dumps({"warm_up_seconds": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        rows, seconds = line.split()
        print(json.dumps(measure(network, int(rows), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
