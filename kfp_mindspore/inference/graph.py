"""Several services behind one address: KServe's InferenceGraph (serving.kserve.io/v1alpha1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kfp_mindspore.canonical import digest_json
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference.manifest import (
    GRAPH_API_VERSION,
    MANAGER,
    MANAGER_LABEL,
    VERSION_ANNOTATION,
    build_graph_nodes,
)
from kfp_mindspore.inference.service import ServiceStatus, list_service_errors
from kfp_mindspore.kube.cluster import Cluster

ENSEMBLE = "Ensemble"
SPLITTER = "Splitter"
ROUTERS = (ENSEMBLE, SPLITTER)
_MANAGER = "kfp-mindspore-serving"
_UNSCHEDULABLE_SECONDS = 15.0


def build_graph(
    name: str, services: Sequence[ServiceStatus], *, router: str = ENSEMBLE, weights: Sequence[int] = ()
) -> dict[str, Any]:
    """Return an InferenceGraph over services in one namespace.

    Args:
        name: Graph name, a DNS label that differs from the services'.
        services: At least two services.
        router: `Ensemble`: each request goes to all services, and the response has theirs by name; `Splitter`: to one.
        weights: With `Splitter`: percentage of requests for each service, 100 in total; default equal ones.

    Raises:
        ValidationError: An argument is invalid; the message names each.
    """
    names = [service.name for service in services]
    namespaces = sorted({service.namespace for service in services})
    errors = list_service_errors(name, namespaces[0] if namespaces else "default")
    if name in names:
        errors.append(f"name: must differ from those of the services, got {name!r}")
    if len(set(names)) != len(names) or len(names) < 2 or len(namespaces) != 1:
        errors.append(f"services: must be at least two, each once and of one namespace, got {names} of {namespaces}")
    if router not in ROUTERS:
        errors.append(f"router: must be one of {', '.join(ROUTERS)}, got {router!r}")
    shares = list(weights) or [
        100 * (index + 1) // len(names) - 100 * index // len(names) for index in range(len(names))
    ]
    if router == ENSEMBLE and weights:
        errors.append("weights: are of the router Splitter")
    elif len(shares) != len(names) or sum(shares) != 100 or min(shares, default=0) < 1:
        errors.append(f"weights: must be one of at least 1 for each service, 100 in total, got {shares}")
    if errors:
        raise ValidationError(errors, subject=f"graph {name}")
    targets = [(service.name, service.url, service.name) for service in services]
    nodes = build_graph_nodes(router, targets, shares if router == SPLITTER else ())
    digest = digest_json(nodes)
    return {
        "apiVersion": GRAPH_API_VERSION,
        "kind": "InferenceGraph",
        "metadata": {
            "name": name,
            "namespace": namespaces[0],
            "labels": {MANAGER_LABEL: MANAGER},
            "annotations": {VERSION_ANNOTATION: digest[:12]},
        },
        "spec": {"nodes": nodes},
    }


def deploy_graph(cluster: Cluster, document: dict[str, Any], *, wait_seconds: float = 120) -> str:
    """Apply an InferenceGraph, wait until the router serves, and return the address.

    Args:
        cluster: The cluster.
        document: From `build_graph`.
        wait_seconds: Seconds to wait.

    Raises:
        ProcessFailedError: The router's pod fails; the message has the reason.
        WaitTimeoutError: The router was not ready in time.
    """
    from kfp_mindspore.inference.backends.kserve import GRAPHS
    from kfp_mindspore.inference.backends.rollout import Rollout

    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    applied = cluster.apply(document, manager=_MANAGER)
    Rollout(cluster, f"graph {name}", GRAPHS, applied, name, _UNSCHEDULABLE_SECONDS).wait(wait_seconds)
    status = cluster.get(GRAPHS, name, namespace).get("status") or {}
    return str(status.get("url") or f"http://{name}.{namespace}.svc.cluster.local")
