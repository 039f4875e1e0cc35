"""KServe's controller of LLMInferenceServices, beside a test cluster that runs KServe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import KSERVE, get_binaries
from tests.cluster.infrastructure.control_plane import is_healthy
from tests.support.controllers.kserve_cluster import KServe
from tests.support.controllers.webhooks import issue_certificate, locate_webhook

_USER, _NAMESPACE, _MANAGER = "kserve-llmisvc-manager", "kserve", "kserve-llmisvc"
_DEFINITIONS = (
    "llminferenceservices",
    "llminferenceserviceconfigs",
    "gatewayclasses",
    "gateways",
    "httproutes",
    "inferencepools",
    "leaderworkersets",
)
_CONFIGURATIONS = ("template", "router-route", "scheduler")
_GATEWAY = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "kserve-ingress-gateway", "namespace": _NAMESPACE},
    "spec": {"gatewayClassName": "none", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
}
_WEBHOOK_PORT, _PROBE_PORT = 9444, 8082


@contextlib.contextmanager
def run_llmisvc(kserve: KServe) -> Iterator[None]:
    """Run the controller with its own definitions, role, webhooks and configurations, and Gateway API's definitions.

    It is a process in the node's network, as the user that its ClusterRole is bound to. Its gateway is an object only:
    nothing routes.
    """
    cluster, folder = kserve.cluster, Path(start(lambda: get_binaries(KSERVE)))
    role = _read(folder / "llmisvc-role.yaml")[0]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _USER},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role["metadata"]["name"],
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": _USER}],
    }
    definitions = [document for name in _DEFINITIONS for document in _read(folder / f"{name}.yaml")]
    list(apply_objects([*definitions, role, binding, _GATEWAY], kubeconfig=str(cluster.kubeconfig)))
    command = ["env", f"TMPDIR={issue_certificate(cluster, 'llmisvc')}", f"POD_NAMESPACE={_NAMESPACE}"]
    flags = ["--metrics-addr=0", f"--webhook-port={_WEBHOOK_PORT}", f"--health-probe-addr=:{_PROBE_PORT}"]
    kubeconfig = cluster.write_kubeconfig(_USER)
    cluster.daemons.start(_MANAGER, [*command, str(folder / _MANAGER), f"--kubeconfig={kubeconfig}", *flags])
    webhooks = [locate_webhook(cluster, item, _WEBHOOK_PORT) for item in _read(folder / "llmisvc-webhooks.yaml")]
    try:
        ready = f"http://{cluster.network.node}:{_PROBE_PORT}/readyz"
        cluster.daemons.wait_ready(_MANAGER, lambda: is_healthy(ready))
        configurations = [
            {**document, "metadata": {**document["metadata"], "namespace": _NAMESPACE}}
            for name in _CONFIGURATIONS
            for document in _read(folder / f"config-llm-{name}.yaml")
        ]
        list(apply_objects([*webhooks, *configurations], kubeconfig=str(cluster.kubeconfig)))
        yield
        cluster.daemons.check(_MANAGER)
    finally:
        for item in webhooks:
            resource = kserve.api.resolve_resource(item["apiVersion"], item["kind"])
            with contextlib.suppress(Exception):
                kserve.api.delete(resource, item["metadata"]["name"])
        cluster.daemons.stop(_MANAGER)


def _read(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]
