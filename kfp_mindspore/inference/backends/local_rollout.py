"""A rollout on this machine: the new version starts beside the old one and replaces it once it is ready."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
from kfp_mindspore.inference.backends.state import ServerSpec, ServiceDirectory, VersionDirectory
from kfp_mindspore.inference.backends.versions import discard, end_version, start_version
from kfp_mindspore.inference.logger import build_logger_flag
from kfp_mindspore.inference.service import Service
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.local.ports import is_port_free, list_free_ports

SERVER_MODULE = "mindsporeserver"
SPLITTER_MODULE = "kfp_mindspore.inference.splitter"
# Attempts with other free ports when another process binds a chosen one before the server starts.
_PORT_ATTEMPTS = 3


@dataclass(frozen=True)
class LocalServerOptions:
    """Options for all servers in a backend; see `LocalServingBackend`."""

    command: tuple[str, ...] | None
    max_restarts: int
    stable_seconds: float
    grace_seconds: float


@dataclass(frozen=True)
class LocalRollout:
    """One deployment for a service, a canary or a traffic splitter.

    Args:
        directory: The service, whose lock the caller has.
        service: The service.
        options: Server options.
        lease: Lease file that the version must not outlive; None without one.
        wait_seconds: Deployment timeout.
    """

    directory: ServiceDirectory
    service: Service
    options: LocalServerOptions
    lease: str | None
    wait_seconds: float

    def deploy_bundle(self, bundle: ModelBundle, *, keep_previous: bool = True, percent: int = 0) -> VersionDirectory:
        """Start a model server, make it the service and terminate the old version, which is kept for a rollback."""
        old, retired = self.directory.current, self.directory.previous

        def prepare(version: VersionDirectory, ports: Sequence[int]) -> None:
            version.work.mkdir()
            version.model.mkdir()
            # A link, not a copy: a bundle is replaced as a whole, never modified.
            for name in (*bundle.signature.files, SIGNATURE_FILE):
                _link(bundle.path / name, version.model / name)
            argv = self._build_command(version.model, *ports, percent=percent)
            record = {**dataclasses.asdict(self.service), "model_dir": str(self.service.model_dir)}
            spec = self._build_spec(version, argv, ports, _list_warnings(self.service))
            version.write_spec(dataclasses.replace(spec, service=record, percent=percent))

        version = self._replace(old, prepare)
        kept = old if keep_previous else None
        self.directory.set_previous(kept)
        for entry in (old, retired):
            if entry is not None and entry != kept:
                shutil.rmtree(entry.path, ignore_errors=True)
        return version

    def start_splitter(self, stable: str, canary: str, percent: int) -> VersionDirectory:
        """Start the process that splits requests between two servers, replacing another one."""
        old = self.directory.current

        def prepare(version: VersionDirectory, ports: Sequence[int]) -> None:
            version.work.mkdir()
            argv = (sys.executable, "-m", SPLITTER_MODULE, self.service.name, self.service.host, str(ports[0]))
            version.write_spec(self._build_spec(version, (*argv, stable, canary, str(percent)), ports, ()))

        version = self._replace(old, prepare)
        if old is not None:
            shutil.rmtree(old.path, ignore_errors=True)
        return version

    def _replace(
        self, old: VersionDirectory | None, prepare: Callable[[VersionDirectory, Sequence[int]], None]
    ) -> VersionDirectory:
        """Start the new version, make it the service and terminate the old one."""
        deadline = time.monotonic() + self.wait_seconds
        held = _get_ports(old)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            wanted = _resolve_ports(self.service, held)
            shared = held & set(wanted)
            first = tuple(list_free_ports(2)) if shared else wanted
            version = self.directory.add_version()
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(Lease.hold(version.deploying))
                    prepare(version, first)
                    try:
                        start_version(version, deadline, self.wait_seconds)
                    except ProcessFailedError:
                        if _was_port_taken(self.service, first) and attempt < _PORT_ATTEMPTS:
                            discard(version)
                            continue
                        raise
                    if shared and old is not None:
                        self._move(version, old, wanted, deadline)
                    self.directory.set_current(version)
                except BaseException:
                    discard(version)
                    raise
            if old is not None:
                end_version(old)
            return version
        raise AssertionError("the last attempt returns or raises")

    def _move(self, version: VersionDirectory, old: VersionDirectory, ports: Sequence[int], deadline: float) -> None:
        """Move a version that was ready to the old one's ports; when that fails, restart the old one."""
        spec = version.read_spec()
        port, grpc_port = ports
        end_version(version)
        end_version(old)
        argv = self._build_command(version.model, port, grpc_port)
        version.write_spec(dataclasses.replace(spec, argv=argv, port=port, grpc_port=grpc_port))
        try:
            start_version(version, deadline, self.wait_seconds)
        except BaseException:
            end_version(version)
            start_version(old, time.monotonic() + self.wait_seconds, self.wait_seconds)
            raise

    def _build_spec(
        self, version: VersionDirectory, argv: tuple[str, ...], ports: Sequence[int], warnings: tuple[str, ...]
    ) -> ServerSpec:
        return ServerSpec(
            name=self.service.name,
            namespace=self.service.namespace,
            version=version.number,
            source=str(self.service.model_dir),
            argv=argv,
            port=ports[0],
            grpc_port=ports[1],
            replicas=self.service.replicas,
            warnings=warnings,
            lease=self.lease,
            max_restarts=self.options.max_restarts,
            stable_seconds=self.options.stable_seconds,
            grace_seconds=self.options.grace_seconds,
            created=time.time(),
            host=self.service.host,
        )

    def _build_command(self, model: Path, port: int, grpc_port: int, *, percent: int = 0) -> tuple[str, ...]:
        command = self.options.command or (sys.executable, "-m", SERVER_MODULE)
        flags = (
            f"--model_name={self.service.name}",
            f"--model_dir={model}",
            f"--http_port={port}",
            f"--grpc_port={grpc_port}",
            f"--host={self.service.host}",
        )
        logging: tuple[str, ...] = ()
        if logger := self.service.logger:
            logging = (build_logger_flag(logger, self.service.name, self.service.namespace, is_canary=percent > 0),)
        return (*command, *flags, *logging, *self.service.server_args)


