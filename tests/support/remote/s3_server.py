"""A small object store that speaks as much of S3 as boto3 needs to put, get and remove objects, large ones in parts."""

from __future__ import annotations

import hashlib
import re
import uuid
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_server import Handler, Server

ACCESS_KEY, SECRET_KEY = "a-key-of-the-tests", "a secret of the tests"
BUCKET = "contexts"


class S3Server(Server):
    """Objects by `bucket/key`; `requests` lists what came, as `METHOD path`.

    Args:
        address: Address of this machine to listen on.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__(_Handler, address)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []


class _Handler(Handler):
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
        self.respond(200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

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
        self.respond(200, text.encode())

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
            self.respond(206, content[start : end + 1], headers)
        else:
            self.respond(200, content, headers)

    def do_DELETE(self) -> None:
        if not self._is_allowed():
            return
        self.server.objects.pop(self._locate()[0], None)
        self.respond(204)

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
        body = self.read_body()
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
        self.respond(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())
