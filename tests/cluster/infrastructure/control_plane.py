"""Commands and health checks of etcd, the API server, the controllers and the scheduler."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.infrastructure.certificates import Authority

CLUSTER_DOMAIN = "cluster.local"
_FRONT_PROXY = "front-proxy-client"


@dataclass(frozen=True)
class Addresses:
    """Listen addresses of a control plane.

    Args:
        address: Address of the API server.
        port: Port of the API server.
        etcd_port: Client port of etcd on the loopback.
        peer_port: Peer port of etcd on the loopback.
        controllers_port: Port of the controller manager on the loopback.
        services: CIDR of Services.
        first_service: Address of the Service `kubernetes`.
    """

    address: str
    port: int
    etcd_port: int
    peer_port: int
    controllers_port: int
    services: str
    first_service: str

    @property
    def url(self) -> str:
        """The API server's URL."""
        return f"https://{self.address}:{self.port}"


class Commands:
    """Commands of one control plane and the certificates in them.

    Args:
        binaries: Directory of the programs.
        directory: Directory of the cluster.
        authority: Issuer of the certificates.
        addresses: Listen addresses.
        api_server: API server; default the one in `binaries`.
    """

    def __init__(
        self,
        binaries: Path,
        directory: Path,
        authority: Authority,
        addresses: Addresses,
        *,
        api_server: Path | None = None,
    ) -> None:
        self._binaries = binaries
        self._api_server = api_server or binaries / "kube-apiserver"
        self._directory = directory
        self._authority = authority
        self._addresses = addresses
        self._signing_key, self._signing_public = authority.make_service_account_keys()

    def etcd(self) -> list[str]:
        """Return the command of etcd: one member, without fsync."""
        client = f"http://127.0.0.1:{self._addresses.etcd_port}"
        peer = f"http://127.0.0.1:{self._addresses.peer_port}"
        return [
            str(self._binaries / "etcd"),
            "--name=etcd",
            f"--data-dir={self._directory / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            "--quota-backend-bytes=4294967296",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=etcd={peer}",
        ]

    def api_server(self, *flags: str) -> list[str]:
        """Return the command of the API server; `flags` override the others."""
        at = self._addresses
        names = ["localhost", *(f"kubernetes{rest}" for rest in ("", ".default", ".default.svc"))]
        names.append(f"kubernetes.default.svc.{CLUSTER_DOMAIN}")
        hosts = [*names, *dict.fromkeys((at.address, "127.0.0.1", at.first_service))]
        certificate, key = self._authority.issue("api-server", "kube-apiserver", hosts=hosts)
        proxy_certificate, proxy_key = self._authority.issue("front-proxy", _FRONT_PROXY)
        return [
            str(self._api_server),
            f"--etcd-servers=http://127.0.0.1:{at.etcd_port}",
            f"--bind-address={at.address}",
            f"--advertise-address={at.address}",
            f"--secure-port={at.port}",
            f"--service-cluster-ip-range={at.services}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self._authority.certificate}",
            f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
            f"--service-account-key-file={self._signing_public}",
            f"--service-account-signing-key-file={self._signing_key}",
            # For APIs of other servers, which believe who calls them through this one.
            f"--proxy-client-cert-file={proxy_certificate}",
            f"--proxy-client-key-file={proxy_key}",
            f"--requestheader-client-ca-file={self._authority.certificate}",
            f"--requestheader-allowed-names={_FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--enable-aggregator-routing=true",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            *flags,
        ]

    def controllers(self, *flags: str) -> list[str]:
        """Return the command of the controller manager; `flags` override the others."""
        kubeconfig = self._write_kubeconfig("controllers", "system:kube-controller-manager")
        ca = self._authority.directory
        return [
            str(self._binaries / "kube-controller-manager"),
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._addresses.controllers_port}",
            "--leader-elect=false",
            "--authentication-tolerate-lookup-failure",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._signing_key}",
            f"--root-ca-file={ca / 'ca.crt'}",
            f"--cluster-signing-cert-file={ca / 'ca.crt'}",
            f"--cluster-signing-key-file={ca / 'ca.key'}",
            *flags,
        ]

    def scheduler(self) -> list[str]:
        """Return the command of the scheduler."""
        kubeconfig = self._write_kubeconfig("scheduler", "system:kube-scheduler")
        return [
            str(self._binaries / "kube-scheduler"),
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--authentication-tolerate-lookup-failure",
        ]

    def _write_kubeconfig(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        path = self._authority.directory / f"{name}.kubeconfig"
        return self._authority.write_kubeconfig(path, self._addresses.url, user, groups)


def is_healthy(url: str, authority: Path | None = None) -> bool:
    """Return whether a health endpoint responds with 200.

    Args:
        url: URL of the endpoint.
        authority: CA certificate of the server; None for plain HTTP.
    """
    context = ssl.create_default_context(cafile=str(authority)) if authority else None
    handlers = [urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])]
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False
