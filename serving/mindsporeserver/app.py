"""ASGI application: V1, V2, OpenAI, model repository, health and metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import orjson

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from mindsporeserver.access import Access, Needs
from mindsporeserver.bodies import BodyReader, Message, Receive, Receiver, RequestLimits
from mindsporeserver.connection import EXTENSION, Connection
from mindsporeserver.errors import (
    ClientGoneError,
    InternalError,
    InvalidRequestError,
    NotReadyError,
    RequestError,
    ShuttingDownError,
    UnsupportedError,
)
from mindsporeserver.events import STRUCTURED, RequestEvent, is_event
from mindsporeserver.language.errors import LanguageError, describe_error
from mindsporeserver.language.fields.values import parse_body
from mindsporeserver.language.routes import SERVED, LanguageRoutes
from mindsporeserver.models.contracts import read_contract
from mindsporeserver.models.served_model import TensorModel
from mindsporeserver.protocols import openapi, v1, v2
from mindsporeserver.protocols.rows import describe_unknown
from mindsporeserver.request_log.payloads import HTTPBody
from mindsporeserver.state import ServerState, get_version, read_deadline

if TYPE_CHECKING:
    from mindsporeserver.models.served_model import ServedModel
    from mindsporeserver.protocols.openapi import TensorContract
    from mindsporeserver.request_log.event_log import EventLog
    from mindsporeserver.telemetry import RequestRecord

logger = logging.getLogger(__name__)

Scope = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
_CLOSE = (b"connection", b"close")
_RETRY = (b"retry-after", b"1")
# Refusal headers by status.
_REFUSAL_HEADERS: dict[int, Headers] = {503: [_RETRY], 401: [(b"www-authenticate", b"Bearer")]}
_JSON_LENGTH = b"inference-header-content-length"
_UNKNOWN = b"x-unknown-categories"
_TIMEOUT = b"x-envoy-expected-rq-timeout-ms"
_READ = frozenset(
    {
        b"authorization",
        b"content-type",
        b"content-encoding",
        b"x-request-id",
        _JSON_LENGTH,
        _TIMEOUT,
        b"ce-id",
        b"expect",
    }
)
_DOCS_PAGE = Path(openapi.__file__).with_name("docs.html")
# Body size above which it is decoded in a thread instead of blocking the event loop.
_LARGE = 256 << 10


class Reply(NamedTuple):
    """A response.

    Args:
        value: The body, serialised as JSON unless it is bytes.
        headers: Headers; Content-Length is added.
    """

    value: Any
    headers: tuple[tuple[bytes, bytes], ...] = (_JSON,)


class _Request(NamedTuple):
    scope: Scope
    receive: Receiver
    send: Send
    groups: dict[str, str]


class Application:
    """A server process's HTTP application.

    Args:
        state: State shared with gRPC.
        limits: See `RequestLimits`.
        access: The port's access rules; default none.
        has_docs: Whether /openapi.json and /docs are answered.
    """

    def __init__(
        self, state: ServerState, limits: RequestLimits, access: Access | None = None, *, has_docs: bool = False
    ) -> None:
        self._state = state
        self._has_docs = has_docs
        # By model: a reloaded one is another object.
        self._contracts: WeakKeyDictionary[ServedModel, TensorContract] = WeakKeyDictionary()
        self._limits = limits
        self._access = access or Access()
        self.bodies = BodyReader(limits)
        self._language = LanguageRoutes(state, self.bodies, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        receiver = Receiver(receive)
        if scope["method"] == "POST":
            route = self._state.repository.routes.get(scope["path"])
            if route is not None:
                await self._infer(route[0], route[1], scope, receiver, send)
                return
        path = scope["path"].rstrip("/") or "/"
        # uvicorn sends a response to HEAD without its body.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        allowed: list[str] = []
        for methods, pattern, handle, needs in _ROUTES:
            if (match := pattern.fullmatch(path)) is None:
                continue
            if method in methods:
                await self._respond(handle, needs, _Request(scope, receiver, send, match.groupdict("")))
                return
            allowed += methods
        if allowed:
            headers = [_JSON, (b"allow", ", ".join(allowed).encode())]
            await self._refuse(405, {"error": "Method Not Allowed"}, headers, scope, receiver, send)
        else:
            await self._refuse(404, {"error": "Not Found"}, [_JSON], scope, receiver, send)

    async def _respond(self, handle: _Handler, needs: Needs, request: _Request) -> None:
        try:
            self._access.check(needs, _get_header(request.scope, b"authorization"))
            reply = await handle(self, request)
        except RequestError as refused:
            error = refused
        except KfpMindSporeError as failure:
            # The model cannot be loaded: 503, as in kserve for a model that is not ready.
            error = RequestError(failure.message)
            error.status = 404 if isinstance(failure, NotFoundError) else 503
        except asyncio.CancelledError:
            # The shutdown's grace period is over.
            error = ShuttingDownError()
        except Exception as crash:
            logger.exception("%s failed", request.scope["path"])
            error = InternalError(crash)
        else:
            if reply is not None:
                body = reply.value if isinstance(reply.value, bytes) else orjson.dumps(reply.value)
                await self._send(request.send, 200, body, list(reply.headers))
            return
        headers = [_JSON, *_REFUSAL_HEADERS.get(error.status, ())]
        if isinstance(error, LanguageError) and error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        is_language = request.groups.get("route") is not None
        value = describe_error(error) if is_language else {"error": error.message}
        await self._refuse(error.status, value, headers, request.scope, request.receive, request.send)

    async def _infer(self, protocol: str, model: TensorModel, scope: Scope, receive: Receiver, send: Send) -> None:
        headers = {name: value for name, value in scope["headers"] if name in _READ}
        is_binary = protocol == "v2" and _JSON_LENGTH in headers
        record = self._state.telemetry.start("v2-binary" if is_binary else protocol, model)
        reply: Headers = []
        if (request_id := headers.get(b"x-request-id")) is not None:
            record.request_id = request_id.decode("latin-1")
            reply.append((b"x-request-id", request_id))
        connection: Connection | None = scope.get("extensions", {}).get(EXTENSION)
        size, body = 0, b""
        try:
            self._access.check(Needs.TOKEN, headers.get(b"authorization"))
            with model.admit():
                body = await self.bodies.read(receive)
                size = len(body)
                if connection is not None:
                    connection.task = asyncio.current_task()
                    if connection.is_lost:
                        raise ClientGoneError
                deadline = read_deadline(record.started, self._limits.timeout_seconds, headers.get(_TIMEOUT))
                encoding = headers.get(b"content-encoding", b"identity")
                if encoding not in (b"identity", b""):
                    body = await self.bodies.inflate(body, encoding.decode("latin-1"), deadline)
                    size = len(body)
                answer = self._answer_v1 if protocol == "v1" else self._answer_v2
                content = await answer(model, body, headers, scope["headers"], deadline, record, reply)
        except asyncio.CancelledError:
            # The client has disconnected, or the shutdown's grace period is over.
            gone = connection is not None and connection.is_lost
            error: RequestError = ClientGoneError() if gone else ShuttingDownError()
        except RequestError as refused:
            error = refused
        except Exception as crash:
            logger.exception("%s failed", scope["path"])
            error = InternalError(crash)
        else:
            # The request's span ends with the response.
            record.finish()
            if self._state.log is not None:
                _log_request(self._state.log, record, model, (body, content), headers, reply, protocol=protocol)
            await self._send(send, 200, content, reply)
            return
        finally:
            self.bodies.release(size)
            if connection is not None:
                connection.task = None
        record.fail(error)
        if isinstance(error, ClientGoneError):
            return
        reply = [_JSON, *reply[: request_id is not None], *_REFUSAL_HEADERS.get(error.status, ())]
        await self._refuse(error.status, {"error": error.message}, reply, scope, receive, send)

    async def _answer_v1(
        self,
        model: TensorModel,
        body: bytes,
        headers: dict[bytes, bytes],
        all_headers: Headers,
        deadline: float | None,
        record: RequestRecord,
        reply: Headers,
    ) -> bytes:
        event = RequestEvent(all_headers, body) if is_event(headers) else None

        def decode() -> tuple[v1.Arrays, Mapping[str, Any]]:
            payload = v1.parse_json(body) if event is None else event.payload
            return v1.decode(payload, model.readers, model.rows, body), v1.read_parameters(payload, "parameters")

        is_small = event is not None or len(body) <= _LARGE
        inputs, parameters = decode() if is_small else await asyncio.to_thread(decode)
        outputs, record.ticket = await model.infer(inputs, deadline=deadline, parameters=parameters)
        content = v1.encode(outputs)
        reply += _list_unknown(record)
        if event is None:
            reply.append(_JSON)
            return content
        event_headers, content = event.encode(model.name, content)
        reply += event_headers
        return content

    async def _answer_v2(
        self,
        model: TensorModel,
        body: bytes,
        headers: dict[bytes, bytes],
        _: Headers,
        deadline: float | None,
        record: RequestRecord,
        reply: Headers,
    ) -> bytes:
        arguments = (body, headers.get(_JSON_LENGTH), model.readers, model.output_names, model.rows)
        request = v2.decode(*arguments) if len(body) <= _LARGE else await asyncio.to_thread(v2.decode, *arguments)
        record.request_id = record.request_id or request.id
        outputs, record.ticket = await model.infer(request.inputs, deadline=deadline, parameters=request.parameters)
        unknown = describe_unknown(record.unknown)
        content, json_length = v2.encode(outputs, request, model.name, model.version, unknown)
        reply += _list_unknown(record)
        if json_length is None:
            reply.append(_JSON)
        else:
            reply += (_BINARY, (_JSON_LENGTH, b"%d" % json_length))
        return content

    async def _send(self, send: Send, status: int, body: bytes, headers: Headers, *, more: bool = False) -> None:
        headers.append((b"content-length", b"%d" % len(body)))
        if self._state.is_draining and _CLOSE not in headers:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})

    async def _refuse(
        self, status: int, value: Any, headers: Headers, scope: Scope, receive: Receiver, send: Send
    ) -> None:
        """Refuse a request whose body may still be arriving.

        The response is written first and completed once the remaining body has been discarded: a connection closed with
        unread data is reset, and a client that sends everything before it reads would lose the response.
        """
        body = orjson.dumps(value)
        if receive.is_complete:
            await self._send(send, status, body, headers)
            return
        expects = any(name == b"expect" for name, _ in scope["headers"])
        if expects or status in (408, 413):
            # After a refused `Expect: 100-continue` the client may or may not send the body.
            headers.append(_CLOSE)
        await self._send(send, status, body, headers, more=True)
        if not expects:
            await self.bodies.discard(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _infer_unrouted(self, request: _Request) -> None:
        """Handle a request for a model without a route: unknown, loading, or loaded just now."""
        groups = request.groups
        protocol, name = ("v1", groups["v1"]) if groups.get("v1") else ("v2", groups["v2"])
        try:
            model = self._state.repository.get_graph_model(name, groups.get("version", ""))
            if not model.ready:
                raise NotReadyError(name)
        except RequestError as error:
            record = self._state.telemetry.start(protocol, name)
            headers: Headers = [_JSON, *_REFUSAL_HEADERS.get(error.status, ())]
            for key, value in request.scope["headers"]:
                if key == b"x-request-id":
                    record.request_id = value.decode("latin-1")
                    headers.append((key, value))
            record.fail(error)
            await self._refuse(error.status, {"error": error.message}, headers, *request[:3])
        else:
            await self._infer(protocol, model, *request[:3])

    async def _explain(self, request: _Request) -> None:
        self._get_model(request)
        raise UnsupportedError("explain: is not supported by this model")

    async def _get_root(self, _: _Request) -> Reply:
        return Reply({"status": "alive" if self._state.is_alive() else "dead"})

    async def _get_live(self, _: _Request) -> Reply:
        if not self._state.is_alive():
            raise RequestError("Server is not live.")
        return Reply({"live": True})

    async def _get_ready(self, _: _Request) -> Reply:
        if not self._state.is_ready():
            raise NotReadyError()
        return Reply({"ready": True})

    async def _get_server(self, _: _Request) -> Reply:
        return Reply(self._state.describe())

    async def _list_models(self, _: _Request) -> Reply:
        return Reply({"models": list(self._state.repository.models)})

    async def _list_v1_models(self, _: _Request) -> Reply:
        # Two protocols have this path: kserve's clients read `models`, OpenAI's `data`.
        value: dict[str, Any] = {"models": list(self._state.repository.models)}
        if language := self._language.list_models():
            value |= {"object": "list", "data": language}
        return Reply(value)

    async def _list_language_models(self, _: _Request) -> Reply:
        return Reply({"object": "list", "data": self._language.list_models()})

    async def _get_language_model(self, request: _Request) -> Reply:
        return Reply(self._language.describe_model(request.groups["name"]))

    async def _generate(self, request: _Request) -> Reply | None:
        value = await self._language.respond(request.groups["route"], request.scope, request.receive, request.send)
        return None if value is None else Reply(value)

    async def _refuse_responses(self, _: _Request) -> Reply:
        raise LanguageError("the Responses API is not served; send POST chat/completions", status=404)

    async def _change_adapters(self, request: _Request) -> Reply:
        body = await self.bodies.read(request.receive)
        self.bodies.release(len(body))
        fields = parse_body(body)
        return Reply(await self._language.change_adapters(request.groups["route"], fields))

    async def _get_version(self, _: _Request) -> Reply:
        return Reply({"version": get_version()})

    async def _get_model_ready(self, request: _Request) -> Reply:
        adapters = (entry for entry in self._language.list_models() if entry["parent"])
        if adapter := next((entry for entry in adapters if entry["id"] == request.groups["name"]), None):
            return Reply({"name": adapter["id"], "ready": True, **adapter})
        model = self._get_model(request)
        if not model.ready:
            raise NotReadyError(model.name)
        described = model.describe_model() if isinstance(model, SERVED) else {}
        return Reply({"name": model.name, "ready": True, **described})

    async def _get_model_metadata(self, request: _Request) -> Reply:
        return Reply(self._state.describe_model(request.groups["name"], request.groups.get("version", "")))

    async def _get_docs(self, _: _Request) -> Reply:
        self._require_docs()
        page = await asyncio.to_thread(_DOCS_PAGE.read_bytes)
        return Reply(page, ((b"content-type", b"text/html; charset=utf-8"),))

    async def _get_openapi(self, _: _Request) -> Reply:
        self._require_docs()
        tensors = []
        for model in list(self._state.repository.models.values()):
            if isinstance(model, TensorModel) and model.ready:
                if model not in self._contracts:
                    self._contracts[model] = await asyncio.to_thread(read_contract, model)
                tensors.append(self._contracts[model])
        return Reply(openapi.build_document(get_version(), tensors, self._language.list_contracts()))

    def _require_docs(self) -> None:
        if not self._has_docs:
            error = RequestError("Not Found")
            error.status = 404
            raise error

    async def _get_metrics(self, request: _Request) -> Reply:
        accept = _get_header(request.scope, b"accept") or b""
        body, kind = await asyncio.to_thread(self._state.metrics.render, accept.decode("latin-1"))
        return Reply(body, ((b"content-type", kind.encode()),))

    async def _list_repository(self, request: _Request) -> Reply:
        options = await self._read_object(request.receive)
        wanted = options.get("ready", False)
        if not isinstance(wanted, bool):
            raise InvalidRequestError(f"ready: must be true or false, got {wanted!r:.80}")
        entries = await self._state.repository.index()
        return Reply([entry for entry in entries if not wanted or entry["state"] == "READY"])

    async def _load(self, request: _Request) -> Reply:
        parameters = (await self._read_object(request.receive)).get("parameters")
        if parameters:
            found = next(iter(parameters)) if isinstance(parameters, dict) else parameters
            raise InvalidRequestError(f"parameters: load with overrides is not supported, got {found!r:.80}")
        await self._state.load(request.groups["name"])
        return Reply({"name": request.groups["name"], "load": True})

    async def _unload(self, request: _Request) -> Reply:
        await self._state.unload(request.groups["name"])
        return Reply({"name": request.groups["name"], "unload": True})

    def _get_model(self, request: _Request) -> ServedModel:
        return self._state.repository.get_model(request.groups["name"], request.groups.get("version", ""))

    async def _read_object(self, receive: Receiver) -> dict[str, Any]:
        body = await self.bodies.read(receive)
        self.bodies.release(len(body))
        value = v1.parse_json(body) if body.strip() else {}
        if not isinstance(value, dict):
            raise InvalidRequestError(f"body: must be a JSON object, got {type(value).__name__}")
        return value


def _list_unknown(record: RequestRecord) -> Headers:
    """Return the header that names a request's unknown categories; none without them."""
    return [(_UNKNOWN, describe_unknown(record.unknown).encode())] if record.unknown else []


