"""One real server process a bundle, shared by the module's tests."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.mindspore_processes import MindSporeProcess
from tests.support.ports import reserve_port
from tests.support.serving.model_servers import start_server as start_process
from tests.support.training.jobs import eventually


@dataclass
class Server:
    process: MindSporeProcess
    port: int
    grpc_port: int
    log: Path

    def request(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Send GET, or POST when there is a body; return status, body (parsed when it is JSON) and headers."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json", **(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                status, content, found = response.status, response.read(), dict(response.headers)
        except urllib.error.HTTPError as error:
            status, content, found = error.code, error.read(), dict(error.headers)
        is_json = "inference-header-content-length" not in {name.lower() for name in found}
        return status, json.loads(content) if is_json else content, found

    def wait(self, path: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.request(path)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        pytest.fail(f"{path} did not answer 200:\n{self.log.read_text()[-3000:]}")

    def wait_for_log(self, text: str) -> str:
        """Return the log once it holds a text; a thread of the server writes it, after the response."""
        return eventually(lambda: text in (log := self.log.read_text()) and log, 60)


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:

        def start(bundle: Path, name: str = "digits", *flags: str) -> Server:
            port, grpc_port = reserve_port(), reserve_port()
            directory = tmp_path_factory.mktemp("server")
            arguments = [f"--model_name={name}", f"--model_dir={bundle}"]
            arguments += [f"--http_port={port}", f"--grpc_port={grpc_port}", *flags]
            process = start_process(arguments, directory, directory / "log")
            stack.callback(process.wait)
            stack.callback(process.kill)
            return Server(process, port, grpc_port, directory / "log")

        yield start


@pytest.fixture(scope="session")
def server(models: Path, start_server: Callable[..., Server]) -> Server:
    """A server of the digits classifier, ready."""
    started = start_server(models / "free")
    started.wait("/v2/health/ready")
    return started


@pytest.fixture(scope="session")
def pair_server(models: Path, start_server: Callable[..., Server]) -> Server:
    """A server of the model with two inputs and two outputs, ready."""
    started = start_server(models / "pair", "pair")
    started.wait("/v2/health/ready")
    return started
