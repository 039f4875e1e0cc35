"""Where does the time of a request go in mindsporeserver?

py-spy samples the server's threads from outside while wrk loads it. Each sample is put down to a stage of a request's
way by the line of source that it was on, and each thread's CPU seconds, which the kernel counts, are shared out among
its stages; threads without Python are MindSpore's own. So another program on the machine changes nothing. With one
connection the rest of what the client waits for is shown too: threads that wake each other up.

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
from collections.abc import Callable, Iterator
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
    ("other", r"/asyncio/|/uvloop/", r"", r""),
    ("graph", r"/mindspore/|mindir/compiled\.py", r"", r""),
    ("graph", r"mindir/graph\.py", r"", r"_compiled\.run\("),
    ("json", r"/mindsporeserver/", r"parse_json", r""),
    ("observe", r"/mindsporeserver/observability/|/prometheus_client/", r"", r""),
    ("encode", r"/mindsporeserver/protocols/(v1|v2)\.py", r"encode|list_rows|to_json", r""),
    ("array", r"/mindsporeserver/protocols/(tensors|v1|v2)\.py", r"", r""),
    ("array", r"mindir/graph\.py", r"validate|_fits|get_row_shapes", r""),
    ("batch", r"mindir/graph\.py", r"", r""),
    ("queue", r"/mindsporeserver/models/(batcher|graphs)\.py", r"", r""),
    ("write", r"/uvicorn/protocols/|/mindsporeserver/protocols/connection\.py", r"send|drain", r""),
    ("write", r"/mindsporeserver/protocols/asgi\.py", r"_send", r""),
    ("http", r"/uvicorn/protocols/|/mindsporeserver/protocols/connection\.py", r"", r""),
    ("asgi", r"/mindsporeserver/", r"", r""),
)


def classify(stack: list[str]) -> str:
    """Return the stage of a stack of frames, outermost first."""
    for frame in reversed(stack):
        if match := FRAME.match(frame):
            text = linecache.getline(match["file"], int(match["line"]))
            for stage, file, function, line in RULES:
                if re.search(file, match["file"]) and re.search(function, match["function"]) and re.search(line, text):
                    return stage
    return "other"


def read_samples(file: Path) -> Iterator[tuple[int, list[str], int]]:
    """Yield the thread's number, frames and count of each line that py-spy wrote."""
    for line in file.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if match := re.match(r"thread \((\d+)\)", thread):
            yield int(match[1]), frames, int(count)


def read_thread_seconds(pid: int) -> dict[int, float]:
    """Return the CPU seconds of each thread of a process."""
    seconds = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Nanoseconds on a core, nanoseconds in its queue, slices.
        seconds[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def profile(server: Server, run: Callable[[float], Load], seconds: float, scratch: Path) -> dict[str, float]:
    """Sample a server while it is loaded; return the microseconds a request by stage, and of all as `wall`."""
    spy = prepare_environment("profile") / "py-spy"
    file = scratch / "samples"
    pid = server.processes.process.pid
    loads: list[Load] = []
    loader = threading.Thread(target=lambda: loads.append(run(seconds)))
    before = read_thread_seconds(pid)
    loader.start()
    # Within the load, which wrk runs for whole seconds.
    options = ["--threads", "--full-filenames", "--nonblocking", "--format=raw", f"--rate={RATE}"]
    length = max(1, round(seconds) - 1)
    argv = [str(spy), "record", f"--pid={pid}", *options, f"--duration={length}", f"--output={file}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    loader.join()
    used = {task: after - before.get(task, 0.0) for task, after in read_thread_seconds(pid).items()}
    if done.returncode != 0 or not loads:
        raise RuntimeError(f"py-spy left with {done.returncode}: {done.stderr[-1000:]}")
    samples: dict[int, Counter[str]] = {}
    for thread, frames, count in read_samples(file):
        samples.setdefault(thread, Counter())[classify(frames)] += count
    load = loads[0]
    stages: Counter[str] = Counter()
    for task, spent in used.items():
        counted = samples.get(task, Counter({"graph": 1}))
        for stage, count in counted.items():
            stages[stage] += 1e6 * spent / load.requests * count / counted.total()
    return {"wall": 1e6 * load.seconds / load.requests, **stages}


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
                stages = profile(server, run, seconds, scratch)
                wall = stages.pop("wall")
                if connections == 1:
                    stages["queue"] = stages.get("queue", 0.0) + max(0.0, wall - sum(stages.values()))
                profiles[title] = {stage: stages[stage] for stage in STAGES if stage in stages}
                shown = "  ".join(f"{stage} {value:.1f}" for stage, value in profiles[title].items())
                print(f"{title}: {1e6 / wall:,.0f}/s  {shown}", file=sys.stderr, flush=True)
        finally:
            server.stop()
    draw_stages("serving-stages", profiles, RESULTS)
    print(json.dumps({"benchmark": "profile_serving", "machine": describe_machine(), "microseconds": profiles}))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
