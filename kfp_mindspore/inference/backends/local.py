"""The local backend: services as processes of this machine, each with its own detached supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kfp_mindspore import files
from kfp_mindspore.errors import (
    KfpMindSporeError,
    MissingExtraError,
    NotFoundError,
    ProcessFailedError,
    UserError,
)
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
from kfp_mindspore.inference.backends.base import ServingBackend
from kfp_mindspore.inference.backends.state import ServerSpec, ServiceDirectory, VersionDirectory
from kfp_mindspore.inference.backends.versions import discard, end_version, get_status, read_logs, start_version
from kfp_mindspore.inference.service import Service, ServiceStatus
from kfp_mindspore.local.lease import Lease, is_lease_held
from kfp_mindspore.local.ports import is_port_free, list_free_ports
from kfp_mindspore.settings import LEASE_VARIABLE

SERVER_MODULE = "mindsporeserver"
# Attempts with other free ports when another process binds a chosen one before the server starts.
_PORT_ATTEMPTS = 3

_logger = logging.getLogger(__name__)


class LocalServing(ServingBackend):
    """Runs each service as a model server of this machine.

    Args:
        home: Directory of local state; default `$KFP_MINDSPORE_HOME` or `~/.kfp-mindspore`.
        command: Program and first arguments of the server, which also gets kserve.ModelServer's `--model_name=`,
            `--http_port=` and `--grpc_port=`, and `--model_dir=`, `--host=` and the service's own flags; default
            mindsporeserver.
        max_restarts: Maximum number of restarts after consecutive crashes.
        stable_seconds: Seconds of readiness after which the count of consecutive crashes starts anew.
        grace_seconds: Seconds between SIGTERM and SIGKILL of a server.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        command: Sequence[str] | None = None,
        max_restarts: int = 5,
        stable_seconds: float = 60.0,
        grace_seconds: float = 5.0,
    ) -> None:
        self._root = (home or files.get_home()).absolute() / "services"
        self._command = tuple(command) if command is not None else None
        self._max_restarts = max_restarts
        self._stable_seconds = stable_seconds
        self._grace_seconds = grace_seconds

    def deploy(self, service: Service, *, wait_seconds: float, lease: Lease | None) -> ServiceStatus:
        """Start a service, or its new version, and return when it is ready.

        When the old version listens on the requested port, the new one first becomes ready on another port and then
        moves to the requested one, with a gap of its start-up time.
        """
        bundle = _open_bundle(service)
        _check_flags(service)
        if self._command is None and importlib.util.find_spec("kserve") is None:
            raise MissingExtraError("kserve", "serving")
        deadline = time.monotonic() + wait_seconds
        directory = self._get_directory(service.name, service.namespace)
        lease_path = str(lease.path) if lease else os.environ.get(LEASE_VARIABLE) or None
        if lease_path and not is_lease_held(lease_path):
            raise KfpMindSporeError(
                f"service {service.name}: the run that it would belong to is over: {lease_path} is not held",
                hint=f"Unset {LEASE_VARIABLE} for a service that outlives its run.",
            )
        with directory.lock():
            old = directory.current
            self._sweep(directory)
            try:
                new = self._replace(directory, old, service, bundle, lease_path, deadline, wait_seconds)
            except BaseException:
                directory.remove_if_empty()
                raise
            if old is not None:
                shutil.rmtree(old.path, ignore_errors=True)
        status = get_status(new)
        for warning in status.warnings:
            _logger.warning("service %s: %s", service.name, warning)
        return status

    def get(self, name: str, namespace: str) -> ServiceStatus:
        """Return the status of a service, with a readiness probe of its server."""
        while True:
            version = self._get_current(name, namespace)
            try:
                status = get_status(version)
            except UserError:
                # Replaced by a new version meanwhile: retry with that.
                if self._get_current(name, namespace) == version:
                    raise
                continue
            if self._get_current(name, namespace) == version:
                return status

    def list(self, namespace: str | None) -> list[ServiceStatus]:
        """Return the services of a namespace, or of all."""
        statuses = []
        # Hidden entries are locks, and directories that are being removed.
        for path in sorted(self._root.glob(f"{namespace or '*'}/[!.]*")):
            # A service without a version was never ready, or is being deleted.
            with contextlib.suppress(NotFoundError):
                statuses.append(self.get(path.name, path.parent.name))
        return statuses

    def read_logs(self, name: str, namespace: str, *, follow: bool, lines: int | None) -> Iterator[str]:
        """Yield the log lines of a service."""
        return read_logs(self._get_current(name, namespace), follow, lines)

    def stop(self, name: str, namespace: str) -> ServiceStatus:
        """Terminate a service's processes; its state and its log are kept."""
        directory = self._get_directory(name, namespace)
        self._get_current(name, namespace)
        with directory.lock():
            self._sweep(directory)
            version = self._get_current(name, namespace)
            end_version(version)
            return get_status(version)

    def delete(self, name: str, namespace: str) -> None:
        """Terminate a service's processes and remove its directory."""
        directory = self._get_directory(name, namespace)
        self._get_current(name, namespace)
        with directory.lock():
            for version in directory.list_versions():
                end_version(version)
            directory.remove()

    def _replace(
        self,
        directory: ServiceDirectory,
        old: VersionDirectory | None,
        service: Service,
        bundle: ModelBundle,
        lease: str | None,
        deadline: float,
        wait_seconds: float,
    ) -> VersionDirectory:
        """Start the new version, make it the service and terminate the old one."""
        held = _get_ports(old)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            wanted = _resolve_ports(service, held)
            shared = held & set(wanted)
            first = tuple(list_free_ports(2)) if shared else wanted
            version = directory.add_version()
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(Lease.hold(version.deploying))
                    self._prepare(version, service, bundle, first, lease)
                    try:
                        start_version(version, deadline, wait_seconds)
                    except ProcessFailedError:
                        if _was_port_taken(service, first) and attempt < _PORT_ATTEMPTS:
                            discard(version)
                            continue
                        raise
                    if shared and old is not None:
                        self._move(version, old, service, wanted, deadline, wait_seconds)
                    directory.set_current(version)
                except BaseException:
                    discard(version)
                    raise
            if old is not None:
                end_version(old)
            return version
        raise AssertionError("the last attempt returns or raises")

    def _prepare(
        self,
        version: VersionDirectory,
        service: Service,
        bundle: ModelBundle,
        ports: Sequence[int],
        lease: str | None,
    ) -> None:
        version.work.mkdir()
        version.model.mkdir()
        # A link, not a copy: a bundle is replaced as a whole, never modified.
        for name in (*bundle.signature.files, SIGNATURE_FILE):
            _link(bundle.path / name, version.model / name)
        port, grpc_port = ports
        spec = ServerSpec(
            name=service.name,
            namespace=service.namespace,
            version=version.number,
            source=str(bundle.path.absolute()),
            argv=self._build_command(service, version.model, port, grpc_port),
            port=port,
            grpc_port=grpc_port,
            replicas=service.replicas,
            warnings=_list_warnings(service),
            lease=lease,
            max_restarts=self._max_restarts,
            stable_seconds=self._stable_seconds,
            grace_seconds=self._grace_seconds,
            created=time.time(),
            host=service.host,
        )
        version.write_spec(spec)

    def _build_command(self, service: Service, model: Path, port: int, grpc_port: int) -> tuple[str, ...]:
        command = self._command or (sys.executable, "-m", SERVER_MODULE)
        flags = (
            f"--model_name={service.name}",
            f"--model_dir={model}",
            f"--http_port={port}",
            f"--grpc_port={grpc_port}",
            f"--host={service.host}",
        )
        return (*command, *flags, *service.server_args)

    def _move(
        self,
        version: VersionDirectory,
        old: VersionDirectory,
        service: Service,
        ports: Sequence[int],
        deadline: float,
        wait_seconds: float,
    ) -> None:
        """Move a version that was ready to the ports of the old one; when that fails, restart the old one."""
        spec = version.read_spec()
        port, grpc_port = ports
        end_version(version)
        end_version(old)
        argv = self._build_command(service, version.model, port, grpc_port)
        version.write_spec(dataclasses.replace(spec, argv=argv, port=port, grpc_port=grpc_port))
        try:
            start_version(version, deadline, wait_seconds)
        except BaseException:
            end_version(version)
            start_version(old, time.monotonic() + wait_seconds, wait_seconds)
            raise

    def _sweep(self, directory: ServiceDirectory) -> None:
        """Remove versions left by a killed deployment."""
        current = directory.current
        for version in directory.list_versions():
            if current is None or version.number != current.number:
                discard(version)

    def _get_directory(self, name: str, namespace: str) -> ServiceDirectory:
        return ServiceDirectory(self._root / namespace / name)

    def _get_current(self, name: str, namespace: str) -> VersionDirectory:
        current = self._get_directory(name, namespace).current
        if current is None:
            raise NotFoundError(
                f"service {name}: there is none in namespace {namespace}",
                hint="See those that are there: kfp-mindspore service list",
            )
        return current


def _open_bundle(service: Service) -> ModelBundle:
    if "://" in str(service.model_dir):
        raise UserError(
            f"service {service.name}: model_dir: must be a directory of this machine, got {service.model_dir}",
            hint="Download the bundle first, or deploy to a cluster.",
        )
    return ModelBundle.open(service.model_dir)


def _check_flags(service: Service) -> None:
    for flag in service.server_args:
        name = flag.partition("=")[0]
        if name.replace("-", "_").startswith("__ssl_"):
            raise UserError(
                f"service {service.name}: server_args: {name}: must not be set on this machine, where its supervisor "
                "probes readiness over plain HTTP",
                hint="For HTTPS run the server itself: python -m mindsporeserver --ssl_certfile=… --ssl_keyfile=…",
            )


def _list_warnings(service: Service) -> tuple[str, ...]:
    warnings = []
    if service.replicas > 1:
        warnings.append(f"replicas: {service.replicas} requested, this machine runs 1")
    if any(service.resources.values()):
        warnings.append("resources: not enforced on this machine")
    return tuple(warnings)


def _get_ports(version: VersionDirectory | None) -> set[int]:
    """Return the ports of a running version."""
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
