"""`python -m mindsporeserver.request_log.sender URL`: sends events to an endpoint, in a process of its own.

Threads that send would take Python's lock from the server's event loop for each event. A batch is a line of JSON on
stdin, a list of [headers, body]; the answer is a line [lost events, reason]. The process ends with stdin.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from kfp_mindspore.canonical import to_canonical_json

# KServe's agent has as many workers.
_SENDERS = 5
# For an event, and for a batch: a slow endpoint must not hold the events behind it.
_TIMEOUT_SECONDS = 5.0


class Endpoint:
    """Posts over one connection per thread.

    Args:
        url: `http://…` or `https://…`.
    """

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        self._connections = threading.local()

    def post(self, headers: dict[str, str], body: str, deadline: float) -> str:
        """Send an event; return why it was lost, empty if it was not."""
        connection: http.client.HTTPConnection | None = getattr(self._connections, "open", None)
        # An idle connection may have been closed meanwhile.
        for is_last in (connection is None, True):
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return f"no response within {_TIMEOUT_SECONDS:g} s"
            connection = connection or self._connect()
            connection.timeout = seconds
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
            self._connections.open = None
            try:
                connection.request("POST", self._target, body.encode(), headers)
                with connection.getresponse() as response:
                    response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connection = None
                if is_last or not isinstance(error, ConnectionError):
                    return f"{type(error).__name__}: {error}"
                continue
            self._connections.open = connection
            return "" if response.status < 300 else f"status {response.status}"
        return ""

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "", self._url.port)


def main() -> None:
    """Send batches until stdin ends."""
    endpoint = Endpoint(sys.argv[1])
    with ThreadPoolExecutor(_SENDERS) as pool:
        for line in sys.stdin:
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            sending = [pool.submit(endpoint.post, headers, body, deadline) for headers, body in json.loads(line)]
            reasons = [reason for future in sending if (reason := future.result())]
            print(to_canonical_json([len(reasons), reasons[0] if reasons else ""]), flush=True)


if __name__ == "__main__":
    main()
