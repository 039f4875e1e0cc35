"""KEDA and a Prometheus that scrapes annotated pods, beside a test cluster that runs KServe."""

from __future__ import annotations

import base64
import contextlib
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from kfp_mindspore.files import write_json, write_text
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import KEDA, get_binaries
from tests.cluster.infrastructure.cluster import Cluster
from tests.cluster.infrastructure.control_plane import is_healthy
from tests.cluster.infrastructure.paths import make_directory
from tests.support.controllers.kserve_cluster import KServe

_USER, _NAMESPACE, _OPERATOR, _ADAPTER = "keda-operator", "keda", "keda-operator", "keda-adapter"
_SERVICE = "keda-metrics-apiserver"
_DEFINITIONS = (
    "keda.sh_clustertriggerauthentications",
    "keda.sh_scaledjobs",
    "keda.sh_scaledobjects",
    "keda.sh_triggerauthentications",
    "eventing.keda.sh_cloudeventsources",
    "eventing.keda.sh_clustercloudeventsources",
)
_ROLES = ("keda-role", "keda-metrics-role", "keda-metrics-binding")
_PROBE_PORT, _METRICS_PORT, _ADAPTER_PORT, _ADAPTER_METRICS_PORT, _PROMETHEUS_PORT = 8084, 9666, 6444, 8085, 9090


@contextlib.contextmanager
def run_keda(kserve: KServe) -> Iterator[str]:
    """Run KEDA's operator and metrics adapter with their own definitions and roles, and Prometheus; return its URL.

    They are processes in the node's network. KEDA's run as the user that its roles are bound to, and the API server
    passes requests for external metrics on to the adapter.
    """
    cluster, folder = kserve.cluster, Path(start(lambda: get_binaries(KEDA)))
    kubeconfig = cluster.write_kubeconfig(_USER)
    definitions = [document for name in _DEFINITIONS for document in _read(folder / f"{name}.yaml")]
    roles = [document for name in _ROLES for document in _read(folder / f"{name}.yaml")]
    list(apply_objects([*definitions, *_list_objects(cluster, roles)], kubeconfig=str(cluster.kubeconfig)))
    server, client, serving = _issue_certificates(cluster)
    environment = [
        f"KUBECONFIG={kubeconfig}",
        "WATCH_NAMESPACE=",
        f"POD_NAMESPACE={_NAMESPACE}",
        f"KEDA_CLUSTER_OBJECT_NAMESPACE={_NAMESPACE}",
    ]
    flags = {
        _OPERATOR: [
            "--enable-prometheus-metrics=false",
            f"--health-probe-bind-address=:{_PROBE_PORT}",
            f"--metrics-service-bind-address=:{_METRICS_PORT}",
            f"--cert-dir={server}",
        ],
        _ADAPTER: [
            f"--metrics-service-address={cluster.network.node}:{_METRICS_PORT}",
            f"--cert-dir={client}",
            f"--tls-cert-file={serving / 'tls.crt'}",
            f"--tls-private-key-file={serving / 'tls.key'}",
            f"--secure-port={_ADAPTER_PORT}",
            f"--port={_ADAPTER_METRICS_PORT}",
            *(f"--{kind}-kubeconfig={kubeconfig}" for kind in ("lister", "authentication", "authorization")),
        ],
    }
    checks = {
        _OPERATOR: lambda: is_healthy(f"http://{cluster.network.node}:{_PROBE_PORT}/readyz"),
        _ADAPTER: lambda: is_healthy(
            f"https://{cluster.network.node}:{_ADAPTER_PORT}/readyz", cluster.authority.certificate
        ),
    }
    (api,) = _read(folder / "keda-metrics-api.yaml")
    api["spec"]["caBundle"] = base64.b64encode(cluster.authority.certificate.read_bytes()).decode()
    try:
        for name, check in checks.items():
            cluster.daemons.start(name, ["env", *environment, str(folder / name), *flags[name]])
            cluster.daemons.wait_ready(name, check)
        kserve.api.apply(api)
        with _run_prometheus(kserve) as url:
            yield url
        for name in checks:
            cluster.daemons.check(name)
    finally:
        # Namespaces are not deleted while an API's server does not answer.
        with contextlib.suppress(Exception):
            kserve.api.delete(kserve.api.resolve_resource(api["apiVersion"], api["kind"]), api["metadata"]["name"])
        for name in checks.keys() & set(cluster.daemons.names()):
            cluster.daemons.stop(name)


