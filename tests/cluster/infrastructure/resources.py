"""Operations on Kubernetes objects that the harness needs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


def connect(kubeconfig: Path) -> Any:
    """Return a `kubernetes.client.ApiClient` for a kubeconfig; nothing global is changed."""
    from kubernetes import config

    return config.new_client_from_config(config_file=str(kubeconfig))


def has_default_account(client: Any, namespace: str = "default") -> bool:
    """Return whether a namespace has its default service account, which every pod needs."""
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        CoreV1Api(client).read_namespaced_service_account("default", namespace)
    except (ApiException, HTTPError):
        return False
    return True


def create_namespace(client: Any, name: str, seconds: float = 60) -> None:
    """Create a namespace and wait for its default service account."""
    from kubernetes.client import CoreV1Api, V1Namespace, V1ObjectMeta

    CoreV1Api(client).create_namespace(V1Namespace(metadata=V1ObjectMeta(name=name)))
    deadline = time.monotonic() + seconds
    while not has_default_account(client, name):
        if time.monotonic() > deadline:
            raise TimeoutError(f"namespace {name} has no default service account after {seconds:.0f} s")
        time.sleep(0.05)


def delete_namespace(client: Any, name: str) -> None:
    """Delete a namespace without waiting; ignore a missing one."""
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException

    try:
        CoreV1Api(client).delete_namespace(name)
    except ApiException as error:
        if error.status != 404:
            raise


def create(client: Any, item: dict[str, Any]) -> None:
    """Create an object of a built-in kind."""
    from kubernetes.utils import create_from_dict

    create_from_dict(client, item)


def is_node_ready(client: Any, name: str) -> bool:
    """Return whether a node is Ready."""
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        node = CoreV1Api(client).read_node(name)
    except (ApiException, HTTPError):
        return False
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or [])


def set_schedulable(client: Any, node: str, schedulable: bool) -> None:
    """Cordon or uncordon a node."""
    from kubernetes.client import CoreV1Api

    CoreV1Api(client).patch_node(node, {"spec": {"unschedulable": not schedulable}})


def evict(client: Any, namespace: str, pod: str) -> None:
    """Evict a pod, as draining a node does."""
    from kubernetes.client import CoreV1Api, V1Eviction, V1ObjectMeta

    body = V1Eviction(metadata=V1ObjectMeta(name=pod, namespace=namespace))
    CoreV1Api(client).create_namespaced_pod_eviction(pod, namespace, body)
