"""A build's pod: its start, the errors that keep it from starting, and its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import EVENTS, PODS

Document = Mapping[str, Any]

_WATCH_SECONDS = 5.0
_CHECK_SECRETS = "Check that the Secrets and claims that the build names exist in its namespace."
_CHECK_IMAGE = "Check that the nodes can pull the image: its name, its registry and the pull secrets."
# A container does not leave these waiting states without intervention.
_STUCK_REASONS = {
    "CreateContainerConfigError": _CHECK_SECRETS,
    "CreateContainerError": "Check that the image has /bin/sh.",
    "ErrImagePull": _CHECK_IMAGE,
    "ImagePullBackOff": _CHECK_IMAGE,
    "InvalidImageName": "Check the image's name.",
}


@dataclass(frozen=True)
class ContainerTermination:
    """How the build container ended.

    Args:
        exit_code: Its exit code.
        reason: Such as `Completed`, `Error`, `OOMKilled`.
        message: Its termination message, or the kubelet's.
    """

    exit_code: int
    reason: str
    message: str


def get_termination(pod: Document) -> ContainerTermination | None:
    """Return how a pod's container ended, or None before its end."""
    status = pod.get("status") or {}
    for item in status.get("containerStatuses") or []:
        ended = (item.get("state") or {}).get("terminated")
        if ended:
            exit_code = int(ended.get("exitCode") or 0)
            return ContainerTermination(exit_code, str(ended.get("reason") or ""), str(ended.get("message") or ""))
    if status.get("phase") == "Failed":
        return ContainerTermination(137, str(status.get("reason") or "Failed"), str(status.get("message") or ""))
    return None


def has_started(pod: Document) -> bool:
    """Return whether a pod's container is running or has ended."""
    states = [item.get("state") or {} for item in (pod.get("status") or {}).get("containerStatuses") or []]
    return bool(states) and all("running" in state or "terminated" in state for state in states)


def get_start_error(pod: Document) -> KfpMindSporeError | None:
    """Return the error that keeps a pod from starting until it is fixed, or None."""
    for item in (pod.get("status") or {}).get("containerStatuses") or []:
        waiting = (item.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _STUCK_REASONS:
            text = f"pod {pod['metadata']['name']}, image {item.get('image')}: {reason}: {waiting.get('message') or ''}"
            return UserError(text.rstrip(": "), hint=_STUCK_REASONS[reason])
    return None


def get_waiting_reason(pod: Document) -> str:
    """Return why a pod has not started yet: the scheduler's message, a container's waiting reason, or the phase."""
    status = pod.get("status") or {}
    for item in status.get("conditions") or []:
        if item.get("type") == "PodScheduled" and item.get("status") == "False":
            return f"{item.get('reason')}: {item.get('message')}"
    for item in status.get("containerStatuses") or []:
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return str(waiting["reason"])
    return str(status.get("phase") or "Pending")


def get_mount_error(events: Sequence[Document]) -> str:
    """Return the last event's message about a missing volume source, or an empty string."""
    for event in reversed(events):
        if event.get("reason") == "FailedMount" and "not found" in str(event.get("message")):
            return str(event["message"])
    return ""


def watch_pod(cluster: Cluster, namespace: str, labels: str, timeout: float) -> Iterator[Document | None]:
    """Yield a pod by its labels after each change and every few seconds until timeout; None while it does not exist."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        for pods in cluster.watch(PODS, namespace, labels=labels, timeout=min(left, _WATCH_SECONDS)):
            yield next(iter(pods.values()), None)


def wait_for_start(cluster: Cluster, namespace: str, labels: str, timeout: float) -> Iterator[str | Document]:
    """Yield each new waiting reason from a pod, and at last the pod, when its container is running or has ended.

    Raises:
        UserError: It cannot start: an image cannot be pulled, or a Secret does not exist.
        ProcessFailedError: It was deleted before it started.
        WaitTimeoutError: It did not start in time; the message has the waiting reason.
    """
    reason = ""
    for pod in watch_pod(cluster, namespace, labels, timeout):
        if pod is None:
            if reason:
                raise ProcessFailedError(f"the build's pod was deleted while it waited: {reason}")
            continue
        if has_started(pod) or get_termination(pod) is not None:
            yield pod
            return
        if error := get_start_error(pod):
            raise error
        current = get_waiting_reason(pod)
        if current != reason:
            reason = current
            yield reason
        elif missing := get_mount_error(_list_events(cluster, namespace, pod)):
            raise UserError(f"pod {pod['metadata']['name']}: {missing}", hint=_CHECK_SECRETS)
    raise WaitTimeoutError(f"the build's pod did not start within {timeout:g} s: {reason or 'no pod was created'}")


def wait_for_end(cluster: Cluster, namespace: str, labels: str, timeout: float) -> ContainerTermination:
    """Wait until a pod's container has ended.

    Raises:
        ProcessFailedError: The pod was deleted, such as at the Job's deadline.
        WaitTimeoutError: It is still running.
    """
    for pod in watch_pod(cluster, namespace, labels, timeout):
        if pod is None:
            raise ProcessFailedError("the build's pod was deleted while it ran: by a user, or at the Job's deadline")
        if termination := get_termination(pod):
            return termination
    raise WaitTimeoutError(f"the build's pod did not end within {timeout:g} s")


def _list_events(cluster: Cluster, namespace: str, pod: Document) -> list[dict[str, Any]]:
    return cluster.list(EVENTS, namespace, fields=f"involvedObject.uid={pod['metadata']['uid']}")
