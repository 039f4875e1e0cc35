"""A build's pod: its start, the errors that keep it from starting, and its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.pods import KILLED, ContainerTermination, PodState, read_pod
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


def get_termination(pod: PodState) -> ContainerTermination | None:
    """Return how a pod's container ended, or None while it runs."""
    for item in pod.containers:
        if item.termination is not None:
            return item.termination
    return ContainerTermination(KILLED, pod.reason or "Failed", pod.message) if pod.phase == "Failed" else None


def get_start_error(pod: PodState) -> KfpMindSporeError | None:
    """Return the error that keeps a pod from starting until it is fixed, or None."""
    for item in pod.containers:
        if item.waiting_reason in _STUCK_REASONS:
            text = f"pod {pod.name}, image {item.image}: {item.waiting_reason}: {item.waiting_message}"
            return UserError(text.rstrip(": "), hint=_STUCK_REASONS[item.waiting_reason])
    return None


def get_waiting_reason(pod: PodState) -> str:
    """Return why a pod has not started yet: the scheduler's message, a container's waiting reason, or the phase."""
    if pod.unscheduled is not None:
        return f"{pod.unscheduled.reason}: {pod.unscheduled.message}"
    return next((item.waiting_reason for item in pod.containers if item.waiting_reason), pod.phase)


def get_mount_error(events: Sequence[Document]) -> str:
    """Return the last event's message about a missing volume source, or an empty string."""
    for event in reversed(events):
        if event.get("reason") == "FailedMount" and "not found" in str(event.get("message")):
            return str(event["message"])
    return ""


def watch_pod(cluster: Cluster, namespace: str, labels: str, timeout: float) -> Iterator[PodState | None]:
    """Yield a pod by its labels after each change and every few seconds until timeout; None while it does not exist."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        for pods in cluster.watch(PODS, namespace, labels=labels, timeout=min(left, _WATCH_SECONDS)):
            yield next(map(read_pod, pods.values()), None)


def wait_for_start(cluster: Cluster, namespace: str, labels: str, timeout: float) -> Iterator[str | PodState]:
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
        if pod.has_started or get_termination(pod) is not None:
            yield pod
            return
        if error := get_start_error(pod):
            raise error
        current = get_waiting_reason(pod)
        if current != reason:
            reason = current
            yield reason
        elif missing := get_mount_error(_list_events(cluster, namespace, pod)):
            raise UserError(f"pod {pod.name}: {missing}", hint=_CHECK_SECRETS)
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


def _list_events(cluster: Cluster, namespace: str, pod: PodState) -> list[dict[str, Any]]:
    return cluster.list(EVENTS, namespace, fields=f"involvedObject.uid={pod.uid}")
