"""The local backend: services as processes on this machine, each with a detached supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference.backends.base import ServingBackend
from kfp_mindspore.inference.backends.local_rollout import LocalRollout, LocalServerOptions
from kfp_mindspore.inference.backends.state import ServerSpec, ServiceDirectory, VersionDirectory
from kfp_mindspore.inference.backends.versions import discard, end_version, get_status, read_logs
from kfp_mindspore.inference.logger import resolve_path
from kfp_mindspore.inference.service import (
    CanaryStatus,
    Service,
    ServiceState,
    ServiceStatus,
    make_canary_error,
    make_missing_error,
)
from kfp_mindspore.local.lease import Lease, is_lease_held
from kfp_mindspore.settings import LEASE_VARIABLE, LOCAL

CANARY = "canary"
TRAFFIC = "traffic"

_logger = logging.getLogger(__name__)


class LocalServingBackend(ServingBackend):
    """Runs each service as a model server on this machine.

    Args:
        home: Local state directory; default `$KFP_MINDSPORE_HOME` or `~/.kfp-mindspore`.
        command: The server's program and first arguments, which also gets kserve.ModelServer's `--model_name=`,
            `--http_port=` and `--grpc_port=`, and `--model_dir=`, `--host=` and the service's own flags; default
            mindsporeserver.
        max_restarts: Maximum restarts after consecutive crashes.
        stable_seconds: Ready seconds after which the consecutive crash count starts anew.
        grace_seconds: Seconds between SIGTERM and SIGKILL for a server.
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
        self._options = LocalServerOptions(
            tuple(command) if command is not None else None, max_restarts, stable_seconds, grace_seconds
        )

    def deploy(self, service: Service, *, wait_seconds: float, lease: Lease | None, canary: int = 0) -> ServiceStatus:
        """Start a service, a new version or a canary, and return when it is ready.

        A bundle with the serving version's digest starts nothing, wherever it is, unless another service field or its
        lease differs. When the old version listens on the requested port, the new one first becomes ready on another
        port and then moves to the requested one, with a gap equal to the start-up time.
        """
        bundle = _open_bundle(service)
        _check_flags(service)
        if self._options.command is None and importlib.util.find_spec("kserve") is None:
            raise MissingExtraError("kserve", "serving")
        directory = self._get_directory(service.name, service.namespace)
        lease_path = str(lease.path) if lease else os.environ.get(LEASE_VARIABLE) or None
        if lease_path and not is_lease_held(lease_path):
            raise KfpMindSporeError(
                f"service {service.name}: the run that it would belong to is over: {lease_path} is not held",
                hint=f"Unset {LEASE_VARIABLE} for a service that outlives its run.",
            )
        service = dataclasses.replace(service, model_dir=bundle.path.absolute(), logger=resolve_path(service.logger))
        with directory.lock():
            current = directory.current
            has_canary = self._get_hidden(service.name, service.namespace, CANARY).current is not None
            if not has_canary and current is not None and _is_version_of(current, service, lease_path):
                return self.get(service.name, service.namespace)
            if canary and current is not None and not get_status(current).is_finished:
                self._deploy_canary(service, bundle, current, canary, lease_path, wait_seconds)
            elif has_canary:
                raise make_canary_error(service.name, service.namespace, LOCAL)
            else:
                _sweep(directory)
                try:
                    rollout = LocalRollout(directory, service, self._options, lease_path, wait_seconds)
                    rollout.deploy_bundle(bundle)
                except BaseException:
                    directory.remove_if_empty()
                    raise
        status = self.get(service.name, service.namespace)
        for warning in status.warnings:
            _logger.warning("service %s: %s", service.name, warning)
        return status

    def promote(self, name: str, namespace: str, *, wait_seconds: float) -> ServiceStatus:
        """Start the canary's model as the service's next version, and terminate the canary."""
        directory = self._get_directory(name, namespace)
        self._get_current(name, namespace)
        with directory.lock():
            current = self._get_current(name, namespace)
            canary = self._get_hidden(name, namespace, CANARY).current
            if canary is None:
                raise UserError(f"service {name}: has no canary to promote")
            _sweep(directory)
            self._deploy_again(directory, current, canary, wait_seconds, keep_previous=True)
            self._remove_canary(name, namespace)
        return self.get(name, namespace)

    def rollback(self, name: str, namespace: str, *, wait_seconds: float) -> ServiceStatus:
        """Terminate the canary, or without one start the previous version's model as the next version."""
        directory = self._get_directory(name, namespace)
        self._get_current(name, namespace)
        with directory.lock():
            current = self._get_current(name, namespace)
            if not self._remove_canary(name, namespace):
                if (previous := directory.previous) is None:
                    raise UserError(f"service {name}: has neither a canary nor a version before this one")
                _sweep(directory)
                self._deploy_again(directory, current, previous, wait_seconds, keep_previous=False)
        return self.get(name, namespace)

    def update(self, name: str, namespace: str, changes: Mapping[str, Any], *, wait_seconds: float) -> ServiceStatus:
        """Start the serving version's model with other options as the next version."""
        directory = self._get_directory(name, namespace)
        self._get_current(name, namespace)
        with directory.lock():
            current = self._get_current(name, namespace)
            if self._get_hidden(name, namespace, CANARY).current is not None:
                raise make_canary_error(name, namespace, LOCAL)
            service = dataclasses.replace(Service(**current.read_spec().service), **changes)
            service.validate()
            _check_flags(service)
            _sweep(directory)
            if "logger" in changes:
                changes = {**changes, "logger": resolve_path(service.logger)}
            self._deploy_again(directory, current, current, wait_seconds, keep_previous=True, changes=changes)
        return self.get(name, namespace)

    def get(self, name: str, namespace: str) -> ServiceStatus:
        """Return a service's status, with a readiness probe on the server."""
        while True:
            version = self._get_current(name, namespace)
            try:
                status = self._describe(version, name, namespace)
            except UserError:
                # Replaced by a new version meanwhile: retry with that.
                if self._get_current(name, namespace) == version:
                    raise
                continue
            if self._get_current(name, namespace) == version:
                return status

    def list(self, namespace: str | None) -> list[ServiceStatus]:
        """Return the services in a namespace, or in all."""
        statuses = []
        # Hidden entries are locks, and directories that are being removed.
        for path in sorted(self._root.glob(f"{namespace or '*'}/[!.]*")):
            # A service without a version was never ready, or is being deleted.
            with contextlib.suppress(NotFoundError):
                statuses.append(self.get(path.name, path.parent.name))
        return statuses

    def read_logs(self, name: str, namespace: str, *, follow: bool, lines: int | None) -> Iterator[str]:
        """Yield a service's log lines."""
        return read_logs(self._get_current(name, namespace), follow, lines)

    def stop(self, name: str, namespace: str) -> ServiceStatus:
        """Terminate a service's processes and canary; state and log are kept."""
        directory = self._get_directory(name, namespace)
        self._get_current(name, namespace)
        with directory.lock():
            _sweep(directory)
            self._remove_canary(name, namespace)
            version = self._get_current(name, namespace)
            end_version(version)
            return get_status(version)

    def wait_deployment(self, name: str, namespace: str) -> None:
        """Return when no deployment of a service is under way: it may have ended the old version already."""
        with self._get_directory(name, namespace).lock():
            pass

    def delete(self, name: str, namespace: str, *, version: int | None = None) -> None:
        """Terminate a service's processes and remove the directory.

        Args:
            name: Service name.
            namespace: Service namespace.
            version: Keep the service if this is not its version.

        Raises:
            NotFoundError: There is no such service.
        """
        directory = self._get_directory(name, namespace)
        self._get_current(name, namespace)
        with directory.lock():
            if version is not None and self._get_current(name, namespace).number != version:
                return
            self._remove_canary(name, namespace)
            for entry in directory.list_versions():
                end_version(entry)
            directory.remove()

    def _deploy_canary(
        self,
        service: Service,
        bundle: ModelBundle,
        stable: VersionDirectory,
        percent: int,
        lease: str | None,
        wait_seconds: float,
    ) -> None:
        """Start a second server and the splitter in front of both; on failure the previous canary, if any, stays."""
        name, namespace = service.name, service.namespace
        # The service keeps its ports; a canary gets free ones.
        service = dataclasses.replace(service, port=0, grpc_port=0)
        directories = [self._get_hidden(name, namespace, kind) for kind in (CANARY, TRAFFIC)]
        is_new = directories[0].current is None
        try:
            for directory in directories:
                _sweep(directory)
            rollouts = [LocalRollout(path, service, self._options, lease, wait_seconds) for path in directories]
            version = rollouts[0].deploy_bundle(bundle, keep_previous=False, percent=percent)
            rollouts[1].start_splitter(stable.read_spec().url, version.read_spec().url, percent)
        except BaseException:
            if is_new:
                self._remove_canary(name, namespace)
            raise

    def _deploy_again(
        self,
        directory: ServiceDirectory,
        current: VersionDirectory,
        source: VersionDirectory,
        wait_seconds: float,
        *,
        keep_previous: bool,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Deploy a version's model, at the service's requested address, with changes to its options."""
        spec = current.read_spec()
        address = {key: spec.service[key] for key in ("host", "port", "grpc_port") if key in spec.service}
        service = Service(**{**source.read_spec().service, **address, **(changes or {})})
        rollout = LocalRollout(directory, service, self._options, spec.lease, wait_seconds)
        rollout.deploy_bundle(ModelBundle.open(source.model), keep_previous=keep_previous)

    def _remove_canary(self, name: str, namespace: str) -> bool:
        """Terminate the splitter and the canary; return whether there was a canary."""
        found = self._get_hidden(name, namespace, CANARY).current is not None
        for kind in (TRAFFIC, CANARY):
            directory = self._get_hidden(name, namespace, kind)
            for version in directory.list_versions():
                end_version(version)
            directory.remove()
        return found

    def _describe(self, version: VersionDirectory, name: str, namespace: str) -> ServiceStatus:
        """Return a version's status with the canary's."""
        status = get_status(version)
        previous = self._get_directory(name, namespace).previous
        if previous is not None:
            status = dataclasses.replace(status, previous=previous.read_spec().source)
        canary, traffic = (self._get_hidden(name, namespace, kind).current for kind in (CANARY, TRAFFIC))
        if canary is None:
            return status
        spec, found = canary.read_spec(), get_status(canary)
        if traffic is None:
            # Its deployment was killed in between.
            found = dataclasses.replace(found, state=ServiceState.FAILED, message="it has no traffic splitter")
            return dataclasses.replace(status, canary=_build_canary_status(spec, "", found))
        splitter = get_status(traffic)
        worst = found if splitter.ready else splitter
        return dataclasses.replace(status, canary=_build_canary_status(spec, splitter.url, worst))

    def _get_hidden(self, name: str, namespace: str, kind: str) -> ServiceDirectory:
        """Return a canary's or a splitter's directory, which `list` skips."""
        return ServiceDirectory(self._root / namespace / f".{name}-{kind}")

    def _get_directory(self, name: str, namespace: str) -> ServiceDirectory:
        return ServiceDirectory(self._root / namespace / name)

    def _get_current(self, name: str, namespace: str) -> VersionDirectory:
        current = self._get_directory(name, namespace).current
        if current is None:
            raise make_missing_error(name, namespace, LOCAL)
        return current


def _is_version_of(version: VersionDirectory, service: Service, lease: str | None) -> bool:
    """Return whether a version serves an equal bundle in the same way, whichever run deployed it."""
    spec = version.read_spec()
    if not service.digest or spec.lease != lease:
        return False
    # As JSON: a tuple is read back as a list. An earlier release recorded no later option.
    defaults, given = (
        json.loads(json.dumps({**dataclasses.asdict(item), "model_dir": str(service.model_dir)}))
        for item in (Service(service.name, ""), service)
    )
    recorded = {**defaults, **spec.service, "model_dir": str(service.model_dir), "run": service.run}
    return given == recorded and get_status(version).ready


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


def _build_canary_status(spec: ServerSpec, traffic_url: str, found: ServiceStatus) -> CanaryStatus:
    return CanaryStatus(spec.percent, spec.url, traffic_url, spec.source, found.state, found.message)


def _sweep(directory: ServiceDirectory) -> None:
    """Remove versions left by a killed deployment."""
    kept = {version.number for version in (directory.current, directory.previous) if version is not None}
    for version in directory.list_versions():
        if version.number not in kept:
            discard(version)
