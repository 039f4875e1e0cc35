"""The hot routes (`:predict` and `/infer`), answered in front of kserve's application, which keeps every other route.

FastAPI's way costs most of a request's time: models of pydantic, dependency resolution, several log lines. What is
answered here is the same wherever kserve's own answer is a 2xx; the tests compare the two.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from mindsporeserver.errors import (
    ClientGoneError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    RequestError,
    UnsupportedError,
)
from mindsporeserver.protocols import v1, v2
from mindsporeserver.protocols.connection import answer_at_once, refuse_rest

if TYPE_CHECKING:
    from mindsporeserver.models.batcher import Ticket
    from mindsporeserver.models.model import MindSporeModel
    from mindsporeserver.models.repository import Repository
    from mindsporeserver.observability.logs import RequestLog
    from mindsporeserver.observability.metrics import Metrics
    from mindsporeserver.observability.tracing import Span, Tracer
    from mindsporeserver.workers.control import Control

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
# Reading a larger body takes as long as many small requests, which others should not wait for.
_LARGE = 256 << 10
_RETRY = (b"retry-after", b"1")
_HEADER_LENGTH = b"inference-header-content-length"
_TIMEOUT = b"x-envoy-expected-rq-timeout-ms"
_READ = frozenset({b"content-type", b"content-encoding", b"x-request-id", _HEADER_LENGTH, _TIMEOUT, b"ce-id"})
_REQUEST = re.compile(r"/v1/models/(?P<v1>[^/]+):predict|/v2/models/(?P<v2>[^/]+)(/versions/(?P<version>[^/]+))?/infer")
_VERSIONED = re.compile(r"/v2/models/(?P<name>[^/]+)/versions/(?P<version>[^/]+)(?P<ready>/ready)?")
_LOADING = re.compile(r"/v2/repository/models/(?P<name>[^/]+)/(?P<action>load|unload)")
_CLOUD_EVENT = b"application/cloudevents+json"


@dataclass(frozen=True)
class RequestLimits:
    """What a request may cost.

    Args:
        max_bytes: Most bytes of a body.
        max_buffered_bytes: Most bytes of all bodies that are read or computed; over it requests are refused.
        body_seconds: How long a body may take to arrive.
        timeout_seconds: How long a request may wait for the graph; 0 for as long as it takes.
    """

    max_bytes: int = 32 << 20
    max_buffered_bytes: int = 512 << 20
    body_seconds: float = 30.0
    timeout_seconds: float = 60.0


class HotRoutes:
    """An ASGI application.

    Args:
        application: kserve's.
        repository: What is served.
        control: Loads and unloads, here or in all workers.
        limits: See `RequestLimits`.
        metrics: The process' metrics.
        log: Writes a line a request.
        tracer: Makes spans, or None.
    """

    def __init__(
        self,
        application: Application,
        repository: Repository,
        control: Control,
        limits: RequestLimits,
        metrics: Metrics,
        log: RequestLog,
        tracer: Tracer | None = None,
    ) -> None:
        self._application = application
        self._repository = repository
        self._control = control
        self._limits = limits
        self._metrics = metrics
        self._log = log
        self._tracer = tracer
        self._buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        path = scope["path"]
        if scope["method"] == "POST":
            route = self._repository.routes.get(path)
            if route is not None:
                await self._answer(route[0], route[1], scope, receive, send)
                return
            if match := _REQUEST.fullmatch(path):
                name = match["v1"] or match["v2"]
                await self._refuse_unknown("v1" if match["v1"] else "v2", name, match["version"] or "", scope, send)
                return
            if match := _LOADING.fullmatch(path):
                await self._control_model(match["name"], match["action"], send)
                return
        elif scope["method"] == "GET":
            if path == "/metrics":
                accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
                body, kind = await asyncio.to_thread(self._metrics.render, accept.decode("latin-1"))
                await _send(send, 200, body, [(b"content-type", kind.encode())])
                return
            if match := _VERSIONED.fullmatch(path):
                await self._describe_version(match["name"], match["version"], bool(match["ready"]), send)
                return
        if path == "/v2/repository/index" and scope["method"] in ("GET", "POST"):
            await _send(send, 200, orjson.dumps(await self._control.index()), [_JSON])
            return
        await self._application(scope, receive, send)

    async def _answer(self, protocol: str, model: MindSporeModel, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        headers = {name: value for name, value in scope["headers"] if name in _READ}
        if protocol == "v1" and (b"ce-id" in headers or headers.get(b"content-type", b"").startswith(_CLOUD_EVENT)):
            await self._application(scope, receive, send)
            return
        header_length = headers.get(_HEADER_LENGTH)
        if header_length is not None and protocol == "v2":
            protocol = "v2-binary"
        model.metrics.count_request(protocol)
        span = self._start_span(model, scope)
        reply = [_JSON]
        request_id = headers.get(b"x-request-id")
        if request_id is not None:
            reply.append((b"x-request-id", request_id))
        size, ticket, reason, body_id = 0, None, "", ""
        try:
            model.admit()
            if b"content-encoding" in headers and headers[b"content-encoding"] not in (b"", b"identity"):
                raise UnsupportedError("Content-Encoding: only identity is offered")
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                body: bytes = message.get("body", b"")
                self._check_size(len(body), 0)
            else:
                body = await self._read_rest_in_time(message, receive)
            size = len(body)
            self._buffered += size
            deadline = self._find_deadline(started, headers.get(_TIMEOUT))
            is_gone = _find_presence(receive)
            if protocol == "v1":
                if size <= _LARGE:
                    inputs = _decode_v1(body, model)
                else:
                    inputs = await asyncio.to_thread(_decode_v1, body, model)
                outputs, ticket = await model.infer(inputs, deadline=deadline, is_gone=is_gone)
                content = v1.encode(outputs)
            else:
                if size <= _LARGE:
                    request = _decode_v2(body, model, header_length)
                else:
                    request = await asyncio.to_thread(_decode_v2, body, model, header_length)
                body_id = request.id
                outputs, ticket = await model.infer(request.inputs, deadline=deadline, is_gone=is_gone)
                content, json_length = v2.encode(outputs, request, model.name, model.version)
                if json_length is not None:
                    reply[0] = _BINARY
                    reply.append((_HEADER_LENGTH, b"%d" % json_length))
            status = 200
        except RequestError as error:
            status, reason = error.status, error.message
            model.metrics.count_failure(error.reason)
            content = orjson.dumps({"error": reason})
            if status == 503:
                reply.append(_RETRY)
        except Exception as error:
            # A mistake of this server: counted and told as such; uvicorn answers 500 and logs the trace.
            model.metrics.count_failure("error")
            self._record(protocol, model, 500, started, body_id, ticket, type(error).__name__, span)
            raise
        finally:
            self._buffered -= size
        if status == 200 and request_id is None and answer_at_once(send, reply, content):
            pass
        elif status != 499:
            # What is left of a body that is too large or too slow is not waited for.
            await _send(send, status, content, reply, may_stay=status not in (408, 413))
        if span is not None or self._log.wants(status):
            known_as = body_id if request_id is None else request_id.decode("latin-1")
            self._record(protocol, model, status, started, known_as, ticket, reason, span)

    async def _read_rest_in_time(self, message: Message, receive: Receive) -> bytes:
        try:
            return await asyncio.wait_for(self._read_rest(message, receive), self._limits.body_seconds)
        except asyncio.TimeoutError:
            raise InvalidRequestError(f"body: must arrive within {self._limits.body_seconds:g} s", status=408) from None

    async def _read_rest(self, message: Message, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                self._check_size(size + len(chunk), len(chunk))
                chunks.append(chunk)
                size += len(chunk)
                self._buffered += len(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
                message = await receive()
        finally:
            self._buffered -= size

    def _check_size(self, size: int, more: int) -> None:
        limits = self._limits
        if size > limits.max_bytes:
            raise InvalidRequestError(f"body: must have at most {limits.max_bytes} bytes", status=413)
        if self._buffered + more > limits.max_buffered_bytes:
            raise OverloadedError(self._buffered, limits.max_buffered_bytes, what="bytes")

    def _find_deadline(self, started: float, expected: bytes | None) -> float | None:
        seconds = self._limits.timeout_seconds
        # Zero is no limit of the client's, and takes none away from the server's.
        if expected is not None and expected.isdigit() and len(expected) < 12 and (asked := int(expected) / 1000):
            seconds = min(seconds, asked) if seconds > 0 else asked
        return started + seconds if seconds > 0 else None

    def _start_span(self, model: MindSporeModel, scope: Scope) -> Span | None:
        if self._tracer is None:
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        return self._tracer.start(f"infer {model.name}", headers)

    def _record(
        self,
        protocol: str,
        model: MindSporeModel,
        status: int,
        started: float,
        request_id: str,
        ticket: Ticket | None,
        reason: str,
        span: Span | None,
    ) -> None:
        record_request(
            self._log,
            span,
            protocol=protocol,
            model=model.name,
            status=status,
            seconds=time.monotonic() - started,
            request_id=request_id,
            ticket=ticket,
            reason=reason,
        )

    async def _refuse_unknown(self, protocol: str, name: str, version: str, scope: Scope, send: Send) -> None:
        started = time.monotonic()
        try:
            # Loaded since the routes were looked at, or not at all.
            self._repository.find(name, version)
            error: RequestError = NotReadyError(name)
        except RequestError as found:
            error = found
        headers = [_JSON, _RETRY] if error.status == 503 else [_JSON]
        request_id = next((value for key, value in scope["headers"] if key == b"x-request-id"), None)
        if request_id is not None:
            headers.append((b"x-request-id", request_id))
        await _send(send, error.status, orjson.dumps({"error": error.message}), headers)
        if self._log.wants(error.status):
            self._log.write(
                request_id=(request_id or b"").decode("latin-1"),
                protocol=protocol,
                model=name,
                status=error.status,
                seconds=time.monotonic() - started,
                reason=error.message,
            )

    async def _control_model(self, name: str, action: str, send: Send) -> None:
        try:
            await (self._control.load(name) if action == "load" else self._control.unload(name))
        except KfpMindSporeError as error:
            # A model that is there and cannot be loaded: 503, as kserve says of a model that is not ready.
            status = 404 if isinstance(error, NotFoundError) else 503
            await _send(send, status, orjson.dumps({"error": error.message}), [_JSON])
            return
        await _send(send, 200, orjson.dumps({"name": name, action: True}), [_JSON])

    async def _describe_version(self, name: str, version: str, ready: bool, send: Send) -> None:
        try:
            model = self._repository.find(name, version)
        except RequestError as error:
            await _send(send, error.status, orjson.dumps({"error": error.message}), [_JSON])
            return
        body = {"name": name, "ready": True} if ready else model.describe()
        await _send(send, 200, orjson.dumps(body), [_JSON])


def record_request(
    log: RequestLog,
    span: Span | None,
    *,
    protocol: str,
    model: str,
    status: int,
    seconds: float,
    request_id: str,
    ticket: Ticket | None,
    reason: str,
    grpc_status: str = "",
) -> None:
    """Write a request's line and end its span."""
    rows = ticket.rows if ticket is not None else 0
    queued = ticket.queued_seconds if ticket is not None else 0.0
    computed = ticket.computed_seconds if ticket is not None else 0.0
    log.write(
        request_id=request_id,
        protocol=protocol,
        model=model,
        status=status,
        seconds=seconds,
        rows=rows,
        queue_seconds=queued,
        compute_seconds=computed,
        reason=reason,
        trace_id=span.trace_id if span is not None else "",
    )
    if span is not None:
        attributes: dict[str, Any] = {"grpc_status": grpc_status} if grpc_status else {}
        queued_at = time.time_ns() - int((time.monotonic() - ticket.arrived) * 1e9) if ticket is not None else 0
        span.finish(
            status,
            queued_at=queued_at,
            protocol=protocol,
            model=model,
            rows=rows,
            queue_seconds=queued,
            compute_seconds=computed,
            request_id=request_id,
            **attributes,
        )


def _decode_v1(body: bytes, model: MindSporeModel) -> Any:
    return v1.decode(v1.parse_json(body), model.readers)


def _decode_v2(body: bytes, model: MindSporeModel, header_length: bytes | None) -> v2.Inference:
    return v2.decode(body, header_length, model.readers, model.output_names)


async def _send(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, may_stay: bool = True
) -> None:
    if status >= 400 and refuse_rest(send, status, headers, body, may_stay=may_stay):
        return
    headers.append((b"content-length", b"%d" % len(body)))
    if not may_stay:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _find_presence(receive: Receive) -> Callable[[], bool] | None:
    """Return a way to ask whether the client is still there, without a task that waits for it."""
    cycle: Any = getattr(receive, "__self__", None)
    if not hasattr(cycle, "disconnected"):
        return None
    return lambda: bool(cycle.disconnected)
