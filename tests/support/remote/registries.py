"""docker-registry processes on 127.0.0.1, with TLS and logins if needed, and a proxy that injects faults."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import Handler, Server

BINARY = "docker-registry"
MISSING = f"{BINARY} is not installed: apt-get install docker-registry"
USER, PASSWORD = "reader", "correct horse"
# bcrypt of PASSWORD.
_HASH = "$2y$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e"
_LISTENING = re.compile(r"listening on [^ \"]*:(\d+)")
_START_SECONDS = 60.0


def list_build_words(source: Path, base: str, host: str, repository: str) -> list[str]:
    """Return the command `image build` for a registry with plain HTTP."""
    words = [sys.executable, "-m", "kfp_mindspore.cli.main", "image", "build", str(source), "--base", base]
    return [*words, "--to", f"{host}/{repository}", "--insecure", host]


def require_binary() -> None:
    """Skip the test when docker-registry is not installed."""
    if shutil.which(BINARY) is None:
        pytest.skip(MISSING)


class Registry:
    """A docker-registry process with a folder of its own.

    Args:
        root: Folder for its configuration, log and storage.
        storage: Folder of the blobs; below `root` by default.
        htpasswd: Whether it requires USER and PASSWORD.
        tls: Certificate and key files; plain HTTP without.
        token: Settings of docker-registry's token authentication.
        address: Address to listen on.
    """

    def __init__(
        self,
        root: Path,
        *,
        storage: Path | None = None,
        htpasswd: bool = False,
        tls: tuple[Path, Path] | None = None,
        token: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.storage = storage or root / "storage"
        settings: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "info", "formatter": "json"},
            "storage": {
                "filesystem": {"rootdirectory": str(self.storage)},
                "delete": {"enabled": True},
                "maintenance": {"uploadpurging": {"enabled": False}},
            },
            "http": {"addr": f"{address}:0", "secret": "of a test"},
        }
        if tls:
            settings["http"]["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
        if htpasswd:
            (root / "htpasswd").write_text(f"{USER}:{_HASH}\n")
            settings["auth"] = {"htpasswd": {"realm": "test", "path": str(root / "htpasswd")}}
        if token:
            settings["auth"] = {"token": dict(token)}
        # JSON is YAML.
        (root / "config.yml").write_text(json.dumps(settings))
        self._log = root / "registry.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([BINARY, "serve", str(root / "config.yml")], stdout=log, stderr=log)
        self.port = self._wait()
        self.host = f"{address}:{self.port}"

    def _wait(self) -> int:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if found := _LISTENING.search(self._log.read_text()):
                return int(found[1])
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.02)
        self.close()
        raise AssertionError(f"docker-registry did not start: {self._log.read_text()}")

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def list_tags(self, repository: str) -> list[str]:
        """Return the tags on disk."""
        folder = self._repository(repository) / "_manifests" / "tags"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def list_uploads(self, repository: str) -> list[str]:
        """Return the uploads with stored bytes, neither finished nor cancelled."""
        return sorted(path.parent.name for path in (self._repository(repository) / "_uploads").glob("*/data"))

    def remove_repository(self, repository: str) -> None:
        """Remove a repository from the disk."""
        shutil.rmtree(self._repository(repository))

    def _repository(self, repository: str) -> Path:
        return self.storage / "docker/registry/v2/repositories" / repository


@contextlib.contextmanager
def start_registry(root: Path, **options: Any) -> Iterator[Registry]:
    """Run a registry for a block."""
    registry = Registry(root, **options)
    try:
        yield registry
    finally:
        registry.close()


@dataclass
class Fault:
    """A fault that a proxy injects into requests.

    Args:
        method: HTTP method, such as `PATCH`.
        path: Regular expression that the path matches.
        status: Status to return without forwarding the request.
        headers: Headers of that response, or replacements of the registry's.
        body: Body of that response.
        cut_after: Bytes of the request body to forward before both connections are reset.
        loses_response: Whether the connection is reset after the registry's response.
        times: Number of requests; -1 for all.
        skip: Number of requests to forward first.
        before: Called with the path before anything else.
    """

    method: str
    path: str = "."
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    loses_response: bool = False
    times: int = 1
    skip: int = 0
    before: Callable[[str], None] | None = None


class FaultProxy(Server):
    """A proxy of a registry; `requests` lists the requests, as `METHOD path`."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(_Handler)
        self.registry = registry
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.body_bytes = 0
        self.lock = threading.Lock()

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_address[1]}"

    def take_fault(self, method: str, path: str) -> Fault | None:
        """Return the first fault for a request, and count it."""
        with self.lock:
            for fault in self.faults:
                if not fault.times or fault.method != method or not re.search(fault.path, path):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None


class _Handler(Handler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        with self.server.lock:
            self.server.requests.append(f"{self.command} {self.path}")
        fault = self.server.take_fault(self.command, self.path)
        if fault and fault.before:
            fault.before(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if fault and fault.status:
            self._discard(length)
            self._answer(fault.status, {"Content-Length": str(len(fault.body)), **fault.headers}, fault.body)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.registry.port, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders()
            if fault and fault.cut_after is not None:
                self._pass_on(upstream, min(length, fault.cut_after))
                assert upstream.sock is not None
                _reset(self.connection)
                upstream.sock.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self._pass_on(upstream, length)
            response = upstream.getresponse()
            body = response.read()
            if fault and fault.loses_response:
                _reset(self.connection)
                self.close_connection = True
                return
            headers = {name: value for name, value in response.getheaders() if name.lower() != "transfer-encoding"}
            if "Content-Length" not in headers:
                headers["Content-Length"] = str(len(body))
            self._answer(response.status, {**headers, **(fault.headers if fault else {})}, body)
        finally:
            upstream.close()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def _discard(self, length: int) -> None:
        while length:
            length -= len(self.rfile.read(min(length, 1 << 20)))

    def _pass_on(self, upstream: http.client.HTTPConnection, length: int) -> None:
        while length:
            chunk = self.rfile.read(min(length, 1 << 16))
            if not chunk:
                return
            length -= len(chunk)
            with self.server.lock:
                self.server.body_bytes += len(chunk)
            upstream.send(chunk)

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _reset(connection: socket.socket) -> None:
    """Reset a connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RD)
    connection.close()


def write_login(file: Path, host: str, username: str = USER, password: str = PASSWORD) -> Path:
    """Write docker's config.json with one login."""
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    file.write_text(json.dumps({"auths": {host: {"auth": pair}}}))
    return file


def unpack_image(reference: str, folder: Path, platform: str = "linux/amd64") -> tuple[Path, dict[str, Any]]:
    """Read an image by skopeo and umoci; return its files and configuration."""
    for program in ("skopeo", "umoci"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {program}")
    folder.mkdir(exist_ok=True)
    system, architecture, *variant = platform.split("/")
    choice = ["--override-os", system, "--override-arch", architecture]
    choice += ["--override-variant", variant[0]] if variant else []
    for command in (
        ["skopeo", *choice, "copy", "--src-tls-verify=false", f"docker://{reference}", f"oci:{folder}/layout:x"],
        ["umoci", "unpack", "--rootless", "--image", f"{folder}/layout:x", f"{folder}/bundle"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    inspect = ["skopeo", *choice, "inspect", "--config", "--tls-verify=false", f"docker://{reference}"]
    configuration = json.loads(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)
    return folder / "bundle" / "rootfs", configuration