def _list_objects(cluster: Cluster, roles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return KEDA's namespace, roles and bindings to the user, and the Service of the adapter without pods."""
    for role in roles:
        if role["kind"].endswith("Binding"):
            for subject in role["subjects"]:
                if subject["name"] == _USER:
                    subject |= {"kind": "User", "apiGroup": "rbac.authorization.k8s.io"}
                    del subject["namespace"]
    bindings = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{role['kind']}Binding",
            "metadata": role["metadata"],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": _USER},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": _USER}],
        }
        for role in roles
        if role["metadata"]["name"] == _USER and role["kind"] in ("ClusterRole", "Role")
    ]
    service = {"name": _SERVICE, "namespace": _NAMESPACE}
    port = {"name": "https", "port": 443}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        *roles,
        *bindings,
        {"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": {"ports": [port]}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**service, "labels": {"kubernetes.io/service-name": _SERVICE}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": _ADAPTER_PORT}],
            "endpoints": [{"addresses": [str(cluster.network.node)], "conditions": {"ready": True}}],
        },
    ]


def _issue_certificates(cluster: Cluster) -> tuple[Path, Path, Path]:
    """Return directories with ca.crt, tls.crt and tls.key: the operator's, the adapter's as client and server."""
    hosts = {
        "keda-server": [str(cluster.network.node)],
        "keda-client": [],
        "keda-adapter": [f"{_SERVICE}.{_NAMESPACE}.svc", str(cluster.network.node)],
    }
    directories = []
    for name, names in hosts.items():
        directory = make_directory(cluster.directory / name)
        files = (cluster.authority.certificate, *cluster.authority.issue(name, name, hosts=names))
        for source, target in zip(files, ("ca.crt", "tls.crt", "tls.key"), strict=True):
            shutil.copy(source, directory / target)
        directories.append(directory)
    first, second, third = directories
    return first, second, third


@contextlib.contextmanager
def _run_prometheus(kserve: KServe) -> Iterator[str]:
    """Run a Prometheus that scrapes pods by their annotations prometheus.io/scrape, port and path; return its URL.

    Debian's has no discovery of pods: a thread writes their addresses into a file.
    """
    cluster, ended = kserve.cluster, threading.Event()
    targets, file = cluster.directory / "prometheus-targets.json", cluster.directory / "prometheus.yml"
    jobs = [{"job_name": "pods", "file_sd_configs": [{"files": [str(targets)]}]}]
    write_text(file, yaml.safe_dump({"global": {"scrape_interval": "5s"}, "scrape_configs": jobs}))
    url = f"http://{cluster.network.node}:{_PROMETHEUS_PORT}"
    flags = {
        "config.file": file,
        "storage.tsdb.path": cluster.directory / "prometheus",
        "web.listen-address": url.removeprefix("http://"),
    }

    def write_targets() -> None:
        while not ended.wait(2):
            write_json(targets, [target for pod in kserve.api.list(PODS) for target in _list_targets(pod)])

    cluster.daemons.start("prometheus", ["prometheus", *(f"--{name}={value}" for name, value in flags.items())])
    try:
        cluster.daemons.wait_ready("prometheus", lambda: is_healthy(f"{url}/-/ready"))
        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write_targets)
            try:
                yield url
            finally:
                ended.set()
            writer.result()
    finally:
        cluster.daemons.stop("prometheus")


def _list_targets(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the target of a pod with annotations for Prometheus, and an address."""
    labels, annotations = (pod["metadata"].get(key) or {} for key in ("labels", "annotations"))
    # As an annotated scrape does, or as the PodMonitor of config/monitoring.
    prefix = "prometheus.io" if annotations.get("prometheus.io/scrape") == "true" else "prometheus.kserve.io"
    name, address = labels.get("serving.kserve.io/inferenceservice", ""), pod["status"].get("podIP")
    if not address or f"{prefix}/port" not in annotations:
        return []
    found = {
        "__metrics_path__": annotations[f"{prefix}/path"],
        "namespace": pod["metadata"]["namespace"],
        "inferenceservice": name,
    }
    return [{"targets": [f"{address}:{annotations[f'{prefix}/port']}"], "labels": found}]


def _read(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]