def _list_warnings(service: Service) -> tuple[str, ...]:
    warnings = []
    if service.replicas > 1:
        warnings.append(f"replicas: {service.replicas} requested, this machine runs 1")
    if any(service.resources.values()):
        warnings.append("resources: not enforced on this machine")
    if service.max_replicas > 1:
        warnings.append(f"max_replicas: {service.max_replicas} requested, this machine runs 1")
    if service.env_from:
        warnings.append("env_from: not set on this machine, which has no Secrets; set env")
    if service.volumes:
        warnings.append("volumes: not mounted on this machine")
    return tuple(warnings)


def _get_ports(version: VersionDirectory | None) -> set[int]:
    """Return a running version's ports."""
    if version is None:
        return set()
    state = version.read_state()
    spec = version.read_spec()
    return {spec.port, spec.grpc_port} if state is not None and state.supervisor.is_alive() else set()


def _resolve_ports(service: Service, held: set[int]) -> tuple[int, int]:
    """Return the ports for a service: the requested ones, else free ones."""
    for name, port in (("port", service.port), ("grpc_port", service.grpc_port)):
        if port and port not in held and not is_port_free(port):
            raise UserError(
                f"service {service.name}: {name} {port} is taken by another process",
                hint=f"End that process, or choose another {name}; 0 takes a free one.",
            )
    free = [port for port in list_free_ports(4) if port not in (service.port, service.grpc_port)]
    return service.port or free[0], service.grpc_port or free[1]


def _was_port_taken(service: Service, ports: Sequence[int]) -> bool:
    """Return whether another process took a port that the user did not choose."""
    chosen = {service.port, service.grpc_port}
    return any(port not in chosen and not is_port_free(port) for port in ports)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source.resolve())
    except OSError:
        # Another file system, or one without links.
        shutil.copyfile(source, target)
