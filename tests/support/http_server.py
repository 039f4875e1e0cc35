"""HTTP servers of tests, each with a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """A handler without a log."""

    def read_body(self) -> bytes:
        """Return the request's body."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def respond(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a response; to HEAD without its body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


class Server(ThreadingHTTPServer):
    """A server that serves until it is closed, or until the end of a `with` block.

    Args:
        handler: Handles its requests.
        address: Address of this machine to listen on.
        port: Port to listen on; 0 for a free one.
        tls: Serves HTTPS.
    """

    daemon_threads = True

    def __init__(
        self, handler: Callable[..., BaseHTTPRequestHandler], address: str = "127.0.0.1", port: int = 0, tls: Any = None
    ) -> None:
        super().__init__((address, port), handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://{address}:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections."""

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()
