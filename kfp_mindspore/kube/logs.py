"""Container logs: complete, the last lines, or followed line by line without gaps or repeats."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.backoff import Backoff
from kfp_mindspore.kube.client import AsyncClient, transport_errors
from kfp_mindspore.kube.errors import ApiError, ApiRequest
from kfp_mindspore.kube.pods import read_pod
from kfp_mindspore.kube.resources import PODS

_TIMESTAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z (.*)", re.DOTALL)

Timestamp = tuple[str, str]


async def read_log(
    client: AsyncClient,
    pod: str,
    namespace: str,
    *,
    container: str = "",
    last: int | None = None,
    previous: bool = False,
) -> str:
    """Return a container's log; empty before the container starts.

    Args:
        client: The client.
        pod: Pod name.
        namespace: Pod namespace.
        container: Container name; may be empty if there is only one.
        last: How many last lines; default all.
        previous: Whether to return the container log before its last restart.

    Raises:
        NotFoundError: There is no such pod.
    """
    query = {"container": container, "tailLines": last, "previous": "true" if previous else None}
    request = ApiRequest("get", "pods/log", pod, namespace)
    try:
        return str(await client.request(request, "GET", PODS.get_path(namespace, pod, "log"), query))
    except ApiError as error:
        if error.status == 400 and "waiting to start" in error.message:
            return ""
        raise


async def follow_log(
    client: AsyncClient, pod: str, namespace: str, *, container: str = "", uid: str = ""
) -> AsyncGenerator[list[str], None]:
    """Yield a container's lines in batches until it terminates; a broken stream is resumed where it was.

    Args:
        client: The client.
        pod: Pod name.
        namespace: Pod namespace.
        container: Container name; may be empty if there is only one.
        uid: The pod's uid; a later pod with the same name is not followed.
    """
    backoff = Backoff(client.retry_timeout)
    position = _LogPosition()
    request = ApiRequest("get", "pods/log", pod, namespace)
    path = PODS.get_path(namespace, pod, "log")
    while True:
        query = {"container": container, "follow": "true", "timestamps": "true", "sinceTime": position.since}
        try:
            async with client.stream(request, path, query) as batches:
                async for lines in batches:
                    if texts := [text for line in lines if (text := position.advance(line)) is not None]:
                        backoff.reset()
                        yield texts
        except NotFoundError:
            return
        except ApiError as error:
            if error.status < 500:
                return
            await backoff.wait(str(error))
        except transport_errors() as error:
            await backoff.wait(f"cannot {request}: {client.describe(error)}")
        # Kubelet and API server restarts end streams too.
        if not await _is_running(client, pod, namespace, container, uid):
            return
        if position.note:
            await backoff.wait(f"cannot {request}: {position.note}")
        position.rewind()


class _LogPosition:
    """Position in a log: the newest timestamp, and how many lines had it.

    Attributes:
        note: The kubelet's last message about a log that it cannot read; empty without.
    """

    def __init__(self) -> None:
        self.note = ""
        self._newest: Timestamp = ("", "")
        self._seen = 0
        self._skip = 0

    @property
    def since(self) -> str:
        return f"{self._newest[0]}Z" if self._newest[0] else ""

    def rewind(self) -> None:
        """Skip the lines with the newest timestamp that the next stream repeats."""
        self._skip = self._seen
        self.note = ""

    def advance(self, line: bytes) -> str | None:
        """Return a line without its timestamp, or None if it was read before or is a kubelet's note on a known log."""
        match = _TIMESTAMPED.fullmatch(line)
        if match is None:
            # Such as of a container that was removed between two streams; the container's own lines have a timestamp.
            self.note = line.decode(errors="replace")
            return None if self.since else self.note
        timestamp = (match[1].decode(), (match[2] or b"").decode().ljust(9, "0"))
        if timestamp < self._newest:
            return None
        if timestamp == self._newest:
            if self._skip:
                self._skip -= 1
                return None
            self._seen += 1
        else:
            self._newest, self._seen, self._skip = timestamp, 1, 0
        return match[3].decode(errors="replace")


async def _is_running(client: AsyncClient, pod: str, namespace: str, container: str, uid: str) -> bool:
    try:
        document = await client.get(PODS, pod, namespace)
    except NotFoundError:
        return False
    state = read_pod(document)
    if uid and state.uid != uid:
        return False
    return any(item.is_running for item in state.containers if container in ("", item.name))
