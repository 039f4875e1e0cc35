"""Requests whose line and headers are odd: paths, versions, methods, and bytes that are no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.fuzz.cases import Case
from tests.fuzz.json_cases import make_v1, make_v2, pick_headers
from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.targets import Target

_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "post", "X" * 30]
_NAMES = [
    "cats", "digits2", "Digits", "digits ", "%64igits", "digits%00", "digits%2F..", "..", ".", "", "é", "%C3%A9", "%ff",
    "a" * 3000, "digits;a", "digits:predict", "%20", "0", "-1", "null", "*", "<script>", "%0d%0aX:1", "digits%0a", "{}",
]  # fmt: skip
_VERSIONS = ["1", "0", "-1", "v1", "latest", "99999999999999999999999", "", "%00", "1.0", "..", "é", "\uff11"]
_PATHS = [
    "/", "//", "/v1", "/v1/", "/v2", "/v2/", "/v1/models", "/v1/models/", "/v2/models", "/v2/health/live",
    "/v2/health/ready", "/v2/health", "/metrics", "/metrics/", "/docs", "/openapi.json", "/redoc", "/favicon.ico",
    "/v2/repository/index", "/v2/repository", "/..", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "*", "/?", "/#a",
    "/v2/models/../models", "/V2/health/ready", "/v3", "http://127.0.0.1/v2", "/\\", "/%", "/%zz", "/" + "a" * 60_000,
    "/v2/repository/models//load", "/v2/repository/models/cats/load", "/v2/repository/models/cats/unload",
    "/v2/repository/models/..%2F..%2Fetc/load", "/v2/repository/models/%00/load", "/v2/repository/models/é/unload",
    "/v2/repository/models/../digits/load/x",
]  # fmt: skip
_ENDS = [
    ":predict",
    ":explain",
    "/infer",
    "/ready",
    "",
    ":",
    "/",
    "/load",
    "/unload",
    ":predict/",
    "/infer/",
    "/generate",
]
_V1 = b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: a\r\n"
_V2 = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: a\r\n"
_GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"
_RAW = [
    b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"\x00" * 100,
    b"POST /v1/models/digits:predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    _V1 + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}    ",
    _V1 + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    _V1 + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    _V1 + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    _V1 + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    _V2 + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}\r\n",
    _V2 + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    _V2 + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\n{\r\n1\r\n}\r\n0\r\nA: b\r\n\r\n",
    _V2 + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v2/models/digits/infer HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v2/models/digits/infer HTTP/1.0\r\n\r\n{}", b"GET /v2/models/digits\r\n\r\n",
    _GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
    _GET + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: \r\n\r\n",
    b"GET /v2/health/ready HTTP/1.1\nHost: a\n\n", b"GET  /v2/health/ready  HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v2/health/ready HTTP/1.1\r\n Host: a\r\n\r\n", b"GET /v2/health/ready HTTP/1.1\r\nHost : a\r\n\r\n",
    _GET + b"A\x00B: c\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
    b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000 + b"\r\n\r\n", b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
]  # fmt: skip


def make_http_case(random: Random, targets: Sequence[Target]) -> Case:
    """Make a request that is odd before its body."""
    if random.random() < 0.15:
        content = random.choice(_RAW)
        if random.random() < 0.5:
            content = mutate_bytes(random, content)
        # Without a last empty line a server waits for more, and it is told that there is none.
        return Case("http", "", content, "")
    method = random.choice(_METHODS)
    body = b""
    if random.random() < 0.6:
        body = random.choice([make_v1, make_v2])(random, targets).body
        method = random.choice(["POST", "POST", method])
    name = random.choice([target.name for target in targets] if random.random() < 0.4 else _NAMES)
    choice, end = random.random(), random.choice(_ENDS)
    if choice < 0.4:
        path = random.choice(_PATHS)
    elif choice < 0.7:
        path = f"/{random.choice(['v1', 'v2', 'v2', 'v3', ''])}/models/{name}{end}"
    elif choice < 0.95:
        path = f"/v2/models/{name}/versions/{random.choice(_VERSIONS)}{end}"
    else:
        letters = [chr(random.randrange(33, 127)) for _ in range(random.randrange(1, 60))]
        path = "/" + "".join(letters)
    if random.random() < 0.1:
        path += random.choice(["?", "?a=b", "?a[]=%ff", "?" + "a=b&" * 500, "#x", "?\x7f", "?é"])
    # No white space: that would be another request line, not another path.
    return Case("http", path.replace(" ", "%20"), body, method, pick_headers(random))
