"""What local services are on disk, so that any process can list, describe and end them.

services/<namespace>/<name>/
  lock                  held by whoever deploys, stops or deletes
  current               number of the version that is the service; absent until one was ready
  versions/<number>/
    plan.json           what the supervisor needs (`ServerSpec`)
    state.json          what the supervisor says (`State`)
    model/              the bundle as it was deployed
    server.log, server.log.1, supervisor.log
    work/               the server's working directory
    deploying           lease of the deployment until it is done
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.inference.service import LOOPBACK, ServiceState
from kfp_mindspore.local.process import ProcessIdentity

# Where a server answers that listens on every address.
_LOOPBACKS = {"0.0.0.0": LOOPBACK, "::": "::1"}


@dataclass(frozen=True)
class ServerSpec:
    """What a supervisor is to run.

    Args:
        name: Name of the service.
        namespace: Its namespace.
        version: Number of the version.
        source: The bundle that was deployed.
        argv: The server's command.
        port: Its HTTP port.
        grpc_port: Its gRPC port.
        replicas: How many were asked for.
        warnings: What was asked for and is not done.
        lease: File whose holder the service must not outlive; None for none.
        max_restarts: How many crashes in a row are followed by a restart.
        stable_seconds: How long a server must have been ready for its crash to count as the first in a row again.
        grace_seconds: How long the server may take to end, in seconds.
        created: When it was deployed, in seconds since the epoch.
        host: The address that its server listens on.
    """

    name: str
    namespace: str
    version: int
    source: str
    argv: tuple[str, ...]
    port: int
    grpc_port: int
    replicas: int = 1
    warnings: tuple[str, ...] = ()
    lease: str | None = None
    max_restarts: int = 5
    stable_seconds: float = 60.0
    grace_seconds: float = 5.0
    created: float = 0.0
    host: str = LOOPBACK

    @property
    def url(self) -> str:
        """The server's address over HTTP."""
        return f"http://{self._address}:{self.port}"

    @property
    def grpc_url(self) -> str:
        """The server's address over gRPC."""
        return f"{self._address}:{self.grpc_port}"

    @property
    def _address(self) -> str:
        """The host as it stands in an address, from this machine."""
        host = _LOOPBACKS.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ServerSpec:
        """Rebuild a plan from JSON."""
        return cls(**{**value, "argv": tuple(value["argv"]), "warnings": tuple(value["warnings"])})


@dataclass(frozen=True)
class State:
    """What a supervisor says about its server.

    Args:
        state: What the service is doing.
        supervisor: The supervisor itself.
        server: Its server; None when none runs.
        restarts: How often the server was restarted.
        exit_code: Of the last server that ended; negative for a signal.
        message: Why it is in this state.
    """

    state: ServiceState
    supervisor: ProcessIdentity
    server: ProcessIdentity | None = None
    restarts: int = 0
    exit_code: int | None = None
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        return {
            "state": self.state.value,
            "supervisor": self.supervisor.to_dict(),
            "server": self.server.to_dict() if self.server else None,
            "restarts": self.restarts,
            "exit_code": self.exit_code,
            "message": self.message,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> State:
        """Rebuild a state from `to_dict`'s result."""
        return cls(
            state=ServiceState(value["state"]),
            supervisor=ProcessIdentity.from_dict(value["supervisor"]),
            server=ProcessIdentity.from_dict(value["server"]) if value["server"] else None,
            restarts=value["restarts"],
            exit_code=value["exit_code"],
            message=value["message"],
        )


@dataclass(frozen=True)
class VersionDirectory:
    """One deployment of a service.

    Args:
        path: The directory.
    """

    path: Path

    @property
    def number(self) -> int:
        """The version's number."""
        return int(self.path.name)

    @property
    def model(self) -> Path:
        """The bundle as it was deployed."""
        return self.path / "model"

    @property
    def server_log(self) -> Path:
        """What the server prints."""
        return self.path / "server.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor prints: nothing, unless it crashes."""
        return self.path / "supervisor.log"

    @property
    def deploying(self) -> Path:
        """The lease of the deployment."""
        return self.path / "deploying"

    @property
    def work(self) -> Path:
        """The server's working directory."""
        return self.path / "work"

    @property
    def service(self) -> ServiceDirectory:
        """The service that this is a version of."""
        return ServiceDirectory(self.path.parent.parent)

    def read_spec(self) -> ServerSpec:
        """Return what the supervisor is to run."""
        return ServerSpec.from_dict(files.read_json(self.path / "plan.json"))

    def write_spec(self, plan: ServerSpec) -> None:
        """Say what the supervisor is to run."""
        files.write_json(self.path / "plan.json", asdict(plan))

    def read_state(self) -> State | None:
        """Return what the supervisor says; None before it said anything."""
        try:
            return State.from_dict(json.loads((self.path / "state.json").read_bytes()))
        except FileNotFoundError:
            return None

    def write_state(self, state: State) -> None:
        """Say how the server is."""
        files.write_json(self.path / "state.json", state.to_dict())


@dataclass(frozen=True)
class ServiceDirectory:
    """One service.

    Args:
        path: The directory; it may not exist.
    """

    path: Path

    @property
    def current(self) -> VersionDirectory | None:
        """The version that is the service, or None when there is none."""
        try:
            number = int((self.path / "current").read_text())
        except FileNotFoundError:
            return None
        return VersionDirectory(self.path / "versions" / str(number))

    def set_current(self, version: VersionDirectory) -> None:
        """Make a version the service."""
        files.write_text(self.path / "current", f"{version.number}\n")

    def list_versions(self) -> list[VersionDirectory]:
        """Return every version, whole or left by a deployment that was killed, oldest first."""
        root = self.path / "versions"
        names = sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdigit()) if root.is_dir() else []
        return [VersionDirectory(root / str(name)) for name in names]

    def add_version(self) -> VersionDirectory:
        """Make the directory of the next version."""
        versions = self.list_versions()
        current = self.current
        newest = max([version.number for version in versions] + [current.number if current else 0])
        path = self.path / "versions" / str(newest + 1)
        path.mkdir(parents=True)
        return VersionDirectory(path)

    def remove(self) -> None:
        """Forget the service; its processes must have ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until nobody else changes this service, and keep others waiting."""
        descriptor = self._open_lock()
        try:
            yield
        finally:
            # A directory that holds nothing but the lock is removed; one that another process made since is not ours.
            if self._is_locked_by(descriptor) and self.current is None and not self.list_versions():
                self.remove()
            os.close(descriptor)

    def _open_lock(self) -> int:
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Whoever held it may have removed the service, and this file with it.
                if self._is_locked_by(descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_locked_by(self, descriptor: int) -> bool:
        try:
            return (self.path / "lock").stat().st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            return False
