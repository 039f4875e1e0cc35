"""Real server processes for tests, the bundles that they serve, and the outputs of a runner alone."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.mindspore_processes import MindSporeProcess, share_processes
from tests.support.ports import reserve_port

Arrays = dict[str, "np.ndarray[Any, Any]"]
_MODELS = Path(__file__).parents[1] / "models"


class ModelServer:
    """A server process in a session of its own.

    Args:
        directory: Directory of its log; also its working directory unless another is named.
        models: Directories by model name; one alone is given as `--model_name` and `--model_dir`.
        flags: More flags.
        environment: Variables to set, over this process's.
        cwd: Its working directory.
        prepare: Called in the child before it becomes the server; its log then comes by a pipe, as in a container.
        ports: For HTTP and gRPC; default reserved ones.
    """

    def __init__(
        self,
        directory: Path,
        models: dict[str, Path],
        *flags: str,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        prepare: Callable[[], None] | None = None,
        ports: Sequence[int] = (),
    ) -> None:
        self.port, self.grpc_port = ports or (reserve_port(), reserve_port())
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"server-{self.port}.log"
        if len(models) == 1:
            ((name, path),) = models.items()
            named = [f"--model_name={name}", f"--model_dir={path}"]
        else:
            named = [f"--model_dir={name}={path}" for name, path in models.items()]
        arguments = [*named, f"--http_port={self.port}", f"--grpc_port={self.grpc_port}", *flags]
        self.process: subprocess.Popen[bytes] | MindSporeProcess
        if environment is None and prepare is None and not any(flag.startswith("--workers") for flag in flags):
            self.process = start_server(arguments, cwd or directory, self.log)
            return
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mindsporeserver", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if prepare else log,
                stderr=subprocess.STDOUT,
                cwd=cwd or directory,
                env={**os.environ, **(environment or {})},
                preexec_fn=prepare,
                start_new_session=True,
            )
        if prepare:
            threading.Thread(target=self._copy_log, daemon=True).start()

    def _copy_log(self) -> None:
        assert isinstance(self.process, subprocess.Popen)
        assert self.process.stdout is not None
        with self.log.open("ab", buffering=0) as log, self.process.stdout as stream:
            for line in stream:
                log.write(line)

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str, *, timeout: float = 10) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def post(self, path: str, value: Any = None, *, timeout: float = 30) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            body = json.dumps(value).encode() if value is not None else b""
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content or b"null"), {k.lower(): v for k, v in response.getheaders()}
        finally:
            connection.close()

    def wait_ready(self, seconds: float = 240) -> ModelServer:
        """Wait until it is ready; fail with its log when it ends or is not ready in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.get("/v2/health/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready (exit code {self.process.poll()}):\n{self.read_log()[-4000:]}")

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def read_metrics(self) -> dict[str, float]:
        """Return samples by `name{labels}` as they are written."""
        samples = {}
        for line in self.get("/metrics")[1].decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def sum_metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            value
            for sample, value in self.read_metrics().items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )

    def read_memory(self) -> int:
        """Return the resident bytes of the process and its children."""
        return sum(_read_resident(pid) for pid in [self.pid, *_find_children(self.pid)])

    def read_peak_memory(self) -> int:
        """Return the most resident bytes that the process ever had."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) << 10

    def stop(self, seconds: float = 40) -> int:
        """Terminate it, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def ask_runners(questions: Mapping[Path, Sequence[Arrays]], scratch: Path) -> dict[Path, list[Arrays]]:
    """Return the outputs of runners alone, the reference of a server's responses.

    Args:
        questions: By model directory; each is computed alone, in a process that does nothing else.
        scratch: Directory of inputs and outputs.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    asked, answered = scratch / "asked.npz", scratch / "answered.npz"
    columns = {
        f"{path}:{index}:{name}": array
        for path, several in questions.items()
        for index, arrays in enumerate(several)
        for name, array in arrays.items()
    }
    np.savez(asked, **{str(number): array for number, array in enumerate(columns.values())}, keys=list(columns))
    code, output = share_processes().run([_MODELS / "runner_answers.py", asked, answered], scratch)
    assert code == 0, output
    results: dict[Path, list[Arrays]] = {path: [{} for _ in several] for path, several in questions.items()}
    with np.load(answered) as archive:
        for number, key in enumerate(archive["keys"].tolist()):
            path, index, name = key.rsplit(":", 2)
            results[Path(path)][int(index)][name] = archive[str(number)]
    return results


def start_server(arguments: Sequence[str], directory: Path, log: Path) -> MindSporeProcess:
    """Start a server without its import of MindSpore, with the variables of this process."""
    log.touch()
    return share_processes().start(["-m", "mindsporeserver", *arguments], directory, environment=os.environ, log=log)


def make_models(root: Path, script: str = "make_models.py") -> Path:
    """Run a script in tests/support/models, which writes bundles, in a separate process."""
    root.mkdir(parents=True, exist_ok=True)
    code, output = share_processes().run([_MODELS / script, root], root)
    assert code == 0, output
    return root


def _find_children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            found += [child, *_find_children(child)]
    return found


def _read_resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