def _log_request(
    log: EventLog,
    record: RequestRecord,
    model: TensorModel,
    bodies: tuple[bytes, bytes],
    headers: dict[bytes, bytes],
    reply: Headers,
    *,
    protocol: str,
) -> None:
    """Log an answered request; add its ID to the response unless the client chose one."""
    event_id = headers.get(b"ce-id", b"").decode("latin-1")
    request_id = log.choose_id(event_id, record.request_id)
    if not request_id:
        return
    if request_id not in (event_id, record.request_id):
        reply.append((b"x-request-id", request_id.encode()))
    lengths = (headers.get(_JSON_LENGTH), next((value for name, value in reply if name == _JSON_LENGTH), None))
    is_event = protocol == "v1" and headers.get(b"content-type", b"").startswith(STRUCTURED.encode())
    asked, answered = (
        HTTPBody(body, None if length is None else int(length), is_event)
        for body, length in zip(bodies, lengths, strict=True)
    )
    log.add(request_id, model, time.monotonic() - record.started, asked, answered, sum(map(len, bodies)))


def _get_header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


_Handler = Callable[[Application, _Request], Awaitable[Reply | None]]
_NAME = r"(?P<name>[^/]+)"
_GENERATION = r"completions|chat/completions|embeddings"
_VERSION = r"(/versions/(?P<version>[^/]+))?"
# Server health, model health and metrics need no token: probes and Prometheus have none.
_ROUTES: tuple[tuple[tuple[str, ...], re.Pattern[str], _Handler, Needs], ...] = tuple(
    (methods, re.compile(pattern), handler, needs)
    for methods, pattern, handler, needs in (
        (("POST",), r"/v1/models/(?P<v1>[^/]+):predict", Application._infer_unrouted, Needs.TOKEN),
        (("POST",), rf"/v2/models/(?P<v2>[^/]+){_VERSION}/infer", Application._infer_unrouted, Needs.TOKEN),
        (("POST",), rf"/v1/models/{_NAME}:explain", Application._explain, Needs.TOKEN),
        (("GET",), r"/", Application._get_root, Needs.NOTHING),
        (("GET",), r"/docs", Application._get_docs, Needs.NOTHING),
        (("GET",), r"/openapi\.json", Application._get_openapi, Needs.TOKEN),
        (("GET",), r"/metrics", Application._get_metrics, Needs.MANAGEMENT),
        (("GET",), r"/v1/models", Application._list_v1_models, Needs.TOKEN),
        (("GET",), r"/openai/v1/models", Application._list_language_models, Needs.TOKEN),
        (("GET",), rf"/openai/(?P<route>v1/models)/{_NAME}", Application._get_language_model, Needs.TOKEN),
        (("POST",), rf"(/openai)?/v1/(?P<route>{_GENERATION})", Application._generate, Needs.TOKEN),
        (("POST", "GET"), r"(/openai)?/v1/(?P<route>responses)(/.*)?", Application._refuse_responses, Needs.TOKEN),
        (("POST",), r"(/openai/v1|/v1|/v2)?/(?P<route>rerank)", Application._generate, Needs.TOKEN),
        (("POST",), r"(/openai/v1|/v1)?/(?P<route>score|tokenize|detokenize)", Application._generate, Needs.TOKEN),
        (
            *(("POST",), r"/v1/(?P<route>load_lora_adapter|unload_lora_adapter)"),
            *(Application._change_adapters, Needs.TOKEN | Needs.MANAGEMENT),
        ),
        (("GET",), r"/health", Application._get_ready, Needs.NOTHING),
        (("GET",), r"/version", Application._get_version, Needs.NOTHING),
        (("GET",), rf"/v1/models/{_NAME}", Application._get_model_ready, Needs.NOTHING),
        (("GET",), r"/v2", Application._get_server, Needs.TOKEN),
        (("GET",), r"/v2/health/live", Application._get_live, Needs.NOTHING),
        (("GET",), r"/v2/health/ready", Application._get_ready, Needs.NOTHING),
        (("GET",), r"/v2/models", Application._list_models, Needs.TOKEN),
        (("GET",), rf"/v2/models/{_NAME}{_VERSION}", Application._get_model_metadata, Needs.TOKEN),
        (("GET",), rf"/v2/models/{_NAME}{_VERSION}/ready", Application._get_model_ready, Needs.NOTHING),
        (("GET", "POST"), r"/v2/repository/index", Application._list_repository, Needs.TOKEN),
        (("POST",), rf"/v2/repository/models/{_NAME}/load", Application._load, Needs.TOKEN | Needs.MANAGEMENT),
        (("POST",), rf"/v2/repository/models/{_NAME}/unload", Application._unload, Needs.TOKEN | Needs.MANAGEMENT),
    )
)
