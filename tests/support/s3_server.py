"""A small object store that speaks as much of S3 as boto3 needs to put, get and remove objects, large ones in parts."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ACCESS_KEY, SECRET_KEY = "a-key-of-the-tests", "a secret of the tests"
BUCKET = "contexts"


class S3Server(ThreadingHTTPServer):
    """Objects by `bucket/key`; `requests` lists what came, as `METHOD path`.

    Args:
        address: Address of this machine to listen on.
    """

    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.server_address[0]}:{self.server_address[1]}"

    def close(self) -> None:
        """Stop."""
        self.shutdown()
        self.server_close()
        self._thread.join()


@contextlib.contextmanager
def start_s3_server(address: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run a server for a block."""
    server = S3Server(address)
    try:
        yield server
    finally:
        server.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Server

    def do_PUT(self) -> None:
        body = self._read_body()
        if not self._is_allowed():
            return
        key, query = self._locate()
        if "uploadId" in query:
            self.server.parts[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            self.server.objects[key] = body
        self._answer(200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def do_POST(self) -> None:
        self._read_body()
        if not self._is_allowed():
            return
        key, query = self._locate()
        bucket, _, name = key.partition("/")
        head = f"<Bucket>{bucket}</Bucket><Key>{name}</Key>"
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.server.parts[upload] = {}
            text = f"<InitiateMultipartUploadResult>{head}<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        else:
            parts = self.server.parts.pop(query["uploadId"][0])
            self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
            text = f'<CompleteMultipartUploadResult>{head}<ETag>"x"</ETag></CompleteMultipartUploadResult>'
        self._answer(200, text.encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        key, _ = self._locate()
        content = self.server.objects.get(key)
        if content is None:
            self._refuse(404, "NoSuchKey", "The specified key does not exist.")
            return
        headers = {"ETag": f'"{hashlib.md5(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(found[1]), int(found[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{min(end, len(content) - 1)}/{len(content)}"
            self._answer(206, content[start : end + 1], headers)
        else:
            self._answer(200, content, headers)

    def do_DELETE(self) -> None:
        if not self._is_allowed():
            return
        self.server.objects.pop(self._locate()[0], None)
        self._answer(204)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _is_allowed(self) -> bool:
        self.server.requests.append(f"{self.command} {urlsplit(self.path).path}")
        presigned = "".join(self._locate()[1].get("X-Amz-Credential", ()))
        signed = self.headers.get("Authorization", "")
        if f"Credential={ACCESS_KEY}/" not in signed and not presigned.startswith(f"{ACCESS_KEY}/"):
            self._refuse(403, "InvalidAccessKeyId", "The key does not exist in our records.")
            return False
        if self._locate()[0].partition("/")[0] != BUCKET:
            self._refuse(404, "NoSuchBucket", "The specified bucket does not exist")
            return False
        return True

    def _locate(self) -> tuple[str, dict[str, list[str]]]:
        split = urlsplit(self.path)
        return unquote(split.path).lstrip("/"), parse_qs(split.query, keep_blank_values=True)

    def _read_body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        content = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            if not length:
                break
            content, body = content + body[:length], body[length + 2 :]
        return content

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
