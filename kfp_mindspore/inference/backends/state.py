"""A local service's directories, shared by clients and supervisors.

services/<namespace>/<name>/; a canary's is `.<name>-canary`, a traffic splitter's `.<name>-traffic`
  current               number of the version that is the service; absent until one was ready
  previous              number of the version that `rollback` deploys again; absent without one
  versions/<number>/
    plan.json           `ServerSpec`, written by the deployment
    state.json          `VersionState`, written by the supervisor
    model/              the bundle as it was deployed
    server.log, server.log.1, supervisor.log
    work/               the server's working directory
    deploying           the deployment's lease until it is done
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.inference.service import LOOPBACK, ServiceState
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.local.state import StateDirectory

# Addresses for a server that listens on every address.
_LOOPBACKS = {"0.0.0.0": LOOPBACK, "::": "::1"}


@dataclass(frozen=True)
class ServerSpec:
    """The server that a supervisor runs.

    Args:
        name: Service name.
        namespace: Service namespace.
        version: Version number.
        source: The bundle that was deployed.
        argv: The server's command.
        port: The server's HTTP port.
        grpc_port: The server's gRPC port.
        replicas: Replicas requested.
        warnings: Requests that this machine does not honour.
        lease: Lease file that the service must not outlive; None without one.
        max_restarts: Maximum restarts after consecutive crashes.
        stable_seconds: Ready seconds after which the consecutive crash count starts anew.
        grace_seconds: Seconds between SIGTERM and SIGKILL for the server.
        created: Deployment time, in seconds since the epoch.
        host: Listen address.
        service: The deployed `Service`'s fields; empty for a traffic splitter.
        percent: Percentage of requests, for a canary.
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
    service: Mapping[str, Any] = field(default_factory=dict)
    percent: int = 0

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
        """The host in a URL on this machine."""
        host = _LOOPBACKS.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ServerSpec:
        """Rebuild a spec from JSON."""
        return cls(**{**value, "argv": tuple(value["argv"]), "warnings": tuple(value["warnings"])})


@dataclass(frozen=True)
class VersionState:
    """A server's state, as recorded by the supervisor.

    Args:
        state: The service's state.
        supervisor: The supervisor's identity.
        server: The server's identity; None when none runs.
        restarts: Restart count.
        exit_code: The last server's exit code; negative for a signal.
        message: The state's reason.
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
    def from_dict(cls, value: Mapping[str, Any]) -> VersionState:
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
class VersionDirectory(StateDirectory):
    """One service deployment."""

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
        """The server's output."""
        return self.path / "server.log"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's output; empty unless it fails itself."""
        return self.path / "supervisor.log"

    @property
    def deploying(self) -> Path:
        """The deployment's lease."""
        return self.path / "deploying"

    @property
    def work(self) -> Path:
        """The server's working directory."""
        return self.path / "work"

    @property
    def service(self) -> ServiceDirectory:
        """The service that this version belongs to."""
        return ServiceDirectory(self.path.parent.parent)

    def read_spec(self) -> ServerSpec:
        """Return the server to run."""
        return ServerSpec.from_dict(self.read("plan.json"))

    def write_spec(self, spec: ServerSpec) -> None:
        """Write the server to run."""
        self.write("plan.json", asdict(spec))

    def read_state(self) -> VersionState | None:
        """Return the state that the supervisor recorded; None before the first."""
        try:
            return VersionState.from_dict(json.loads((self.path / "state.json").read_bytes()))
        except FileNotFoundError:
            return None

    def write_state(self, state: VersionState) -> None:
        """Record the server's state."""
        self.write("state.json", state.to_dict())


@dataclass(frozen=True)
class ServiceDirectory(StateDirectory):
    """One service."""

    @property
    def current(self) -> VersionDirectory | None:
        """The version that is the service, or None."""
        return self._read_version("current")

    @property
    def previous(self) -> VersionDirectory | None:
        """The stopped version that `rollback` deploys again, or None."""
        return self._read_version("previous")

    def set_current(self, version: VersionDirectory) -> None:
        """Make a version the service."""
        files.write_text(self.path / "current", f"{version.number}\n")

    def set_previous(self, version: VersionDirectory | None) -> None:
        """Keep a version for a rollback, or none."""
        if version is None:
            (self.path / "previous").unlink(missing_ok=True)
        else:
            files.write_text(self.path / "previous", f"{version.number}\n")

    def list_versions(self) -> list[VersionDirectory]:
        """Return every version, also those that a killed deployment left, oldest first."""
        root = self.path / "versions"
        names = sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdigit()) if root.is_dir() else []
        return [VersionDirectory(root / str(name)) for name in names]

    def add_version(self) -> VersionDirectory:
        """Create the next version's directory."""
        current = self.current
        numbers = [version.number for version in self.list_versions()]
        path = self.path / "versions" / str(max([0, current.number if current else 0, *numbers]) + 1)
        path.mkdir(parents=True)
        return VersionDirectory(path)

    def _read_version(self, name: str) -> VersionDirectory | None:
        try:
            number = int((self.path / name).read_text())
        except FileNotFoundError:
            return None
        return VersionDirectory(self.path / "versions" / str(number))

    def remove_if_empty(self) -> None:
        """Remove the directory of a service without versions."""
        if self.current is None and not self.list_versions():
            self.remove()
