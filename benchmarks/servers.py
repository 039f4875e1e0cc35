"""The servers of benchmarks/serving.py: an environment, a process and what it costs, for each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import MODEL, Request

HERE = Path(__file__).parent
PEERS = HERE / "peers" / "serving"
ENVIRONMENTS = HERE / ".environments"
MARK = "KFP_MINDSPORE_BENCHMARK"
START_TIMEOUT = 240.0
STOP_TIMEOUT = 20.0
COMMON = {"GLOG_v": "3"}
# oneDNN 3.10 has no fast convolution for AVX-512 in the layout that MindSpore 2.9 asks for, and takes a reference one
# that is up to 60 times slower. mindsporeserver chooses by itself; no documentation tells a user. So the peers are
# measured as they come, the limit with the better one, and stock also with it, to tell what is due to the server. A
# larger convolutional network takes a second an image without it: there all get it.
FAST_KERNELS = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
# MindSpore's old protobuf modules load beside a framework's newer ones with protobuf's implementation in Python only.
PURE_PROTOBUF = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONPATH": str(PEERS)}


@dataclass(frozen=True)
class Peer:
    """How a server is started.

    Args:
        name: Its name in results.
        title: Its name in pictures and tables.
        requirements: Name of its requirements file in peers/serving; empty for this environment.
        command: Makes its command line of (its environment's programs, model directory, HTTP port, gRPC port).
        ready: The path that answers 200 when it is ready.
        environment: Variables besides what all get; `{scratch}`, `{http}`, `{grpc}` and `{metrics}` are filled in.
    """

    name: str
    title: str
    requirements: str
    command: Callable[[Path, Path, int, int], Sequence[str]]
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)


def _command_ours(bin_directory: Path, model: Path, http: int, grpc: int) -> list[str]:
    return [
        str(bin_directory / "python"),
        "-m",
        "mindsporeserver",
        f"--model_name={MODEL}",
        f"--model_dir={model}",
        f"--http_port={http}",
        f"--grpc_port={grpc}",
        "--enable_grpc=true",
    ]


def _command_stock(bin_directory: Path, model: Path, http: int, grpc: int) -> list[str]:
    script = str(PEERS / "stock.py")
    return [
        str(bin_directory / "python"),
        script,
        f"--model_name={MODEL}",
        f"--http_port={http}",
        f"--grpc_port={grpc}",
        "--enable_grpc=true",
    ]


def _command_asgi(bin_directory: Path, model: Path, http: int, grpc: int) -> list[str]:
    return [str(bin_directory / "python"), str(PEERS / "asgi.py"), str(http)]


def _command_mlserver(bin_directory: Path, model: Path, http: int, grpc: int) -> list[str]:
    return [str(bin_directory / "mlserver"), "start", str(PEERS / "mlserver_model")]


def _command_bentoml(bin_directory: Path, model: Path, http: int, grpc: int) -> list[str]:
    address = ["--host=127.0.0.1", f"--port={http}"]
    return [str(bin_directory / "bentoml"), "serve", "bento:Predictor", f"--working-dir={PEERS}", *address]


def _command_ray(bin_directory: Path, model: Path, http: int, grpc: int) -> list[str]:
    return [str(bin_directory / "python"), str(PEERS / "ray_serve.py"), str(http)]


SERVERS = {
    peer.name: peer
    for peer in (
        Peer("ours", "mindsporeserver", "", _command_ours, f"/v2/models/{MODEL}/ready"),
        Peer("stock", "kserve.Model", "kserve", _command_stock, f"/v2/models/{MODEL}/ready"),
        Peer(
            "stock-avx2",
            "kserve.Model, AVX2",
            "kserve",
            _command_stock,
            f"/v2/models/{MODEL}/ready",
            FAST_KERNELS,
        ),
        Peer("asgi", "bare ASGI", "asgi", _command_asgi, "/"),
        Peer(
            "mlserver",
            "MLServer",
            "mlserver",
            _command_mlserver,
            f"/v2/models/{MODEL}/ready",
            {
                "MLSERVER_HTTP_PORT": "{http}",
                "MLSERVER_GRPC_PORT": "{grpc}",
                "MLSERVER_METRICS_PORT": "{metrics}",
                **PURE_PROTOBUF,
            },
        ),
        Peer(
            "bentoml",
            "BentoML",
            "bentoml",
            _command_bentoml,
            "/readyz",
            {"BENTOML_HOME": "{scratch}/bentoml", "BENTOML_DO_NOT_TRACK": "1", **PURE_PROTOBUF},
        ),
        Peer(
            "ray",
            "Ray Serve",
            "ray",
            _command_ray,
            "/",
            {
                "RAY_HOME": "{scratch}/ray",
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
                **PURE_PROTOBUF,
            },
        ),
    )
}


def prepare_environment(requirements: str) -> Path:
    """Return the directory of the programs of a peer's environment, made from its requirements when they changed.

    Args:
        requirements: Name of a file in peers/serving, or empty for the environment that runs this.

    Raises:
        RuntimeError: It cannot be installed.
    """
    if not requirements:
        return Path(sys.executable).parent
    file = PEERS / f"{requirements}.txt"
    directory = ENVIRONMENTS / requirements
    stamp = directory / "installed"
    wanted = hashlib.sha256(file.read_bytes() + platform.python_version().encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return directory / "bin"
    print(f"installing {file.name} into {directory} …", file=sys.stderr, flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if uv:
        _install([uv, "venv", "--quiet", "--python", sys.executable, str(directory)])
        _install([uv, "pip", "install", "--quiet", "--python", str(directory / "bin" / "python"), "-r", str(file)])
    else:
        _install([sys.executable, "-m", "venv", str(directory)])
        _install([str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(file)])
    stamp.write_text(wanted)
    return directory / "bin"


def _install(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} left with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")


def find_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """A command and all that it starts, found by a mark in their environment even when they are nobody's children.

    Args:
        argv: The command.
        environment: Variables besides this process' own.
        scratch: Its working directory, and where its output goes.
        **options: subprocess.Popen's own.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], scratch: Path, **options: Any) -> None:
        self._mark = f"{MARK}={uuid.uuid4().hex}".encode()
        self.log = scratch / "log"
        name, value = self._mark.decode().split("=")
        inherited = {key: text for key, text in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                env={**inherited, **COMMON, **environment, name: value},
                cwd=scratch,
                stderr=log,
                **{"stdout": log, **options},
            )

    def list_pids(self) -> list[int]:
        """Return the processes that carry the mark."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self._mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def read_cpu_seconds(self) -> float:
        """Return the seconds of both kinds that the living processes and their reaped children have used."""
        ticks = 0
        for pid in self.list_pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(int(fields[index]) for index in (11, 12, 13, 14))
        return ticks / os.sysconf("SC_CLK_TCK")

    def read_peak_memory(self) -> float:
        """Return the peaks of the living processes' resident memory, added up, in MB."""
        total = 0
        for pid in self.list_pids():
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return total / 1024

    def read_log(self) -> str:
        """Return the end of what it wrote."""
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """End all of them: SIGTERM to the first, SIGKILL to what is left."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.list_pids():
            with contextlib.suppress(ProcessLookupError):
                _kill(pid)


def _kill(pid: int) -> None:
    """Kill a process, and return when it has ended."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], STOP_TIMEOUT)
    finally:
        os.close(process)


class Server:
    """A peer that was started and is ready.

    Args:
        peer: Which one.
        bin_directory: The programs of its environment.
        model: The bundle.
        scratch: A directory of its own.
        environment: Variables besides the peer's.

    Raises:
        RuntimeError: It ended, or did not become ready; the end of its log is in the message.
    """

    def __init__(
        self,
        peer: Peer,
        bin_directory: Path,
        model: Path,
        scratch: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.peer = peer
        self.http, self.grpc, metrics = find_port(), find_port(), find_port()
        scratch.mkdir(parents=True, exist_ok=True)
        filled = {
            name: value.format(scratch=scratch, http=self.http, grpc=self.grpc, metrics=metrics)
            for name, value in peer.environment.items()
        }
        argv = peer.command(bin_directory, model, self.http, self.grpc)
        start = time.perf_counter()
        self.processes = Processes(argv, {"MODEL_DIR": str(model), **filled, **(environment or {})}, scratch)
        try:
            self._wait(start + START_TIMEOUT)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.perf_counter() - start

    def _wait(self, deadline: float) -> None:
        url = f"http://127.0.0.1:{self.http}{self.peer.ready}"
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.02)
            code = self.processes.process.poll()
            if code is not None or time.perf_counter() > deadline:
                what = f"ended with {code}" if code is not None else f"is not ready after {START_TIMEOUT:.0f} s"
                raise RuntimeError(f"{self.peer.title} {what}:\n{self.processes.read_log()}")

    def post(self, request: Request) -> tuple[Any, bytes]:
        """Send one request and return the answer's headers and body.

        Raises:
            RuntimeError: The answer is not 200.
        """
        url = f"http://127.0.0.1:{self.http}{request.path}"
        message = urllib.request.Request(url, request.body, request.headers)
        try:
            with urllib.request.urlopen(message, timeout=60) as answer:
                return answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            content = error.read()[:500].decode(errors="replace")
            raise RuntimeError(
                f"{self.peer.title} answers {request.path} with {error.code}: {content}\n{self.processes.read_log()}"
            ) from None

    def stop(self) -> None:
        """End its processes."""
        self.processes.stop()


class Graph:
    """The graph alone, in a process of its own that measures itself.

    Args:
        bin_directory: The programs of its environment.
        model: The bundle.
        scratch: A directory of its own.
    """

    def __init__(self, bin_directory: Path, model: Path, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.processes = Processes(
            [str(bin_directory / "python"), str(PEERS / "graph.py"), str(model)],
            FAST_KERNELS,
            scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.warm_up_seconds: float = self._read()["warm_up_seconds"]
        except BaseException:
            self.stop()
            raise

    def measure(self, rows: int, seconds: float) -> dict[str, Any]:
        """Return requests, images_per_second, p50_ms and p99_ms of calls with some rows, for some seconds."""
        assert self.processes.process.stdin is not None
        self.processes.process.stdin.write(f"{rows} {seconds}\n")
        self.processes.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End the process."""
        self.processes.stop()

    def _read(self) -> dict[str, Any]:
        assert self.processes.process.stdout is not None
        line = self.processes.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the graph's process ended:\n{self.processes.read_log()}")
        value = json.loads(line)
        assert isinstance(value, dict)
        return value
