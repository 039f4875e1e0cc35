"""Where does the time of a request go in mindsporeserver?

py-spy samples the server's threads from outside while wrk loads it, and each sample is put down to a stage of the
request's way by the line of source that it was on: reading and parsing HTTP, JSON, the array, the queue, the graph,
the answer, writing it. Microseconds a request are a stage's share of the time, divided by what was answered meanwhile.
With one connection the stages and the waiting between them add up to what the client waits for; with 32 they are the
work of the event loop's thread and of the graph's, which run side by side.

    python benchmarks/profile_serving.py [--quick]

Draws docs/benchmarks/serving-stages.svg, and prints the stages as one line of JSON.
"""

from __future__ import annotations

import json
import linecache
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import build_parser, describe_machine
from load import GET_WRK, Load, find_wrk, make_v1, make_v2_binary, run_wrk
from models import make_model
from pictures import STAGES, draw_stages
from servers import ENVIRONMENTS, SERVERS, Server, prepare_environment

RESULTS = Path(__file__).parent.parent / "docs" / "benchmarks"
RATE = 500
BODIES = 16
FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
# From the innermost frame outwards, the first rule that fits a frame decides: file, function, text of the line.
RULES = (
    ("graph", r"/mindspore/|mindir/graph\.py", r"", r"self\._cell\(|self\._tensor\(|asnumpy\(|_compute\("),
    ("graph", r"/mindspore/", r"", r""),
    ("json", r"/mindsporeserver/", r"parse_json", r""),
    ("observe", r"/mindsporeserver/(metrics|logs|log_output|tracing)\.py|prometheus_client", r"", r""),
    ("encode", r"/mindsporeserver/(v1|v2)\.py", r"encode|list_rows|to_json", r""),
    ("array", r"/mindsporeserver/(tensors|v1|v2)\.py", r"", r""),
    ("array", r"mindir/graph\.py", r"validate|_fits|find_inner", r""),
    ("batch", r"mindir/graph\.py", r"", r""),
    ("queue", r"/mindsporeserver/(batcher|graphs)\.py", r"", r""),
    ("write", r"/uvicorn/protocols/|/mindsporeserver/connection\.py", r"send|drain", r""),
    ("write", r"/mindsporeserver/asgi\.py", r"_send", r""),
    ("http", r"/uvicorn/protocols/|/mindsporeserver/connection\.py", r"", r""),
    ("asgi", r"/mindsporeserver/", r"", r""),
)
IDLE = re.compile(r"\b(select|poll|epoll)\b")


def classify(stack: list[str]) -> str:
    """Return the stage of a stack of frames, outermost first."""
    for frame in reversed(stack):
        if match := FRAME.match(frame):
            text = linecache.getline(match["file"], int(match["line"]))
            for stage, file, function, line in RULES:
                if re.search(file, match["file"]) and re.search(function, match["function"]) and re.search(line, text):
                    return stage
    return "other"


def is_waiting(stack: list[str]) -> bool:
    """Tell whether a thread waits for work: py-spy leaves most such samples out, but not a queue of C's."""
    match = FRAME.match(stack[-1])
    if match is None:
        return False
    text = linecache.getline(match["file"], int(match["line"]))
    return "self._queue.get()" in text or bool(IDLE.search(match["function"]))


def read_samples(file: Path) -> Iterator[tuple[str, list[str], int]]:
    """Yield thread, frames and count of each line that py-spy wrote."""
    for line in file.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        yield thread, frames, int(count)


def profile(server: Server, run: Any, seconds: float, scratch: Path) -> tuple[Counter[str], Load]:
    """Sample a server while it is loaded; return samples by stage, and what was answered."""
    spy = prepare_environment("profile") / "py-spy"
    file = scratch / "samples"
    argv = [str(spy), "record", f"--pid={server.processes.process.pid}", f"--rate={RATE}", "--format=raw"]
    loads: list[Load] = []
    loader = threading.Thread(target=lambda: loads.append(run(seconds)))
    loader.start()
    # Within the load, which wrk runs for whole seconds.
    options = ["--threads", "--nonblocking", f"--duration={max(1, round(seconds) - 1)}", f"--output={file}"]
    done = subprocess.run([*argv, *options], capture_output=True, text=True, check=False)
    loader.join()
    if done.returncode != 0:
        raise RuntimeError(f"py-spy left with {done.returncode}: {done.stderr[-1000:]}")
    stages: Counter[str] = Counter()
    for _, frames, count in read_samples(file):
        if frames and not is_waiting(frames):
            stages[classify(frames)] += count
    return stages, loads[0]


def main() -> int:
    arguments = build_parser((__doc__ or "").partition("\n")[0]).parse_args()
    if not find_wrk():
        print(f"wrk is missing: {GET_WRK}", file=sys.stderr)
        return 2
    seconds = 4.0 if arguments.quick else 20.0
    bundle = make_model("lenet", ENVIRONMENTS / "models")
    name, images = next(iter(bundle.read_verified().inputs.items()))
    ones = [images[index : index + 1] for index in range(BODIES)]
    profiles: dict[str, dict[str, float]] = {}
    cases = {
        "V1 JSON, 1 connection": (1, [make_v1(part) for part in ones]),
        "V1 JSON, 32 connections": (32, [make_v1(part) for part in ones]),
        "V2 binary, 32 connections": (32, [make_v2_binary(part, name) for part in ones]),
    }
    with tempfile.TemporaryDirectory(prefix="profile-") as directory:
        scratch = Path(directory)
        server = Server(SERVERS["ours"], prepare_environment(""), bundle.path, scratch / "server")
        try:
            for title, (connections, requests) in cases.items():

                def run(duration: float, connections: int = connections, requests: Any = requests) -> Load:
                    return run_wrk(server.http, requests, connections, duration, scratch)

                run(2.0)
                stages, load = profile(server, run, seconds, scratch)
                wall = 1e6 * load.seconds / load.requests
                total = RATE * max(1, round(seconds) - 1)
                profiles[title] = {stage: wall * stages[stage] / total for stage in STAGES if stages[stage]}
                if connections == 1:
                    # What neither thread worked on: waking up each other, and the client.
                    rest = wall - sum(profiles[title].values())
                    profiles[title]["queue"] = profiles[title].get("queue", 0.0) + max(0.0, rest)
                shown = "  ".join(f"{stage} {value:.1f}" for stage, value in profiles[title].items())
                print(f"{title}: {load.requests / load.seconds:,.0f}/s  {shown}", file=sys.stderr, flush=True)
        finally:
            server.stop()
    draw_stages("serving-stages", profiles, RESULTS)
    print(json.dumps({"benchmark": "profile_serving", "machine": describe_machine(), "microseconds": profiles}))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
