"""An API server by itself: etcd, kube-apiserver and the controllers on the loopback, in seconds, as any user."""

from __future__ import annotations

import contextlib
import random
import secrets
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.infrastructure.binaries import find_binaries
from tests.cluster.infrastructure.certificates import Authority
from tests.cluster.infrastructure.control_plane import Addresses, Commands, answers
from tests.cluster.infrastructure.daemons import Daemons, StartError
from tests.cluster.infrastructure.instances import Instance, create_instance, remove_instance
from tests.cluster.infrastructure.prerequisites import check_control_plane
from tests.cluster.infrastructure.resources import connect, create_namespace, delete_namespace, has_default_account

# Below the ports that outgoing connections get, so that a restarted server finds its port free.
_PORTS = range(20000, 32000)
_ATTEMPTS = 4


class Api:
    """Any cluster's API, by a kubeconfig.

    Args:
        kubeconfig: The kubeconfig; its user may do anything.
        url: The API server's.
    """

    def __init__(self, kubeconfig: Path, url: str) -> None:
        self.kubeconfig = kubeconfig
        self.url = url

    def client(self, kubeconfig: Path | None = None) -> Any:
        """Return a `kubernetes.client.ApiClient` with a configuration of its own.

        Args:
            kubeconfig: Default the administrator's.
        """
        return connect(kubeconfig or self.kubeconfig)

    @contextlib.contextmanager
    def make_namespace(self, prefix: str = "test") -> Iterator[str]:
        """Make a namespace with its default service account; it is being deleted when the block ends."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        with self.client() as client:
            create_namespace(client, name)
        try:
            yield name
        finally:
            with self.client() as client:
                delete_namespace(client, name)


class ControlPlane(Api):
    """A control plane of our own: an API server alone, or that of a whole cluster.

    Args:
        directory: Where its files are.
        url: The API server's.
        daemons: Its processes.
    """

    def __init__(self, directory: Path, url: str, daemons: Daemons) -> None:
        super().__init__(directory / "kubeconfig", url)
        self.directory = directory
        self.daemons = daemons
        self.authority = Authority(directory / "pki")

    def write_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig for a user who may do what RBAC grants, and return its file."""
        name = "".join(letter if letter.isalnum() else "-" for letter in user)
        return self.authority.write_kubeconfig(self.directory / f"{name}.kubeconfig", self.url, user, groups)

    def is_ready(self) -> bool:
        """Tell whether the API server says that it is ready."""
        return answers(f"{self.url}/readyz", self.authority.certificate)

    def restart_api_server(self, *, number: int = signal.SIGKILL) -> None:
        """Stop the API server, start it again and wait until it is ready.

        Args:
            number: The signal that stops it. By SIGTERM it first waits up to a minute for its watches to end.
        """
        self.daemons.restart("kube-apiserver", number=number)
        self.daemons.wait_ready("kube-apiserver", self.is_ready)

    @contextlib.contextmanager
    def stop_api_server(self) -> Iterator[None]:
        """Have no API server for as long as the block lasts; it is ready again afterwards."""
        self.daemons.stop("kube-apiserver", number=signal.SIGKILL)
        try:
            yield
        finally:
            self.daemons.restart("kube-apiserver")
            self.daemons.wait_ready("kube-apiserver", self.is_ready)

    @contextlib.contextmanager
    def pause_etcd(self) -> Iterator[None]:
        """Stop etcd by SIGSTOP for as long as the block lasts."""
        with self.daemons.pause("etcd"):
            yield


class ApiServer(ControlPlane):
    """An API server without nodes, as a context manager; several run at once.

    Pods stay Pending, since nothing schedules them. Every other object works, with its controllers.

    Args:
        api_server_flags: More flags of kube-apiserver; they win.

    Raises:
        UnavailableError: It cannot run here; the message says why.
        StartError: A part of it did not start.
    """

    def __init__(self, *, api_server_flags: Sequence[str] = ()) -> None:
        check_control_plane()
        binaries = find_binaries()
        for attempt in range(1, _ATTEMPTS + 1):
            self._instance = create_instance("api")
            try:
                self._start(binaries, api_server_flags)
                return
            except BaseException as error:
                self.close()
                # Somebody else may have taken a port meanwhile.
                if not isinstance(error, StartError) or "in use" not in str(error) or attempt == _ATTEMPTS:
                    raise

    def _start(self, binaries: Path, api_server_flags: Sequence[str]) -> None:
        directory = self._instance.directory
        port, etcd_port, peer_port, controllers_port = pick_ports(4)
        addresses = Addresses(
            "127.0.0.1", port, etcd_port, peer_port, controllers_port, services="10.0.0.0/16", first_service="10.0.0.1"
        )
        super().__init__(directory, addresses.url, Daemons(directory))
        commands = Commands(binaries, directory, self.authority, addresses)
        self.authority.write_kubeconfig(self.kubeconfig, self.url, "admin", ["system:masters"])
        self.daemons.start("etcd", commands.etcd())
        flags = ["--endpoint-reconciler-type=none", *api_server_flags]
        self.daemons.start("kube-apiserver", commands.api_server(*flags))
        self.daemons.wait_ready("etcd", lambda: answers(f"http://127.0.0.1:{etcd_port}/health"))
        self.daemons.wait_ready("kube-apiserver", self.is_ready)
        self.daemons.start("kube-controller-manager", commands.controllers())
        with self.client() as client:
            self.daemons.wait_ready("kube-controller-manager", lambda: has_default_account(client))
        self.daemons.check()

    def close(self) -> None:
        """End its processes and remove its files. Idempotent."""
        instance: Instance = self._instance
        if instance.directory.exists():
            remove_instance(instance.directory)
        if instance.lease:
            instance.lease.release()

    def __enter__(self) -> ApiServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pick_ports(count: int) -> list[int]:
    """Return ports of the loopback that were free a moment ago."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports
