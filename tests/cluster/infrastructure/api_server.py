"""API server without nodes: etcd, kube-apiserver and the controllers on the loopback, as any user."""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.infrastructure.binaries import get_binaries
from tests.cluster.infrastructure.certificates import Authority
from tests.cluster.infrastructure.control_plane import Addresses, Commands, is_healthy
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.instances import Instance, create_instance, remove_instance
from tests.cluster.infrastructure.kubernetes_versions import list_version_flags, select_toolset
from tests.cluster.infrastructure.prerequisites import check_control_plane
from tests.cluster.infrastructure.resources import connect, create_namespace, delete_namespace, has_default_account
from tests.support.ports import reserve_port


class Api:
    """API of any cluster.

    Args:
        kubeconfig: Kubeconfig of an administrator.
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
        """Create a namespace with its default service account; delete it after the block, without waiting."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        with self.client() as client:
            create_namespace(client, name)
        try:
            yield name
        finally:
            with self.client() as client:
                delete_namespace(client, name)


class ControlPlane(Api):
    """Control plane started here, with or without a node.

    Args:
        directory: Directory of its files.
        url: The API server's.
        daemons: Its processes.
    """

    def __init__(self, directory: Path, url: str, daemons: Daemons) -> None:
        super().__init__(directory / "kubeconfig", url)
        self.directory = directory
        self.daemons = daemons
        self.authority = Authority(directory / "pki")

    def write_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write the kubeconfig of a user with the permissions that RBAC grants; return its path."""
        name = "".join(letter if letter.isalnum() else "-" for letter in user)
        return self.authority.write_kubeconfig(self.directory / f"{name}.kubeconfig", self.url, user, groups)

    def is_ready(self) -> bool:
        """Return whether the API server is ready."""
        return is_healthy(f"{self.url}/readyz", self.authority.certificate)

    def restart_api_server(self, *, number: int = signal.SIGKILL) -> None:
        """Stop the API server, start it again and wait until it is ready.

        Args:
            number: The signal that stops it. By SIGTERM it first waits up to a minute for its watches to end.
        """
        self.daemons.restart("kube-apiserver", number=number)
        self.daemons.wait_ready("kube-apiserver", self.is_ready)

    @contextlib.contextmanager
    def stop_api_server(self) -> Iterator[None]:
        """Stop the API server until the block ends; it is ready again afterwards."""
        self.daemons.stop("kube-apiserver", number=signal.SIGKILL)
        try:
            yield
        finally:
            self.daemons.restart("kube-apiserver")
            self.daemons.wait_ready("kube-apiserver", self.is_ready)

    @contextlib.contextmanager
    def pause_etcd(self) -> Iterator[None]:
        """Suspend etcd with SIGSTOP until the block ends."""
        with self.daemons.pause("etcd"):
            yield


class ApiServer(ControlPlane):
    """API server without nodes; several can run at once.

    Pods stay Pending, as there is no scheduler. All controllers of other objects run. Its version is the pinned one
    or KFP_MINDSPORE_TEST_KUBERNETES.

    Args:
        api_server_flags: More flags of kube-apiserver, which override the others.

    Raises:
        UnavailableError: It cannot run on this machine.
        StartError: A daemon did not start.
    """

    def __init__(self, *, api_server_flags: Sequence[str] = ()) -> None:
        check_control_plane()
        binaries = get_binaries()
        api_server = get_binaries(select_toolset()) / "kube-apiserver"
        self._instance = create_instance("api")
        try:
            self._start(binaries, api_server, api_server_flags)
        except BaseException:
            self.close()
            raise

    def _start(self, binaries: Path, api_server: Path, api_server_flags: Sequence[str]) -> None:
        directory = self._instance.directory
        port, etcd_port, peer_port, controllers_port = (reserve_port() for _ in range(4))
        addresses = Addresses(
            "127.0.0.1", port, etcd_port, peer_port, controllers_port, services="10.0.0.0/16", first_service="10.0.0.1"
        )
        super().__init__(directory, addresses.url, Daemons(directory))
        commands = Commands(binaries, directory, self.authority, addresses, api_server=api_server)
        self.authority.write_kubeconfig(self.kubeconfig, self.url, "admin", ["system:masters"])
        self.daemons.start("etcd", commands.etcd())
        flags = ["--endpoint-reconciler-type=none", *list_version_flags(), *api_server_flags]
        self.daemons.start("kube-apiserver", commands.api_server(*flags))
        self.daemons.wait_ready("etcd", lambda: is_healthy(f"http://127.0.0.1:{etcd_port}/health"))
        self.daemons.wait_ready("kube-apiserver", self.is_ready)
        self.daemons.start("kube-controller-manager", commands.controllers())
        with self.client() as client:
            self.daemons.wait_ready("kube-controller-manager", lambda: has_default_account(client))
        self.daemons.check()

    def close(self) -> None:
        """Kill its processes and remove its files. Idempotent."""
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
