"""A build's pods: waited for, understood when they cannot start, fed by exec, and read to their end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.images.builders.cluster_layout import CONTAINER
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import EVENTS, PODS

Document = Mapping[str, Any]

_CHUNK_BYTES = 1 << 18
_LOOK_SECONDS = 5.0
_LOADER_SECONDS = 300.0
# A container in one of these states gets out of it only when somebody mends what is wrong.
_STUCK = {
    "CreateContainerConfigError": "See that the Secrets and ConfigMaps that the build names exist in its namespace.",
    "CreateContainerError": "See that the image has the program that the build runs.",
    "ErrImagePull": "See that the nodes can pull the image: its name, its registry and the pull secrets.",
    "ImagePullBackOff": "See that the nodes can pull the image: its name, its registry and the pull secrets.",
    "InvalidImageName": "See the image's name.",
}
_MISSING_VOLUME = "FailedMount"


@dataclass(frozen=True)
class Ending:
    """How a pod's container ended.

    Args:
        exit_code: Its exit code.
        reason: Such as `Completed`, `Error`, `OOMKilled`.
        message: The termination message: what the container left, or the node's words.
        container: Which container: that of the build, or one before it.
    """

    exit_code: int
    reason: str
    message: str
    container: str


def find_ending(pod: Document) -> Ending | None:
    """Return how a pod's build ended, or None while it goes on.

    Args:
        pod: The pod, as the API server says.
    """
    status = pod.get("status") or {}
    for item in status.get("initContainerStatuses") or []:
        ended = (item.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return _read_ending(ended, item["name"])
    for item in status.get("containerStatuses") or []:
        ended = (item.get("state") or {}).get("terminated")
        if ended:
            return _read_ending(ended, item["name"])
    if status.get("phase") == "Failed":
        return Ending(137, str(status.get("reason") or "Failed"), str(status.get("message") or ""), CONTAINER)
    return None


def has_started(pod: Document) -> bool:
    """Tell whether a pod's last container runs or ran."""
    states = [item.get("state") or {} for item in (pod.get("status") or {}).get("containerStatuses") or []]
    return bool(states) and all("running" in state or "terminated" in state for state in states)


