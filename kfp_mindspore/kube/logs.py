"""What a pod's container writes: all of it, its end, or as it comes, line by line and none twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.connection import Pauses, find_transport_errors
from kfp_mindspore.kube.errors import ApiError, Request
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.kube.stop import Stop

if TYPE_CHECKING:
    from kfp_mindspore.kube.connection import Connection

_STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z (.*)", re.DOTALL)
_LARGEST_LINE = 64 * 1024 * 1024

Moment = tuple[str, str]


def read_log(connection: Connection, pod: str, namespace: str, *, container: str = "", last: int | None = None) -> str:
    """Return what a pod's container has written; empty before it starts.

    Args:
        connection: The API server.
        pod: The pod.
        namespace: Its namespace.
        container: The container; may be empty where there is only one.
        last: How many of its last lines; default all.

    Raises:
        NotFoundError: There is no such pod.
    """
    query = {"container": container, "tailLines": last}
    request = Request("get", "pods/log", pod, namespace)
    try:
        return str(connection.send(request, "GET", PODS.locate(namespace, pod, "log"), query))
    except ApiError as error:
        if _is_waiting(error):
            return ""
        raise


def stream_log(
    connection: Connection,
    pod: str,
    namespace: str,
    *,
    container: str = "",
    uid: str = "",
    stop: Stop | None = None,
) -> Iterator[str]:
    """Yield a container's lines from its first, until it has ended; a stream that breaks goes on where it was.

    Args:
        connection: The API server.
        pod: The pod.
        namespace: Its namespace.
        container: The container; may be empty where there is only one.
        uid: The pod's uid; a later pod of the same name is another one.
        stop: Ends it from another thread.
    """
    pauses = Pauses(connection.patience)
    resume = _Resume()
    request = Request("get", "pods/log", pod, namespace)
    path = PODS.locate(namespace, pod, "log")
    while True:
        query = {"container": container, "follow": "true", "timestamps": "true", "sinceTime": resume.since}
        try:
            with connection.stream(request, path, query, stop=stop) as response:
                for line in read_lines(response):
                    pauses.reset()
                    text = resume.take(line)
                    if text is not None:
                        yield text
        except NotFoundError:
            return
        except ApiError as error:
            if error.status < 500:
                return
            if not stop:
                pauses.wait(str(error))
        except find_transport_errors() as error:
            if not stop:
                pauses.wait(f"cannot {request}: {connection.describe(error)}")
        # A node or API server that restarts ends streams too.
        if stop or not _is_running(connection, pod, namespace, container, uid):
            return
        resume.begin_again()


def read_lines(response: Any) -> Iterator[bytes]:
    """Yield the lines of an answer as they come; the last may lack its end.

    Raises:
        ValueError: A line is longer than 64 MiB.
    """
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > _LARGEST_LINE:
            raise ValueError("a line of more than 64 MiB")
    if rest:
        yield rest


class _Resume:
    """Where a log was: the newest time stamp, and how many lines carried it."""

    def __init__(self) -> None:
        self._newest: Moment = ("", "")
        self._seen = 0
        self._skip = 0

    @property
    def since(self) -> str:
        return f"{self._newest[0]}Z" if self._newest[0] else ""

    def begin_again(self) -> None:
        self._skip = self._seen

    def take(self, line: bytes) -> str | None:
        """Return a line without its time stamp, or None when it was there before."""
        match = _STAMPED.fullmatch(line)
        if match is None:
            # The node's own words, about a log that it cannot read.
            return line.decode(errors="replace")
        moment = (match[1].decode(), (match[2] or b"").decode().ljust(9, "0"))
        if moment < self._newest:
            return None
        if moment == self._newest:
            if self._skip:
                self._skip -= 1
                return None
            self._seen += 1
        else:
            self._newest, self._seen, self._skip = moment, 1, 0
        return match[3].decode(errors="replace")


def _is_running(connection: Connection, pod: str, namespace: str, container: str, uid: str) -> bool:
    request = Request("get", PODS.full_name, pod, namespace)
    try:
        document = connection.send(request, "GET", PODS.locate(namespace, pod))
    except NotFoundError:
        return False
    if uid and document["metadata"].get("uid") != uid:
        return False
    states = (document.get("status") or {}).get("containerStatuses") or []
    return any("running" in (item.get("state") or {}) for item in states if container in ("", item.get("name")))


def _is_waiting(error: ApiError) -> bool:
    return error.status == 400 and "waiting to start" in error.message
