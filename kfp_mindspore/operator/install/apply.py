"""Installation by server-side apply: other managers' fields stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import WaitTimeoutError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import DEFINITIONS

MANAGER = "kfp-mindspore-install"
_ESTABLISH_SECONDS = 60.0


def apply_objects(
    objects: Sequence[Mapping[str, Any]], *, kubeconfig: str | None = None, context: str | None = None
) -> Iterator[str]:
    """Apply objects in order, and yield each name once applied.

    Args:
        objects: Manifests; definitions before their custom resources.
        kubeconfig: A kubeconfig file; None for `$KUBECONFIG` or `~/.kube/config`.
        context: The kubeconfig's context; None for the current one.

    Raises:
        WaitTimeoutError: The API server does not establish a definition.
    """
    cluster = Cluster(kubeconfig, context)
    for document in objects:
        cluster.apply(document, manager=MANAGER)
        if document["kind"] == DEFINITIONS.kind:
            _wait_established(cluster, document["metadata"]["name"])
        yield f"{str(document['kind']).lower()}/{document['metadata']['name']}"


def _wait_established(cluster: Cluster, name: str) -> None:
    watch = cluster.watch(DEFINITIONS, fields=f"metadata.name={name}", timeout=_ESTABLISH_SECONDS)
    for definitions in watch:
        conditions = (definitions.get(name, {}).get("status") or {}).get("conditions") or []
        if any(item["type"] == "Established" and item["status"] == "True" for item in conditions):
            return
    raise WaitTimeoutError(
        f"customresourcedefinition/{name}: not established after {_ESTABLISH_SECONDS:g} s",
        hint=f"See why: kubectl describe customresourcedefinition {name}",
    )