def find_obstacle(pod: Document) -> KfpMindSporeError | None:
    """Return why a pod will not start unless somebody does something, or None."""
    status = pod.get("status") or {}
    for item in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (item.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _STUCK:
            text = f"pod {pod['metadata']['name']}, image {item.get('image')}: {reason}: {waiting.get('message') or ''}"
            return UserError(text.rstrip(": "), hint=_STUCK[reason])
    return None


def explain_waiting(pod: Document) -> str:
    """Return what a pod waits for, in the scheduler's words when it is that."""
    status = pod.get("status") or {}
    for item in status.get("conditions") or []:
        if item.get("type") == "PodScheduled" and item.get("status") == "False":
            return f"{item.get('reason')}: {item.get('message')}"
    for item in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return str(waiting["reason"])
    return str(status.get("phase") or "Pending")


def find_missing_volume(events: Sequence[Document]) -> str:
    """Return the last event that says that a Secret, ConfigMap or claim of a pod is missing, or an empty text."""
    for event in reversed(events):
        if event.get("reason") == _MISSING_VOLUME and "not found" in str(event.get("message")):
            return str(event["message"])
    return ""


def watch_pod(cluster: Cluster, namespace: str, labels: str, timeout: float) -> Iterator[Document | None]:
    """Yield a pod by its labels after each change and at least every few seconds; None while it is not there.

    It ends when the time is over.
    """
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        for pods in cluster.watch(PODS, namespace, labels=labels, timeout=min(left, _LOOK_SECONDS)):
            yield next(iter(pods.values()), None)


def wait_for_start(cluster: Cluster, namespace: str, labels: str, timeout: float) -> Iterator[str | Document]:
    """Yield what a pod waits for, each thing once, and at last the pod when its container runs or has ended.

    Raises:
        UserError: It cannot start: an image that cannot be pulled, a Secret that is not there.
        ProcessFailedError: It was deleted before it started: by somebody, or at the Job's deadline.
        WaitTimeoutError: It did not start in time; the message says what it waited for.
    """
    said = ""
    for pod in watch_pod(cluster, namespace, labels, timeout):
        if pod is None:
            if said:
                raise ProcessFailedError(f"the build's pod was deleted while it waited: {said}")
            continue
        if has_started(pod) or find_ending(pod) is not None:
            yield pod
            return
        if obstacle := find_obstacle(pod):
            raise obstacle
        waits = explain_waiting(pod)
        if waits == said and (missing := find_missing_volume(_list_events(cluster, namespace, pod))):
            raise UserError(f"pod {pod['metadata']['name']}: {missing}", hint=_STUCK["CreateContainerConfigError"])
        if waits != said:
            said = waits
            yield said
    raise WaitTimeoutError(f"the build's pod did not start within {timeout:g} s: {said or 'no pod was made'}")


def wait_for_end(cluster: Cluster, namespace: str, labels: str, timeout: float) -> Ending:
    """Wait until a pod's container has ended.

    Raises:
        ProcessFailedError: The pod is gone, as after the Job's deadline.
        WaitTimeoutError: It goes on.
    """
    for pod in watch_pod(cluster, namespace, labels, timeout):
        if pod is None:
            raise ProcessFailedError("the build's pod was deleted while it ran: by somebody, or at the Job's deadline")
        if ending := find_ending(pod):
            return ending
    raise WaitTimeoutError(f"the build's pod did not end within {timeout:g} s")


def run_loader(
    cluster: Cluster, pod: dict[str, Any], namespace: str, command: Sequence[str], file: BinaryIO | None
) -> None:
    """Make a pod, run one command in it with a file on its standard input, and remove the pod.

    Args:
        cluster: The cluster.
        pod: The pod, with one container that waits.
        namespace: Its namespace.
        command: The command.
        file: What it reads, from the file's position on; None for nothing.

    Raises:
        UserError: The pod cannot start.
        ProcessFailedError: The command failed.
    """
    name = pod["metadata"]["name"]
    created = cluster.create(PODS, pod, namespace)
    try:
        _wait_until_running(cluster, namespace, name)
        _exec(cluster, namespace, name, command, file)
    finally:
        with contextlib.suppress(NotFoundError):
            cluster.delete(PODS, name, namespace, grace_seconds=0, uid=created["metadata"]["uid"])


def _wait_until_running(cluster: Cluster, namespace: str, name: str) -> None:
    said = ""
    deadline = time.monotonic() + _LOADER_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        fields = f"metadata.name={name}"
        for pods in cluster.watch(PODS, namespace, fields=fields, timeout=min(left, _LOOK_SECONDS)):
            pod = pods.get(name)
            if pod is None:
                raise ProcessFailedError(f"pod {name}: was deleted while it started")
            if obstacle := find_obstacle(pod):
                raise obstacle
            if (pod.get("status") or {}).get("phase") == "Running":
                return
            said = explain_waiting(pod)
    raise WaitTimeoutError(f"pod {name}: did not start within {_LOADER_SECONDS:g} s: {said}")


def _exec(cluster: Cluster, namespace: str, name: str, command: Sequence[str], file: BinaryIO | None) -> None:
    from kubernetes import client
    from kubernetes.client.rest import ApiException
    from kubernetes.stream import stream

    api = client.CoreV1Api(client.ApiClient(cluster.connection.access.configuration))
    try:
        channel = stream(
            api.connect_get_namespaced_pod_exec,
            name,
            namespace,
            command=list(command),
            stdin=file is not None,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
    except ApiException as error:
        raise KfpMindSporeError(f"pod {name}: cannot run a command in it: {error.reason}") from None
    try:
        while file is not None and channel.is_open() and (chunk := file.read(_CHUNK_BYTES)):
            channel.write_stdin(chunk)
            channel.update(timeout=0)
        while channel.is_open():
            channel.update(timeout=1)
        code, said = channel.returncode, channel.read_all()
    finally:
        channel.close()
    if code != 0:
        raise ProcessFailedError(
            f"pod {name}: `{' '.join(command)}` ended with exit code {code}", log=said.splitlines()[-10:]
        )


def _list_events(cluster: Cluster, namespace: str, pod: Document) -> list[dict[str, Any]]:
    return cluster.list(EVENTS, namespace, fields=f"involvedObject.uid={pod['metadata']['uid']}")


def _read_ending(ended: Document, container: str) -> Ending:
    return Ending(
        int(ended.get("exitCode") or 0), str(ended.get("reason") or ""), str(ended.get("message") or ""), container
    )
