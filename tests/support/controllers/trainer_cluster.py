"""The MPI operator and Kubeflow Trainer with JobSet, beside a test cluster."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore import files
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import SECRETS
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import MPI, TRAINER, Toolset, get_binaries
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.control_plane import CLUSTER_DOMAIN, is_healthy
from tests.cluster.infrastructure.resources import has_default_account
from tests.cluster.mpi_image import make_mpi_archive
from tests.support.controllers.kserve_cluster import KUBEFLOW_VARIABLE
from tests.support.controllers.webhooks import issue_certificate, locate_webhook
from tests.support.kube.operators import wait_for

_NAMESPACE = "kubeflow-system"
_SERVICE, _SECRET = "kubeflow-trainer-controller-manager", "kubeflow-trainer-webhook-cert"
_JOBSET_PORT, _JOBSET_PROBE = 9543, 8082
_TRAINER_PORT, _TRAINER_PROBE, _STATUS_PORT = 9643, 8083, 9644
# Trainer reads its certificate, its account's token and the issuer's address from fixed paths: in a mount namespace of
# its own they are the cluster's.
_AS_POD = """
set -e
mkdir -p /tmp/k8s-webhook-server
mount --bind "$0" /tmp/k8s-webhook-server
mount --bind "$0/hosts" /etc/hosts
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/kubernetes.io
cp -r "$0/serviceaccount" /run/secrets/kubernetes.io
exec "$@"
"""


@contextlib.contextmanager
def run_mpi_operator(cluster: NodeCluster) -> Iterator[None]:
    """Run the MPI operator with its own definition; the node has the image MPI_IMAGE."""
    folder = _get_programs(MPI)
    cluster.import_image(start(make_mpi_archive))
    _apply(cluster, *_read(folder / "mpijobs.yaml"), _build_namespace("mpi-operator"))
    with _run(cluster, "mpi-operator", [str(folder / "mpi-operator"), f"-kubeConfig={cluster.kubeconfig}"]):
        yield


def install_definitions(cluster: NodeCluster) -> None:
    """Install the definitions of Kubeflow Trainer and JobSet."""
    folder = _get_programs(TRAINER)
    for name in ("jobsets", "clustertrainingruntimes", "trainingruntimes", "trainjobs"):
        _apply(cluster, *_read(folder / f"{name}.yaml"))


@contextlib.contextmanager
def run_trainer(cluster: NodeCluster, *, gates: Sequence[str] = ()) -> Iterator[None]:
    """Run Kubeflow Trainer and JobSet with their own definitions and webhooks.

    Args:
        cluster: The cluster.
        gates: Feature gates of Trainer to enable.
    """
    folder = _get_programs(TRAINER)
    install_definitions(cluster)
    _apply(cluster, _build_namespace(_NAMESPACE))
    api = Cluster(cluster.kubeconfig)
    hooks: list[dict[str, Any]] = []
    try:
        with _run_jobset(cluster, folder, hooks), _run_manager(cluster, folder, hooks, gates):
            yield
    finally:
        for item in hooks:
            api.delete(api.resolve_resource(item["apiVersion"], item["kind"]), item["metadata"]["name"])


@contextlib.contextmanager
def _run_jobset(cluster: NodeCluster, folder: Path, hooks: list[dict[str, Any]]) -> Iterator[None]:
    settings = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f":{_JOBSET_PROBE}"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": _JOBSET_PORT},
    }
    directory = issue_certificate(cluster, "jobset")
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = ["env", f"TMPDIR={directory}", str(folder / "jobset-manager"), f"--config={file}"]
    with _run(cluster, "jobset", [*command, f"--kubeconfig={cluster.kubeconfig}"], _JOBSET_PROBE):
        for item in _read(folder / "jobset-webhooks.yaml"):
            # The webhooks of pods are for exclusive placement only.
            item["webhooks"] = [hook for hook in item["webhooks"] if "jobsets" in hook["rules"][0]["resources"]]
            hooks.append(locate_webhook(cluster, item, _JOBSET_PORT, f"jobset-{item['kind'].lower()}"))
        _apply(cluster, *hooks)
        yield


@contextlib.contextmanager
def _run_manager(
    cluster: NodeCluster, folder: Path, hooks: list[dict[str, Any]], gates: Sequence[str]
) -> Iterator[None]:
    """Run Trainer, which issues its own certificate, writes it into a Secret and expects that Secret as a volume."""
    configurations = _read(folder / "trainer-webhooks.yaml")
    for item in configurations:
        for hook in item["webhooks"]:
            hook["clientConfig"]["service"].update(name=_SERVICE, namespace=_NAMESPACE)
        role = "defaulter" if item["kind"].startswith("Mutating") else "validator"
        item["metadata"]["name"] = f"{role}.trainer.kubeflow.org"
    hooks += configurations
    metadata = {"name": _SERVICE, "namespace": _NAMESPACE}
    ports = [
        {"name": "https", "port": _TRAINER_PORT, "protocol": "TCP"},
        {"name": "status", "port": _STATUS_PORT, "protocol": "TCP"},
    ]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": _SERVICE}},
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": [cluster.network.node]}],
    }
    spec = {
        "ports": [
            {"name": "https", "port": 443, "targetPort": _TRAINER_PORT},
            {"name": "status", "port": _STATUS_PORT, "targetPort": _STATUS_PORT},
        ]
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET, "namespace": _NAMESPACE}}
    _apply(cluster, {**service, "spec": spec}, endpoints, secret, *configurations)
    directory = cluster.directory / "trainer"
    certificates = directory / "serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    settings = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f":{_TRAINER_PROBE}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": _TRAINER_PORT},
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": True, "webhookServiceName": _SERVICE, "webhookSecretName": _SECRET},
        "statusServer": {"port": _STATUS_PORT},
        "featureGates": dict.fromkeys(gates, True),
    }
    _write_account(cluster, directory)
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    program = [str(folder / "trainer-manager"), f"--kubeconfig={cluster.kubeconfig}", f"--config={file}"]
    api = Cluster(cluster.kubeconfig)

    def mount_secret() -> bool:
        cluster.daemons.check("trainer")
        data = api.get(SECRETS, _SECRET, _NAMESPACE).get("data") or {}
        # Trainer starts as soon as it finds tls.crt; a kubelet replaces all files at once.
        for name in sorted(data, key="tls.crt".__eq__):
            files.write_bytes(certificates / name, base64.b64decode(data[name]))
        return is_healthy(f"http://{cluster.network.node}:{_TRAINER_PROBE}/readyz")

    with _run(cluster, "trainer", ["unshare", "--mount", "sh", "-c", _AS_POD, str(directory), *program]):
        wait_for(mount_secret, lambda: cluster.daemons.log("trainer").read_text()[-2000:], 120)
        yield


def _write_account(cluster: NodeCluster, directory: Path) -> None:
    """Write an account's token, and a hosts file with the API server's name that the token has as its issuer."""
    from kubernetes.client import CoreV1Api

    with cluster.client() as client:
        wait_for(lambda: has_default_account(client, _NAMESPACE), lambda: f"{_NAMESPACE} has no account", 60)
        body = {"spec": {"audiences": [], "expirationSeconds": 3600}}
        account = CoreV1Api(client).create_namespaced_service_account_token("default", _NAMESPACE, body)
    tokens = directory / "serviceaccount"
    tokens.mkdir(exist_ok=True)
    (tokens / "token").write_text(account.status.token)
    name = f"{cluster.network.first_service} kubernetes.default.svc.{CLUSTER_DOMAIN}\n"
    (directory / "hosts").write_text(Path("/etc/hosts").read_text() + name)


@contextlib.contextmanager
def _run(cluster: NodeCluster, name: str, command: list[str], probe: int = 0) -> Iterator[None]:
    cluster.daemons.start(name, command)
    try:
        if probe:
            cluster.daemons.wait_ready(name, lambda: is_healthy(f"http://{cluster.network.node}:{probe}/readyz"))
        yield
        # A controller that exited explains a failure better than the test's own timeout.
        cluster.daemons.check(name)
    finally:
        cluster.daemons.stop(name)


def _get_programs(tools: Toolset) -> Path:
    if not os.environ.get(KUBEFLOW_VARIABLE):
        pytest.skip(f"the builds are slow: run `make test-kubeflow`, which sets {KUBEFLOW_VARIABLE}")
    return Path(start(lambda: get_binaries(tools)))


def _apply(cluster: NodeCluster, *documents: dict[str, Any]) -> None:
    list(apply_objects(documents, kubeconfig=str(cluster.kubeconfig)))


def _build_namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _read(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]
