"""Node: configuration and commands of containerd, kubelet and kube-proxy in their own namespaces."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kfp_mindspore.files import write_json, write_text
from tests.cluster.infrastructure.certificates import Authority
from tests.cluster.infrastructure.control_plane import CLUSTER_DOMAIN
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.images import PAUSE
from tests.cluster.infrastructure.namespaces import Namespaces, Network

NODE = "node-1"
SOCKET = "/run/containerd/containerd.sock"
REGISTRY_PORT = 5000
_CRI = "io.containerd.grpc.v1.cri"
_KUBERNETES = "k8s.io"
# An empty VersionRequest has no bytes.
_CALL_VERSION = """
import sys, grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=30)
"""


class Node:
    """Configuration files and commands of a node.

    Args:
        directory: Directory of the cluster.
        binaries: Directory of the programs.
        namespaces: Namespaces of the node.
        cgroup: Name of the control group of its pods.
        url: URL of the API server.
        authority: Issuer of its certificates.
        containerd: Directory of containerd and its shim; None for the distribution's.
    """

    def __init__(
        self,
        directory: Path,
        binaries: Path,
        namespaces: Namespaces,
        cgroup: str,
        url: str,
        authority: Authority,
        containerd: Path | None = None,
    ) -> None:
        self._directory = directory
        self._binaries = binaries
        self._namespaces = namespaces
        self._cgroup = cgroup
        self._url = url
        self._authority = authority
        self._containerd = containerd

    def containerd(self, *, runtime: bool = True) -> list[str]:
        """Return containerd's command line.

        Args:
            runtime: With the CRI plugin for the kubelet; without it only images and containers are managed.
        """
        network, config = self._namespaces.network, self._directory / "containerd.toml"
        write_hosts(self._directory, f"{network.node}:{REGISTRY_PORT}")
        write_json(self._directory / "cni" / "10-pods.conflist", describe_pod_network(network))
        write_text(config, self._describe_containerd(self._namespaces.store / "containerd", runtime=runtime))
        # It looks for its shim on the PATH before its own directory.
        path = [] if self._containerd is None else ["env", f"PATH={self._containerd}:{os.environ['PATH']}"]
        return [*path, "containerd", "--config", str(config)]

    def kubelet(self) -> list[str]:
        """Return the kubelet's command line."""
        network = self._namespaces.network
        certificate, key = self._authority.issue("kubelet", f"system:node:{NODE}", hosts=[NODE, network.node])
        # Pods use the cluster's DNS only, not the resolver of this machine.
        resolver = self._directory / "resolv.conf"
        write_text(resolver, "")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": network.node,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            "featureGates": {"ImageVolume": True},
            "failSwapOn": False,
            # Inside a container a process cannot lower its OOM score or raise its limits.
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "clusterDNS": [network.dns],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": str(resolver),
            "volumePluginDir": str(self._directory / "volume-plugins"),
            "nodeStatusUpdateFrequency": "5s",
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "makeIPTablesUtilChains": False,
        }
        user = f"system:node:{NODE}"
        return [
            str(self._binaries / "kubelet"),
            f"--config={self._write('kubelet', config)}",
            f"--kubeconfig={self._write_kubeconfig('node', user, ['system:nodes'])}",
            f"--hostname-override={NODE}",
            f"--node-ip={network.node}",
        ]

    def proxy(self) -> list[str]:
        """Return kube-proxy's command line."""
        network = self._namespaces.network
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self._write_kubeconfig("proxy", "system:kube-proxy"))},
            "clusterCIDR": network.pods,
            "hostnameOverride": NODE,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
            # Connection tracking limits are those of the machine: do not change them.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        return [str(self._binaries / "kube-proxy"), f"--config={self._write('proxy', config)}"]

    def _write(self, name: str, config: Mapping[str, Any]) -> Path:
        path = self._directory / f"{name}.yaml"
        write_text(path, yaml.safe_dump(dict(config)))
        return path

    def _write_kubeconfig(self, name: str, user: str, groups: list[str] | None = None) -> Path:
        return self._authority.write_kubeconfig(
            self._authority.directory / f"{name}.kubeconfig", self._url, user, groups or []
        )

    def _describe_containerd(self, root: Path, *, runtime: bool) -> str:
        disabled = [] if runtime else [_CRI]
        return f"""version = 2
root = {json.dumps(str(root))}
state = "/run/containerd"
disabled_plugins = {json.dumps(disabled)}
oom_score = 0
[grpc]
  address = {json.dumps(SOCKET)}
[plugins."io.containerd.internal.v1.opt"]
  path = {json.dumps(str(self._directory / "opt"))}
[plugins."{_CRI}"]
  sandbox_image = {json.dumps(PAUSE)}
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."{_CRI}".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = {json.dumps(str(self._directory / "cni"))}
  [plugins."{_CRI}".registry]
    config_path = {json.dumps(str(self._directory / "certs.d"))}
  [plugins."{_CRI}".containerd]
    # Half of the disk that pulled images take: their layers are unpacked.
    discard_unpacked_layers = true
  [plugins."{_CRI}".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."{_CRI}".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def write_hosts(directory: Path, registry: str) -> None:
    """Let a node's containerd reach a registry by plain HTTP; it reads the file for each pull.

    Args:
        directory: The node's.
        registry: `address:port`.
    """
    write_text(
        directory / "certs.d" / registry / "hosts.toml",
        f'server = "http://{registry}"\n[host."http://{registry}"]\n  capabilities = ["pull", "resolve"]\n',
    )


def describe_pod_network(network: Network) -> dict[str, Any]:
    """Return the CNI configuration: a point-to-point link between each pod and the node, which routes."""
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": network.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def prepare_store(daemons: Daemons, namespaces: Namespaces, node: Node, archives: Mapping[str, Path]) -> None:
    """Remove containers and images of an earlier node from the image store, and import missing images.

    Args:
        daemons: Daemons of the cluster.
        namespaces: Namespaces of the node.
        node: The node.
        archives: Archives by image name.
    """
    record = namespaces.store / "imported.json"
    daemons.start("containerd", node.containerd(runtime=False))
    daemons.wait_ready("containerd", lambda: is_containerd_ready(namespaces))
    if containers := ctr(namespaces, "containers", "list", "--quiet").split():
        ctr(namespaces, "containers", "delete", *containers)
    held = set(ctr(namespaces, "images", "list", "--quiet").split())
    imported = json.loads(record.read_text()) if record.exists() else {}
    if unknown := held - set(archives):
        ctr(namespaces, "images", "remove", *unknown)
    for name, archive in archives.items():
        if name not in held or imported.get(name) != archive.name:
            ctr(namespaces, "images", "import", str(archive))
    write_json(record, {name: archive.name for name, archive in archives.items()})
    daemons.stop("containerd")


def is_containerd_ready(namespaces: Namespaces) -> bool:
    """Return whether containerd is ready."""
    try:
        ctr(namespaces, "version")
    except RuntimeError:
        return False
    return True


def is_runtime_ready(namespaces: Namespaces) -> bool:
    """Return whether containerd's CRI service is initialized; the kubelet ends if it is not."""
    try:
        namespaces.call(sys.executable, "-c", _CALL_VERSION, f"unix://{SOCKET}")
    except RuntimeError:
        return False
    return True


def ctr(namespaces: Namespaces, *words: str) -> str:
    """Run containerd's client in the namespace of Kubernetes and return its output."""
    return namespaces.call("ctr", "--address", SOCKET, "--namespace", _KUBERNETES, *words, seconds=300)
