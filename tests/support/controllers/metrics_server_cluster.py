"""Kubernetes' metrics server beside a test cluster: the CPU and memory that autoscalers ask for."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import METRICS_SERVER, get_binaries
from tests.cluster.infrastructure.cluster import Cluster
from tests.cluster.infrastructure.control_plane import is_healthy
from tests.support.controllers.kserve_cluster import KServe

_NAME, _NAMESPACE, _PORT = "metrics-server", "kube-system", 6446
_GROUP = "rbac.authorization.k8s.io"


@contextlib.contextmanager
def run_metrics_server(kserve: KServe) -> Iterator[None]:
    """Run the metrics server for a block, as a process in the node's network."""
    cluster = kserve.cluster
    program = Path(start(lambda: get_binaries(METRICS_SERVER))) / _NAME
    host = f"{_NAME}.{_NAMESPACE}.svc"
    certificate, key = cluster.authority.issue(f"{_NAME}-serving", _NAME, hosts=[host, str(cluster.network.node)])
    kubeconfig = cluster.write_kubeconfig(_NAME)
    list(apply_objects(_list_objects(cluster), kubeconfig=str(cluster.kubeconfig)))
    flags = {
        "secure-port": _PORT,
        "cert-dir": cluster.directory,
        "tls-cert-file": certificate,
        "tls-private-key-file": key,
        "kubelet-certificate-authority": cluster.authority.certificate,
        "kubelet-preferred-address-types": "InternalIP",
        # Above the timeout of a request to the kubelet, 10 s.
        "metric-resolution": "15s",
        **dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), kubeconfig),
    }
    api: dict[str, Any] = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": _NAME, "namespace": _NAMESPACE},
            "caBundle": base64.b64encode(cluster.authority.certificate.read_bytes()).decode(),
        },
    }
    cluster.daemons.start(_NAME, [str(program), *(f"--{name}={value}" for name, value in flags.items())])
    try:
        live = f"https://{cluster.network.node}:{_PORT}/livez"
        cluster.daemons.wait_ready(_NAME, lambda: is_healthy(live, cluster.authority.certificate))
        kserve.api.apply(api)
        yield
        cluster.daemons.check(_NAME)
    finally:
        # Namespaces are not deleted while an API's server does not answer.
        with contextlib.suppress(Exception):
            kserve.api.delete(kserve.api.resolve_resource(api["apiVersion"], api["kind"]), api["metadata"]["name"])
        cluster.daemons.stop(_NAME)


def _list_objects(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the rights of its user, and its Service without pods."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
    ]
    subjects = [{"apiGroup": _GROUP, "kind": "User", "name": _NAME}]
    service = {"name": _NAME, "namespace": _NAMESPACE}
    return [
        {"apiVersion": f"{_GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": _NAME}, "rules": rules},
        *(
            {
                "apiVersion": f"{_GROUP}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"{_NAME}-{number}"},
                "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
                "subjects": subjects,
            }
            for number, role in enumerate((_NAME, "system:auth-delegator"))
        ),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": service,
            "spec": {"ports": [{"name": "https", "port": 443}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**service, "labels": {"kubernetes.io/service-name": _NAME}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": _PORT}],
            "endpoints": [{"addresses": [str(cluster.network.node)], "conditions": {"ready": True}}],
        },
    ]
