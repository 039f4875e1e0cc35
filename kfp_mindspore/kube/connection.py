"""One API server over HTTP: authentication, patience with its troubles, answers as JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from kfp_mindspore.kube.configuration import Access, load_access
from kfp_mindspore.kube.errors import Request, UncertainError, UnreachableError, explain_answer, read_status
from kfp_mindspore.kube.stop import Stop

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
# Answers that say: ask again. 500 is one only with a Retry-After: it also stands for what fails every time.
_BUSY = frozenset({429, 502, 503, 504})
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_IS_IT_UP = "Is the cluster up, and is it the right one (--context, --kubeconfig)?"
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
        if hasattr(socket, name)
    ),
)


class Connection:
    """A connection that is made on first use, and made good again when it breaks.

    A server that has never answered is given up at once, since its address is probably wrong. One that has is waited
    for, so that a job that is followed outlives an upgrade of the control plane.

    Args:
        kubeconfig: See `load_access`.
        context: See `load_access`.
        patience: Seconds for which a server that has answered before is waited for.
    """

    def __init__(
        self, kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None, patience: float = 300.0
    ) -> None:
        self.kubeconfig = kubeconfig
        self.context = context
        self.patience = patience
        self._has_answered = False

    @functools.cached_property
    def access(self) -> Access:
        """Where the cluster is; read again when its credentials are not taken any more."""
        return load_access(self.kubeconfig, self.context)

    @functools.cached_property
    def _pool(self) -> Any:
        from kubernetes.client.rest import RESTClientObject
        from urllib3.connection import HTTPConnection

        pool = RESTClientObject(self.access.configuration).pool_manager
        # A stream may be silent for hours; so a peer that is gone is noticed nevertheless.
        pool.connection_pool_kw["socket_options"] = [*HTTPConnection.default_socket_options, *_KEEPALIVE]
        return pool

    def send(
        self,
        request: Request,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Any:
        """Send a request and return the JSON answer, or the text of one that is none.

        Args:
            request: What it asks for, for messages.
            method: HTTP method.
            path: Path at the server.
            query: Parameters; those that are None or empty are left out.
            body: JSON types to send.
            content_type: What the body is.

        Raises:
            KfpMindSporeError: One of `kfp_mindspore.kube.errors`, NotFoundError, AlreadyExistsError or ValidationError.
        """
        response = self._open(request, method, path, query, body, content_type, _READ_SECONDS, Pauses(self.patience))
        if response.headers.get("Content-Type", "").startswith(JSON):
            return json.loads(response.data)
        return response.data.decode(errors="replace")

    @contextlib.contextmanager
    def stream(
        self,
        request: Request,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        read_timeout: float | None = None,
        stop: Stop | None = None,
    ) -> Iterator[Any]:
        """Send a GET request whose answer goes on, and hand out the urllib3 response.

        Args:
            request: What it asks for, for messages.
            path: Path at the server.
            query: Parameters.
            read_timeout: Seconds of silence until reading raises; None for no limit.
            stop: Ends it from another thread.
        """
        response = self._open(
            request, "GET", path, query, None, JSON, read_timeout, Pauses(self.patience), preload=False
        )
        try:
            with stop.guard(response) if stop is not None else contextlib.nullcontext():
                yield response
        finally:
            # A stream that has not ended cannot serve another request.
            response.close()
            response.release_conn()

    def _open(
        self,
        request: Request,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        content_type: str,
        read_timeout: float | None,
        pauses: Pauses,
        *,
        preload: bool = True,
    ) -> Any:
        """Return an answer of status 2xx, trying again as long as that is promising and harmless."""
        renewed = False
        while True:
            try:
                response = self._try(method, path, query, body, content_type, read_timeout, preload)
            except find_transport_errors() as error:
                text = f"cannot {request}: {self.describe(error)}"
                if method == "POST" and not _was_not_sent(error):
                    raise UncertainError(text, hint=_IS_IT_UP) from error
                if not self._has_answered:
                    raise UnreachableError(text, hint=_IS_IT_UP) from error
                pauses.wait(text, self._give_up)
                continue
            self._has_answered = True
            if 200 <= response.status < 300:
                return response
            status = read_status(response.data)
            after = response.headers.get("Retry-After")
            if response.status == 401 and not renewed:
                renewed = True
                self._renew()
                continue
            refusal = explain_answer(request, response.status, status)
            if method == "POST" and response.status in (502, 504):
                raise UncertainError(str(refusal))
            if response.status in _BUSY or (response.status == 500 and after):
                pauses.wait(str(refusal), seconds=float(after) if after and after.isdigit() else None)
                continue
            raise refusal

    def _try(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        content_type: str,
        read_timeout: float | None,
        preload: bool,
    ) -> Any:
        import urllib3

        configuration = self.access.configuration
        headers = {"Accept": f"{JSON}, */*", "User-Agent": "kfp-mindspore"}
        for setting in configuration.auth_settings().values():
            if setting["value"]:
                headers[setting["key"]] = setting["value"]
        if body is not None:
            headers["Content-Type"] = content_type
        given = {key: value for key, value in (query or {}).items() if value not in (None, "")}
        return self._pool.request(
            method,
            configuration.host.rstrip("/") + path + (f"?{urlencode(given)}" if given else ""),
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=read_timeout),
            retries=False,
            redirect=False,
            preload_content=preload,
        )

    def _renew(self) -> None:
        """Read the credentials again: a token may have expired before its time, or another have been written."""
        for name in ("access", "_pool"):
            self.__dict__.pop(name, None)

    def _give_up(self) -> None:
        # What still follows, such as the deletion of a job, need not wait as long again.
        self._has_answered = False

    def describe(self, error: Exception) -> str:
        """Return a sentence about a connection that failed or broke."""
        host = self.access.configuration.host
        text = str(getattr(error, "reason", None) or error)
        # urllib3 puts the connection object before what happened.
        text = text.rsplit(">: ", 1)[-1]
        return f"the API server {host} of {self.access.source} cannot be reached: {text}"


class Pauses:
    """Pauses between tries, each longer than the one before, until patience is over.

    Args:
        patience: Seconds in all, counted from the first trouble.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._start: float | None = None
        self._next = _FIRST_PAUSE_SECONDS

    def reset(self) -> None:
        """Start anew: it went well."""
        self._start, self._next = None, _FIRST_PAUSE_SECONDS

    def wait(self, trouble: str, give_up: Callable[[], object] | None = None, seconds: float | None = None) -> None:
        """Wait a little.

        Args:
            trouble: What went wrong.
            give_up: Called before patience ends.
            seconds: How long the server asks to wait; None for ever longer pauses.

        Raises:
            UnreachableError: It has gone on for too long.
        """
        now = time.monotonic()
        self._start = now if self._start is None else self._start
        # Not all clients at once.
        pause = self._next * random.uniform(0.5, 1.0) if seconds is None else seconds + random.uniform(0, 0.1)
        self._next = min(self._next * 2, _LONGEST_PAUSE_SECONDS)
        if now + pause - self._start > self._patience:
            if give_up is not None:
                give_up()
            raise UnreachableError(f"{trouble} (for {self._patience:g} s)")
        time.sleep(pause)


def find_transport_errors() -> tuple[type[Exception], ...]:
    """Return what is raised when a connection cannot be made, or breaks."""
    import urllib3

    return (urllib3.exceptions.HTTPError, OSError)


def _was_not_sent(error: Exception) -> bool:
    import urllib3

    return isinstance(error, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError))
