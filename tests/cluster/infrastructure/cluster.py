"""Cluster of one node, as root: control plane, node with its own network, DNS, images."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from kfp_mindspore.files import write_text
from kfp_mindspore.local.process import ProcessIdentity
from tests.cluster.infrastructure.api_server import Api, ControlPlane
from tests.cluster.infrastructure.binaries import get_binaries
from tests.cluster.infrastructure.control_plane import CLUSTER_DOMAIN, Addresses, Commands, is_healthy
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.images import COREDNS, get_images
from tests.cluster.infrastructure.instances import CGROUP_PREFIX, Instance, create_instance, remove_instance
from tests.cluster.infrastructure.machine import make_cgroup, prepare_machine
from tests.cluster.infrastructure.namespaces import Namespaces, create_namespaces, open_namespaces
from tests.cluster.infrastructure.node import (
    NODE,
    REGISTRY_PORT,
    Node,
    ctr,
    is_runtime_ready,
    prepare_store,
    write_hosts,
)
from tests.cluster.infrastructure.paths import INFRASTRUCTURE, get_cache, make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError, check_node
from tests.cluster.infrastructure.resources import connect, create, has_default_account, is_node_ready


class Cluster(ControlPlane):
    """Running cluster that was started here.

    Args:
        directory: Its directory.
        namespaces: Linux namespaces of the node.
    """

    def __init__(self, directory: Path, namespaces: Namespaces) -> None:
        self.namespaces = namespaces
        self.network = namespaces.network
        super().__init__(directory, f"https://{self.network.node}:6443", Daemons(directory, namespaces.enter))

    @classmethod
    def open(cls, directory: Path) -> Cluster:
        """Return a cluster that another process started."""
        return cls(directory, open_namespaces(directory))

    def import_image(self, archive: Path) -> None:
        """Import an image archive of `images.write_archive` into the node."""
        ctr(self.namespaces, "images", "import", str(archive))

    def push_image(self, name: str) -> None:
        """Push an image of the node to the registry in its name."""
        ctr(self.namespaces, "images", "push", "--plain-http", name)

    def remove_image(self, name: str) -> None:
        """Remove an image from the node."""
        ctr(self.namespaces, "images", "remove", "--sync", name)

    def start_registry(self) -> str:
        """Start an image registry on the node's address and return `address:port`.

        This machine, pods and containerd reach it by plain HTTP. Its images are removed with the cluster.
        """
        address = f"{self.network.node}:{REGISTRY_PORT}"
        if "docker-registry" not in self.daemons.names():
            config = {
                "version": "0.1",
                "log": {"level": "warn"},
                "storage": {
                    "filesystem": {"rootdirectory": str(self.directory / "registry")},
                    "delete": {"enabled": True},
                },
                "http": {"addr": address},
            }
            write_text(self.directory / "registry.yml", yaml.safe_dump(config))
            self.daemons.start("docker-registry", ["docker-registry", "serve", str(self.directory / "registry.yml")])
        self.daemons.wait_ready("docker-registry", lambda: is_healthy(f"http://{address}/v2/"))
        return address

    def allow_plain_http(self, registry: str) -> None:
        """Let the node reach another registry, `address:port`, by plain HTTP."""
        write_hosts(self.directory, registry)

    def make_volume(self, name: str) -> Path:
        """Create a directory for a hostPath volume that pods of any user can write."""
        return make_directory(self.directory / "host-paths" / name, 0o777)

    def find_processes(self, namespace: str, pod: str, container: str | None = None) -> list[ProcessIdentity]:
        """Return the processes of a container, with their ids on this machine, oldest first.

        Args:
            namespace: The pod's.
            pod: Its name.
            container: The container's name; default the first.
        """
        from kubernetes.client import CoreV1Api

        with self.client() as client:
            statuses = CoreV1Api(client).read_namespaced_pod(pod, namespace).status.container_statuses or []
        chosen = [status for status in statuses if container in (None, status.name)][:1]
        identifier = chosen[0].container_id.partition("://")[2] if chosen and chosen[0].container_id else "none"
        found = []
        for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            with contextlib.suppress(OSError):
                if identifier in (process / "cgroup").read_text() and (one := ProcessIdentity.of(int(process.name))):
                    found.append(one)
        return found

    def close(self) -> None:
        """Kill its processes and remove its files, except for the image store. Idempotent."""
        if self.directory.exists():
            remove_instance(self.directory)


class OwnedCluster(Cluster):
    """Cluster that is removed with this process or at the end of the block.

    Args:
        keep: Keep it until `close`, also after this process ended.
        containerd: Directory of a containerd 2 with its shim; None for the distribution's.

    Raises:
        UnavailableError: It cannot run on this machine.
        StartError: A daemon did not start.
    """

    def __init__(self, *, keep: bool = False, containerd: Path | None = None) -> None:
        check_node()
        binaries, archives = get_binaries(), get_images()
        self._instance: Instance = create_instance("node", keep=keep)
        self.directory = self._instance.directory
        try:
            lease = self._instance.lease.path if self._instance.lease else None
            with prepare_machine():
                # containerd 1 does not read what containerd 2 has written.
                stores = get_cache() / ("stores" if containerd is None else "stores-2")
                namespaces = create_namespaces(self.directory, stores, lease)
            super().__init__(self.directory, namespaces)
            self._start(binaries, archives, containerd)
        except BaseException:
            self.close()
            raise

    def _start(self, binaries: Path, archives: dict[str, Path], containerd: Path | None) -> None:
        cgroup = f"{CGROUP_PREFIX}{self.directory.name}"
        make_cgroup(cgroup)
        node = Node(self.directory, binaries, self.namespaces, cgroup, self.url, self.authority, containerd)
        commands = self._list_commands(binaries)
        daemons = self.daemons
        daemons.start("etcd", commands.etcd())
        certificate, key = self.authority.issue(
            "kubelet-client", "kube-apiserver-kubelet-client", groups=["system:masters"]
        )
        daemons.start(
            "kube-apiserver",
            commands.api_server(
                f"--kubelet-client-certificate={certificate}",
                f"--kubelet-client-key={key}",
                f"--kubelet-certificate-authority={self.authority.certificate}",
                "--kubelet-preferred-address-types=InternalIP",
                "--enable-admission-plugins=NodeRestriction",
                "--feature-gates=MutatingAdmissionPolicy=true,ImageVolume=true",
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
            ),
        )
        prepare_store(daemons, self.namespaces, node, archives)
        daemons.start("containerd", node.containerd())
        daemons.wait_ready("containerd", lambda: is_runtime_ready(self.namespaces))
        daemons.wait_ready("kube-apiserver", self.is_ready)
        self.authority.write_kubeconfig(self.kubeconfig, self.url, "admin", ["system:masters"])
        pods = f"--cluster-cidr={self.network.pods}"
        daemons.start(
            "kube-controller-manager",
            commands.controllers(pods, "--allocate-node-cidrs=false", "--enable-hostpath-provisioner=true"),
        )
        daemons.start("kube-scheduler", commands.scheduler())
        daemons.start("kubelet", node.kubelet())
        daemons.start("kube-proxy", node.proxy())
        with self.client() as client:
            for item in render_dns(self.network.dns):
                create(client, item)
            daemons.wait_ready("kube-controller-manager", lambda: has_default_account(client))
            daemons.wait_ready("kubelet", lambda: is_node_ready(client, NODE))
        daemons.wait_ready("kube-proxy", lambda: resolve(self.network.dns, f"kubernetes.default.svc.{CLUSTER_DOMAIN}"))

    def _list_commands(self, binaries: Path) -> Commands:
        addresses = Addresses(
            self.network.node, 6443, 2379, 2380, 10257, self.network.services, self.network.first_service
        )
        return Commands(binaries, self.directory, self.authority, addresses)

    def close(self) -> None:
        """Remove the cluster. Idempotent."""
        super().close()
        if self._instance.lease:
            self._instance.lease.release()

    def __enter__(self) -> OwnedCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_current_cluster() -> Api:
    """Return the cluster of the current KUBECONFIG; a `Cluster` if it was started here, otherwise its `Api`.

    Raises:
        UnavailableError: KUBECONFIG names no cluster.
    """
    from kubernetes.config import ConfigException

    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or "~/.kube/config"
    path = Path(named).expanduser().absolute()
    if (path.parent / "init.json").exists():
        return Cluster.open(path.parent)
    try:
        with connect(path) as client:
            return Api(path, client.configuration.host)
    except ConfigException as error:
        raise UnavailableError(f"{path}: no cluster is configured ({error})") from error


def render_dns(address: str) -> list[dict[str, Any]]:
    """Return the objects of the cluster's DNS."""
    text = (INFRASTRUCTURE / "manifests" / "coredns.yaml").read_text()
    text = text.replace("{{ image }}", COREDNS).replace("{{ address }}", address)
    return list(yaml.safe_load_all(text))


def resolve(server: str, name: str) -> list[str]:
    """Return the addresses that a DNS server has for a name; none when it does not respond."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        try:
            client.sendto(query, (server, 53))
            response = client.recv(512)
        except OSError:
            return []
    addresses, position = [], len(query)
    for _ in range(struct.unpack(">6H", response[:12])[3]):
        # The name: a pointer of two bytes, or labels up to an empty one.
        position = position + 2 if response[position] >= 0xC0 else response.index(b"\0", position) + 1
        kind, _, _, length = struct.unpack(">2HIH", response[position : position + 10])
        if kind == 1:
            addresses.append(socket.inet_ntoa(response[position + 10 : position + 10 + length]))
        position += 10 + length
    return addresses
