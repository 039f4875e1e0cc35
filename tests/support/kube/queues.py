"""Kueue's queues on a fake API server: a LocalQueue and the ClusterQueue behind it, with what Kueue writes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.msjob.api.kueue import CLUSTER_QUEUES, LOCAL_QUEUES
from tests.support.kube.fake_api_server import FakeApiServer


def put_queue(
    api: FakeApiServer,
    name: str = "research",
    namespace: str = "team",
    *,
    flavors: Sequence[Mapping[str, str]] = ({"cpu": "4", "memory": "8Gi"},),
    stop_policy: str = "None",
    **cluster_spec: str,
) -> None:
    """Store both queues; the ClusterQueue is named `shared`.

    Args:
        api: The server.
        name: The LocalQueue.
        namespace: Its namespace.
        flavors: Each flavor's quotas.
        stop_policy: The LocalQueue's.
        **cluster_spec: Further fields of the ClusterQueue.
    """
    groups = [
        {
            "coveredResources": list(flavors[0]),
            "flavors": [
                {
                    "name": f"flavor-{index}",
                    "resources": [{"name": item, "nominalQuota": quota} for item, quota in quotas.items()],
                }
                for index, quotas in enumerate(flavors)
            ],
        }
    ]
    shared_stop = cluster_spec.get("stopPolicy", "None") != "None"
    shared_reason = "Can't admit new workloads: is stopped." if shared_stop else ""
    reason = "LocalQueue is stopped" if stop_policy != "None" else ""
    reason = reason or ("Can't submit new workloads to clusterQueue" if shared_stop else "")
    _put(api, CLUSTER_QUEUES.get_path(), "shared", {"resourceGroups": groups, **cluster_spec}, shared_reason)
    _put(
        api,
        LOCAL_QUEUES.get_path(namespace),
        name,
        {"clusterQueue": "shared", "stopPolicy": stop_policy},
        reason,
    )


def _put(api: FakeApiServer, collection: str, name: str, spec: dict[str, Any], inactive: str) -> None:
    condition = {"type": "Active", "status": "False" if inactive else "True", "message": inactive or "Can submit"}
    api.put(collection, {"metadata": {"name": name}, "spec": spec, "status": {"conditions": [condition]}})
