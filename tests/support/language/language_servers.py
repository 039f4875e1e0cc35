"""Server processes with a language model, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import httpx

from tests.support.mindspore_processes import share_processes
from tests.support.ports import reserve_port

_SCRIPT = Path(__file__).with_name("language_server.py")
_MAIN = Path(__file__).with_name("model_server.py")


class LanguageServer:
    """A server process whose model is `chat`.

    Args:
        directory: For its bundle and its log.
        flags: Flags of the server.
        bundle: A real model's bundle, served by mindsporeserver itself; None for the decoder in NumPy.
    """

    def __init__(self, directory: Path, *flags: str, bundle: Path | None = None) -> None:
        port = reserve_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = directory / "log"
        self.log.touch()
        real = [_MAIN, f"--model_dir=chat={bundle}", "--enable_grpc=false"]
        arguments = [*(real if bundle else [_SCRIPT, directory / "bundle"]), f"--http_port={port}", *flags]
        self.process = share_processes().start(arguments, directory, environment=os.environ, log=self.log)
        self._wait_ready()

    def _wait_ready(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready:\n{self.log.read_text()[-3000:]}")

    def read_metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == name)

    def wait_metric(self, name: str, value: float, seconds: float = 20) -> None:
        """Wait until a metric has a value."""
        deadline = time.monotonic() + seconds
        while (found := self.read_metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {found}, not {value}"
            time.sleep(0.01)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def __enter__(self) -> LanguageServer:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
