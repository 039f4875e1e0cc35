"""A job's pod logs as one stream, across restarts: each new pod is followed from its first line."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import NotFoundError, WaitTimeoutError
from kfp_mindspore.kube.cluster import CancellationToken, Cluster
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.api.names import CONTAINER_NAME, JOB_LABEL
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.backends.cluster_pods import has_started, is_owned, read_pods
from kfp_mindspore.msjob.progress import format_line
from kfp_mindspore.msjob.types import MSJob

# Bounds the memory when the reader is slower than the pods.
_WAITING_LINES = 10_000
# Pods may still write after their job has finished: terminating peers, the kubelet's buffers.
_LAST_SECONDS = 10.0
# A replaced pod's log ends at once, unless its node is lost.
_PREDECESSOR_SECONDS = 5.0
_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class _Line:
    pod: str
    text: str


@dataclass(frozen=True)
class _Stream:
    uid: str
    thread: threading.Thread
    token: CancellationToken


@dataclass(frozen=True)
class _Finished:
    """The job has finished, or was deleted."""


@dataclass(frozen=True)
class _Failure:
    error: BaseException


# A list holds the job's pod documents.
_Message = _Line | _Finished | _Failure | MSJob | list[dict[str, Any]]


class _ClosedError(Exception):
    """The reader was closed."""


def follow_pods(
    cluster: Cluster,
    watch_job: Callable[[CancellationToken], Iterator[MSJob]],
    name: str,
    namespace: str,
    uid: str,
    pod_filter: Callable[[Pod], bool],
    timeout: float | None,
    on_change: Callable[[MSJob], object] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield (pod name, line) from a job's selected pods until the job finishes.

    Args:
        cluster: The job's cluster.
        watch_job: Yields the job now and after each change.
        name: Job name.
        namespace: Job namespace.
        uid: Job uid.
        pod_filter: Whether to follow a pod.
        timeout: Seconds at most; None for no limit.
        on_change: Called with the job at first and after each change.

    Raises:
        WaitTimeoutError: It took longer.
    """
    follower = _Follower(cluster, watch_job, name, namespace, uid, pod_filter, on_change)
    try:
        yield from follower.read(timeout)
    finally:
        follower.close()


class _Follower:
    """A thread for the job, one for its pods, and one for each pod that has started."""

    def __init__(
        self,
        cluster: Cluster,
        watch_job: Callable[[CancellationToken], Iterator[MSJob]],
        name: str,
        namespace: str,
        uid: str,
        pod_filter: Callable[[Pod], bool],
        on_change: Callable[[MSJob], object] | None,
    ) -> None:
        self._on_change = on_change
        self._cluster, self._watch_states, self._pod_filter = cluster, watch_job, pod_filter
        self._name, self._namespace, self._uid = name, namespace, uid
        self._messages: queue.Queue[_Message] = queue.Queue(_WAITING_LINES)
        self._token = CancellationToken()
        self._streams: dict[str, _Stream] = {}

    def read(self, timeout: float | None) -> Iterator[tuple[str, str]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        self._start(self._watch_job)
        self._start(self._watch_pods)
        end: float | None = None
        while True:
            if end is not None and (time.monotonic() >= end or not self._is_reading()) and self._messages.empty():
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"job {self._name} has not ended after {timeout:g} s")
            try:
                message = self._messages.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(message, _Line):
                yield message.pod, format_line(message.text)
            elif isinstance(message, _Failure):
                raise message.error
            elif isinstance(message, list):
                self._follow(message)
            elif isinstance(message, MSJob):
                if self._on_change is not None:
                    self._on_change(message)
            elif isinstance(message, _Finished) and end is None:
                end = time.monotonic() + _LAST_SECONDS
                # Pods that terminated together with the job.
                self._follow(self._list_pods())

    def close(self) -> None:
        self._token.cancel()
        for stream in self._streams.values():
            stream.token.cancel()

    def _is_reading(self) -> bool:
        return any(stream.thread.is_alive() for stream in self._streams.values())

    def _start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except _ClosedError:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that reads
                if not self._token.is_cancelled:
                    self._put(_Failure(error))

        thread = threading.Thread(target=run, name=f"logs of {self._name}", daemon=True)
        thread.start()
        return thread

    def _put(self, message: _Message) -> None:
        while not self._token.is_cancelled:
            try:
                self._messages.put(message, timeout=_CHECK_SECONDS)
                return
            except queue.Full:
                continue
        raise _ClosedError

    def _watch_job(self) -> None:
        try:
            for job in self._watch_states(self._token):
                if job.metadata["uid"] != self._uid or (job.status is not None and job.status.is_finished):
                    break
                self._put(job)
        except NotFoundError:
            pass
        self._put(_Finished())

    def _watch_pods(self) -> None:
        labels = f"{JOB_LABEL}={self._name}"
        for objects in self._cluster.watch(PODS, self._namespace, labels=labels, token=self._token):
            self._put(list(objects.values()))

    def _list_pods(self) -> list[dict[str, Any]]:
        return self._cluster.list(PODS, self._namespace, labels=f"{JOB_LABEL}={self._name}")

    def _follow(self, documents: list[dict[str, Any]]) -> None:
        """Follow the selected pods that have started."""
        for document in documents:
            if not is_owned(document, self._uid) or not has_started(document):
                continue
            pod_uid = document["metadata"]["uid"]
            for pod in read_pods([document]):
                known = self._streams.get(pod.name)
                if (known is None or known.uid != pod_uid) and self._pod_filter(pod):
                    token = CancellationToken()
                    thread = self._start(self._read_log, pod.name, pod_uid, token, known)
                    self._streams[pod.name] = _Stream(pod_uid, thread, token)

    def _read_log(self, pod: str, uid: str, token: CancellationToken, predecessor: _Stream | None) -> None:
        if predecessor is not None:
            predecessor.thread.join(_PREDECESSOR_SECONDS)
            predecessor.token.cancel()
        for line in self._cluster.stream_log(pod, self._namespace, container=CONTAINER_NAME, uid=uid, token=token):
            self._put(_Line(pod, line))
