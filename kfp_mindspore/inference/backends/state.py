"""The directories of a local service, shared by clients and supervisors.

services/<namespace>/<name>/; a canary's is `.<name>-canary`, that of its traffic splitter `.<name>-traffic`
  current               number of the version that is the service; absent until one was ready
  previous              number of the version that `rollback` deploys again; absent if there is none
  versions/<number>/
    plan.json           `ServerSpec`, written by the deployment
    state.json          `ServerState`, written by the supervisor
    model/              the bundle as it was deployed
    server.log, server.log.1, supervisor.log
    work/               the server's working directory
    deploying           lease of the deployment until it is done
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

# Addresses of a server that listens on every address.
_LOOPBACKS = {"0.0.0.0": LOOPBACK, "::": "::1"}


@dataclass(frozen=True)
class ServerSpec:
    """The server that a supervisor runs.

    Args:
        name: Name of the service.
        namespace: Its namespace.
        version: Number of the version.
        source: The bundle that was deployed.
        argv: The server's command.
        port: Its HTTP port.
        grpc_port: Its gRPC port.
        replicas: Number of replicas requested.
        warnings: Requests that this machine does not honour.
        lease: File of the lease that the service must not outlive; None for none.
        max_restarts: Maximum number of restarts after consecutive crashes.
        stable_seconds: Seconds of readiness after which the count of consecutive crashes starts anew.
        grace_seconds: Seconds between SIGTERM and SIGKILL of the server.
        created: Time of the deployment, in seconds since the epoch.
        host: Listen address.
        service: Fields of the deployed `Service`; empty for a traffic splitter.
        percent: Percentage of the requests, of a canary.
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
        """The host in a URL of this machine."""
        host = _LOOPBACKS.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ServerSpec:
        """Rebuild a spec from JSON."""
        return cls(**{**value, "argv": tuple(value["argv"]), "warnings": tuple(value["warnings"])})


@dataclass(frozen=True)
class ServerState:
    """The state of a server, as recorded by its supervisor.

    Args:
        state: State of the service.
        supervisor: Identity of the supervisor.
        server: Identity of the server; None when none runs.
        restarts: Number of restarts.
        exit_code: Exit code of the last server; negative for a signal.
        message: Reason of the state.
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
    def from_dict(cls, value: Mapping[str, Any]) -> ServerState:
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
    """One deployment of a service."""

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
        """Output of the server."""
        return self.path / "server.log"

    @property
    def supervisor_log(self) -> Path:
        """Output of the supervisor; empty unless it fails itself."""
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
        """Return the server to run."""
        return ServerSpec.from_dict(self.read("plan.json"))

    def write_spec(self, spec: ServerSpec) -> None:
        """Write the server to run."""
        self.write("plan.json", asdict(spec))

    def read_state(self) -> ServerState | None:
        """Return the state that the supervisor recorded; None before the first."""
        try:
            return ServerState.from_dict(json.loads((self.path / "state.json").read_bytes()))
        except FileNotFoundError:
            return None

    def write_state(self, state: ServerState) -> None:
        """Record the state of the server."""
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
        """Create the directory of the next version."""
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
