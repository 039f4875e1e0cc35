"""Routes of the OpenAI protocol, answered at once or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kfp_mindspore.errors import UserError
from mindsporeserver.bodies import BodyReader, Message, Receiver, RequestLimits
from mindsporeserver.connection import EXTENSION, Connection
from mindsporeserver.errors import ClientGoneError, InternalError, RequestError, ShuttingDownError, shorten_text
from mindsporeserver.language.adapters import BASE, Adapter
from mindsporeserver.language.embedding import DualEncoderModel, EmbeddingModel
from mindsporeserver.language.errors import LanguageError, describe_error
from mindsporeserver.language.fields.messages import TEMPLATE_FIELDS
from mindsporeserver.language.fields.pairs import parse_rerank, parse_score
from mindsporeserver.language.fields.requests import parse_chat, parse_completion, parse_prompts
from mindsporeserver.language.fields.values import parse_body, read_text
from mindsporeserver.language.model import LanguageModel
from mindsporeserver.language.responses import DONE, ResponseBuilder, encode_event
from mindsporeserver.language.scheduler import AnswerStream
from mindsporeserver.protocols.openapi import LanguageContract
from mindsporeserver.state import ServerState, read_deadline

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Send = Callable[[Message], Awaitable[None]]

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx otherwise collects events before it sends them.
    (b"x-accel-buffering", b"no"),
]
_TIMEOUT = b"x-envoy-expected-rq-timeout-ms"
_PAIRS = {"score": parse_score, "rerank": parse_rerank}
SERVED = (LanguageModel, EmbeddingModel)


class LanguageRoutes:
    """Answers requests to language models.

    Args:
        state: The server's state.
        bodies: Reads bodies.
        limits: See `RequestLimits`.
    """

    def __init__(self, state: ServerState, bodies: BodyReader, limits: RequestLimits) -> None:
        self._state = state
        self._bodies = bodies
        self._limits = limits
        # A separate pool: in asyncio's default pool, metrics would wait for templates and schemas.
        self._preparing = ThreadPoolExecutor(os.cpu_count(), "prompts")

    def _list_ready(self) -> list[LanguageModel]:
        models = self._state.repository.models.values()
        return [model for model in models if isinstance(model, LanguageModel) and model.ready]

    def list_models(self) -> list[dict[str, Any]]:
        """Return the language models, their adapters and the embedding models as the protocol lists them."""
        served = self._state.repository.models.values()
        described = [model.describe_model() for model in served if isinstance(model, SERVED) and model.ready]
        adapters = [(model, adapter) for model in self._list_ready() for adapter in model.adapters.loaded.values()]
        described += [model.describe_model(adapter) for model, adapter in adapters]
        named = {entry["id"]: entry for entry in described}
        aliases = self._state.aliases.items()
        return [*described, *({**named[target], "id": name} for name, target in aliases if target in named)]

    def list_contracts(self) -> list[LanguageContract]:
        """Return each ready model's names and routes."""
        contracts = []
        for model in self._state.repository.models.values():
            if isinstance(model, EmbeddingModel) and model.ready:
                has_images = isinstance(model, DualEncoderModel)
                contracts.append(LanguageContract(self._list_names([model.name]), ["embeddings"], has_images))
            elif isinstance(model, LanguageModel) and model.ready:
                routes = ["completions"] if model.template is None else ["chat/completions", "completions"]
                contracts.append(LanguageContract(self._list_names([model.name, *model.adapters.loaded]), routes))
        return contracts

    def _list_names(self, names: list[str]) -> list[str]:
        return [*names, *(alias for alias, target in self._state.aliases.items() if target in names)]

    def describe_model(self, name: str) -> dict[str, Any]:
        """Return a model or an adapter as the protocol lists it.

        Raises:
            LanguageError: There is none under this name (404).
        """
        model, adapter = self.get_model(name)
        return model.describe_model() if isinstance(model, EmbeddingModel) else model.describe_model(adapter)

    def get_model(self, name: str) -> tuple[LanguageModel | EmbeddingModel, Adapter]:
        """Return a served language model and the adapter of this name, `BASE` for the model's own.

        Raises:
            LanguageError: There is none under this name (404).
            NotReadyError: It is being loaded.
        """
        name = self._state.aliases.get(name, name)
        for base in self._list_ready():
            if name in base.adapters.loaded:
                return base, base.adapters.loaded[name]
        try:
            model = self._state.repository.get_model(name)
        except RequestError as error:
            if error.status != 404:
                raise
            model = None
        if not isinstance(model, SERVED):
            what = "does not exist" if model is None else "is not a language model"
            raise LanguageError(
                f"model: {shorten_text(name)!r} {what}", "model", status=404, error_code="model_not_found"
            )
        return model, BASE

    async def change_adapters(self, route: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Load or unload an adapter.

        Args:
            route: `load_lora_adapter` or `unload_lora_adapter`.
            fields: The body.

        Returns:
            The adapter as the protocol lists or deletes it.

        Raises:
            RequestError: The request is refused.
        """
        models = self._list_ready()
        if len(models) != 1 or not models[0].settings.allow_lora_updates:
            raise LanguageError(
                "adapters are loaded and unloaded only with --allow-runtime-lora-updating=true and one language model",
                status=403,
            )
        self._state.require_changeable()
        (model,), name = models, read_text(fields, "lora_name")
        if route == "unload_lora_adapter":
            model.adapters.unload(name)
            return {"id": name, "object": "model", "deleted": True}
        if name in self._state.repository.models:
            raise LanguageError(f"lora_name: {shorten_text(name)!r} is a model's name", "lora_name")
        try:
            adapter = await model.adapters.load(name, read_text(fields, "lora_path"))
        except UserError as error:
            raise LanguageError(f"lora_path: {error.message}", "lora_path") from None
        return model.describe_model(adapter)

    async def respond(self, route: str, scope: dict[str, Any], receive: Receiver, send: Send) -> dict[str, Any] | None:
        """Answer a POST request.

        Args:
            route: `chat/completions`, `completions`, `embeddings`, `score`, `rerank`, `tokenize` or `detokenize`.
            scope: ASGI's.
            receive: The body.
            send: Used for a stream only.

        Returns:
            The response; None when it was streamed.

        Raises:
            RequestError: The request is refused or has failed.
        """
        headers = dict(scope["headers"])
        body = await self._bodies.read(receive)
        size = len(body)
        try:
            encoding = headers.get(b"content-encoding", b"identity")
            if encoding not in (b"identity", b""):
                body = await self._bodies.inflate(body, encoding.decode("latin-1"))
                size = len(body)
            fields = parse_body(body)
        finally:
            self._bodies.release(size)
        if "model" not in fields and route in ("tokenize", "detokenize") and len(models := self._list_ready()) == 1:
            fields["model"] = models[0].name
        name = read_text(fields, "model")
        try:
            model, adapter = self.get_model(name)
        except RequestError as error:
            self._state.telemetry.start("openai", name).fail(error)
            raise
        with model.admit(), adapter.requests:
            if isinstance(model, EmbeddingModel):
                started = time.monotonic()
                value = await self._embed(model, route, fields, scope)
                if route != "tokenize":
                    self._log(model, scope, started, fields, value, size)
                return value
            if route == "tokenize":
                return await self._tokenize(model, fields)
            if route == "detokenize":
                (ids,) = parse_prompts([fields.get("tokens")], model.vocabulary.size, "tokens")
                if isinstance(ids, str):
                    raise LanguageError("tokens: must be token IDs, got a text", "tokens")
                return {"prompt": model.vocabulary.decode(ids)}
            if route in ("embeddings", *_PAIRS):
                raise LanguageError(f"model: {name!r} has no embeddings", "model")
            return await self._generate(
                model, adapter, fields, scope, send, is_chat=route == "chat/completions", size=size
            )

    def _log(
        self,
        model: LanguageModel | EmbeddingModel,
        scope: dict[str, Any],
        started: float,
        fields: dict[str, Any],
        value: dict[str, Any],
        size: int,
    ) -> None:
        """Log an answered request under the client's ID, else the response's."""
        if (log := self._state.log) is None:
            return
        headers = dict(scope["headers"])
        given = (headers.get(name, b"").decode("latin-1") for name in (b"ce-id", b"x-request-id"))
        request_id = log.choose_id(*given, value.get("id", ""))
        log.add(request_id, model, time.monotonic() - started, fields, value, 2 * size)

    async def _prepare(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._preparing, function, *arguments)

    async def _embed(
        self, model: EmbeddingModel, route: str, fields: dict[str, Any], scope: dict[str, Any]
    ) -> dict[str, Any]:
        if route == "tokenize":
            ids = await self._prepare(model.encode, read_text(fields, "prompt"), "prompt")
            return {"tokens": ids, "count": len(ids), "max_model_len": model.max_length}
        if route in _PAIRS:
            async with self._record(model, scope) as (_, deadline):
                pairs = _PAIRS[route](fields)
                encoded = await self._prepare(model.encode_pairs, pairs)
                return await model.compare(route, pairs, encoded, deadline)
        if route != "embeddings":
            raise LanguageError(f"model: {model.name!r} is an embedding model; send POST embeddings", "model")
        async with self._record(model, scope) as (_, deadline):
            sequences, is_base64 = await self._prepare(model.encode_inputs, fields)
            return await model.embed(sequences, deadline, is_base64=is_base64)

    @contextlib.asynccontextmanager
    async def _record(
        self, model: LanguageModel | EmbeddingModel, scope: dict[str, Any]
    ) -> AsyncIterator[tuple[Connection | None, float | None]]:
        """Record a request, and cancel it with the connection; yield the connection and the deadline.

        Raises:
            RequestError: The request has failed.
        """
        record = self._state.telemetry.start("openai", model)
        headers = dict(scope["headers"])
        record.request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        connection: Connection | None = scope.get("extensions", {}).get(EXTENSION)
        try:
            if connection is not None:
                connection.task = asyncio.current_task()
                if connection.is_lost:
                    raise ClientGoneError
            yield connection, read_deadline(record.started, self._limits.timeout_seconds, headers.get(_TIMEOUT))
        except asyncio.CancelledError:
            gone = connection is not None and connection.is_lost
            error: RequestError = ClientGoneError() if gone else ShuttingDownError()
        except RequestError as refused:
            error = refused
        except Exception as crash:
            logger.exception("%s failed", scope["path"])
            error = InternalError(crash)
        else:
            record.finish()
            return
        finally:
            if connection is not None:
                connection.task = None
        record.fail(error)
        raise error

    async def _tokenize(self, model: LanguageModel, fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("messages") is not None:
            chat = {name: fields[name] for name in fields if name in TEMPLATE_FIELDS}
            request = parse_chat({"model": model.name, **chat}, model.vocabulary.size, {})
            ids = await self._prepare(model.encode_chat, request)
        else:
            text, special = read_text(fields, "prompt"), fields.get("add_special_tokens", True) is not False
            ids = await self._prepare(lambda: model.encode(text, "prompt", add_special_tokens=special))
        return {"tokens": ids, "count": len(ids), "max_model_len": model.max_length}

    async def _generate(
        self,
        model: LanguageModel,
        adapter: Adapter,
        fields: dict[str, Any],
        scope: dict[str, Any],
        send: Send,
        *,
        is_chat: bool,
        size: int,
    ) -> dict[str, Any] | None:
        started = time.monotonic()
        events = _EventStream(send, closes=self._state.is_draining)
        try:
            async with self._record(model, scope) as (connection, deadline):
                parse = parse_chat if is_chat else parse_completion
                request = parse(fields, model.vocabulary.size, model.defaults)
                overflow = connection.transport.abort if connection is not None and request.is_stream else None
                stream = AnswerStream(overflow)
                answers, parsers = await self._prepare(model.build_answers, request, adapter, stream, deadline)
                builder = ResponseBuilder(request, answers, model.vocabulary, parsers)
                model.scheduler.submit(answers)
                unfinished = len(answers)
                try:
                    while unfinished:
                        deltas = await stream.read()
                        unfinished -= sum(delta.finish is not None for delta in deltas)
                        chunks = [chunk for delta in deltas if (chunk := builder.add(delta)) is not None]
                        if request.is_stream:
                            await events.write(b"".join(map(encode_event, chunks)))
                finally:
                    model.scheduler.cancel(answers)
                value = {} if request.is_stream and self._state.log is None else builder.build()
                self._log(model, scope, started, fields, value, size)
                if not request.is_stream:
                    return value
                usage = encode_event(builder.build_usage_chunk()) if request.include_usage else b""
                await events.write(usage + DONE, is_last=True)
        except RequestError as error:
            if not events.is_begun:
                raise
            if not isinstance(error, ClientGoneError):
                await events.write(encode_event(describe_error(error)), is_last=True)
        return None


class _EventStream:
    """A response of server-sent events; it begins with the first.

    Args:
        send: ASGI's.
        closes: Whether the connection is closed afterwards.
    """

    def __init__(self, send: Send, *, closes: bool) -> None:
        self._send = send
        self._headers = [*_STREAM_HEADERS, *([(b"connection", b"close")] if closes else [])]
        self.is_begun = False

    async def write(self, events: bytes, *, is_last: bool = False) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        if events:
            await self._send({"type": "http.response.body", "body": events, "more_body": not is_last})
