"""Servers of the serving benchmark: the environment, the command and the processes of each."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from environments import prepare_environment
from harness import pick_port
from load import MODEL, Request

PEERS = Path(__file__).parent / "peers" / "serving"
REQUIREMENTS = PEERS / "requirements"
MARK = "KFP_MINDSPORE_BENCHMARK"
START_TIMEOUT = 240.0
STOP_TIMEOUT = 20.0
# oneDNN 3.10 has no fast AVX-512 convolution for the layout of MindSpore 2.9: its reference kernel is up to 60 times
# slower. mindsporeserver selects AVX2 itself; `stock-avx2` is stock with the same kernels.
FAST_KERNELS = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
# MindSpore's generated protobuf modules load beside a framework's newer ones with the pure Python implementation only.
PURE_PROTOBUF = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONPATH": str(PEERS)}
READY_V2 = f"/v2/models/{MODEL}/ready"


@dataclass(frozen=True)
class Peer:
    """How a server is started.

    Args:
        title: Name in tables and plots.
        requirements: Name of its requirements file; empty for the environment of this process.
        command: Program and arguments; `{http}`, `{grpc}`, `{metrics}`, `{model}` and `{scratch}` are filled in.
        ready: Path that responds with 200 when the server is ready.
        environment: More variables, filled in likewise.
        shared_library: Whether the environment's interpreter must have a shared libpython.
    """

    title: str
    requirements: str
    command: Sequence[str]
    ready: str = READY_V2
    environment: Mapping[str, str] = field(default_factory=dict)
    shared_library: bool = False


_PORTS = ("--http_port={http}", "--grpc_port={grpc}", "--enable_grpc=true")
_STOCK = ("python", str(PEERS / "stock.py"), f"--model_name={MODEL}", *_PORTS)
_OURS = ("python", "-m", "mindsporeserver", f"--model_name={MODEL}", "--model_dir={model}", *_PORTS)
SERVERS = {
    "ours": Peer("mindsporeserver", "", _OURS),
    "preprocessing": Peer("mindsporeserver, preprocessing", "", _OURS),
    "logged": Peer("mindsporeserver, log of requests", "", (*_OURS, '--logger={{"url": "{scratch}/log"}}')),
    "stock": Peer("kserve.Model", "kserve", _STOCK),
    "stock-avx2": Peer("kserve.Model, AVX2", "kserve", _STOCK, environment=FAST_KERNELS),
    "mosec": Peer(
        "mosec", "mosec", ("python", str(PEERS / "mosec_server.py"), "{http}"), "/metrics", {"PYTHONPATH": str(PEERS)}
    ),
    "triton": Peer(
        "Triton, Python backend",
        "triton",
        ("python", str(PEERS / "triton_server.py"), "{http}", "{grpc}"),
        shared_library=True,
    ),
    "mlserver": Peer(
        "MLServer",
        "mlserver",
        ("mlserver", "start", str(PEERS / "mlserver_model")),
        environment={
            "MLSERVER_HTTP_PORT": "{http}",
            "MLSERVER_GRPC_PORT": "{grpc}",
            "MLSERVER_METRICS_PORT": "{metrics}",
            **PURE_PROTOBUF,
        },
    ),
    "bentoml": Peer(
        "BentoML",
        "bentoml",
        ("bentoml", "serve", "bento:Predictor", f"--working-dir={PEERS}", "--host=127.0.0.1", "--port={http}"),
        "/readyz",
        {"BENTOML_HOME": "{scratch}/bentoml", "BENTOML_DO_NOT_TRACK": "1", **PURE_PROTOBUF},
    ),
    "ray": Peer(
        "Ray Serve",
        "ray",
        ("python", str(PEERS / "ray_serve.py"), "{http}"),
        "/",
        {
            "RAY_HOME": "{scratch}/ray",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            **PURE_PROTOBUF,
        },
    ),
}


class ProcessTree:
    """A command and all its descendants, identified by a variable in their environment.

    Args:
        argv: The command.
        environment: Variables besides those of this process.
        scratch: Working directory; the output goes to `log` in it.
        **options: Options of subprocess.Popen.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], scratch: Path, **options: Any) -> None:
        self._mark = uuid.uuid4().hex
        self.log_file = scratch / "log"
        inherited = {key: text for key, text in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        variables = {**inherited, "GLOG_v": "3", **environment, MARK: self._mark}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(argv, env=variables, cwd=scratch, stderr=log, **{"stdout": log, **options})

    def list_processes(self) -> list[psutil.Process]:
        """Return the running processes of the tree."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def read_cpu_seconds(self) -> float:
        """Return the CPU seconds, user and system, of the running processes and their reaped children."""
        total = 0.0
        for process in self.list_processes():
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    def read_peak_memory(self) -> float:
        """Return the sum of the running processes' peak resident memory in MB."""
        total = 0
        for process in self.list_processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                total += int(status.partition("VmHWM:")[2].split()[0])
        return total / 1024

    def read_log(self) -> str:
        """Return the end of the output."""
        return self.log_file.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """Terminate the command; kill what still runs after a timeout."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT)
        left = self.list_processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, STOP_TIMEOUT)
        self.process.wait()


class Server:
    """A running server that is ready.

    Args:
        peer: How it is started.
        model: The bundle.
        scratch: A directory of its own.

    Raises:
        RuntimeError: It exited or did not become ready; the message holds the end of its log.
    """

    def __init__(self, peer: Peer, model: Path, scratch: Path) -> None:
        self.peer = peer
        self.http, self.grpc = pick_port(), pick_port()
        values = {"http": self.http, "grpc": self.grpc, "metrics": pick_port(), "model": model, "scratch": scratch}
        programs = prepare_environment(
            REQUIREMENTS / f"{peer.requirements}.txt" if peer.requirements else None, shared_library=peer.shared_library
        )
        program, *arguments = (word.format(**values) for word in peer.command)
        variables = {name: value.format(**values) for name, value in peer.environment.items()}
        scratch.mkdir(parents=True)
        start = time.perf_counter()
        argv = [str(programs / program), *arguments]
        self.processes = ProcessTree(argv, {"MODEL_DIR": str(model), **variables}, scratch)
        try:
            self._wait_ready(start + START_TIMEOUT)
        except BaseException:
            self.processes.stop()
            raise
        self.start_seconds = time.perf_counter() - start

    def _wait_ready(self, deadline: float) -> None:
        url = f"http://127.0.0.1:{self.http}{self.peer.ready}"
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5) as response:
                    if response.status == 200:
                        return
            except OSError:
                time.sleep(0.02)
            code = self.processes.process.poll()
            if code is not None or time.perf_counter() > deadline:
                reason = f"exited with {code}" if code is not None else f"not ready after {START_TIMEOUT:.0f} s"
                raise RuntimeError(f"{self.peer.title}: {reason}\n{self.processes.read_log()}")

    def post(self, request: Request) -> tuple[Any, bytes]:
        """Send one request and return the response's headers and body.

        Raises:
            RuntimeError: The status is not 200.
        """
        url = f"http://127.0.0.1:{self.http}{request.path}"
        message = urllib.request.Request(url, request.body, request.headers)
        try:
            with urllib.request.urlopen(message, timeout=60) as response:
                return response.headers, response.read()
        except urllib.error.HTTPError as error:
            body = error.read()[:500].decode(errors="replace")
            text = f"{self.peer.title}: {request.path} returned {error.code}: {body}\n{self.processes.read_log()}"
            raise RuntimeError(text) from None


def measure_graph(model: Path, rows: int, seconds: float) -> dict[str, float]:
    """Return the figures of the graph without a server, called with `rows` images, and `warm_up_seconds`."""
    argv = [
        str(prepare_environment(REQUIREMENTS / "graph.txt") / "python"),
        str(PEERS / "graph.py"),
        str(model),
        str(rows),
        str(seconds),
    ]
    output = subprocess.check_output(argv, env={**os.environ, "GLOG_v": "3", **FAST_KERNELS}, text=True)
    figures: dict[str, float] = json.loads(output)
    return figures
