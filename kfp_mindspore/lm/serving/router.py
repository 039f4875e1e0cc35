"""A router for one language model's replicas, which sends equal prompt beginnings to the same replica.

Each replica has its own prefix cache: a chat that stays on one replica is not computed again. Replicas are ranked
by rendezvous hashing, so that a replica that comes or goes moves only its own prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kfp_mindspore.errors import ValidationError

_logger = logging.getLogger(__name__)

_ROUTES = ("/v1/{rest:path}", "/openai/v1/{rest:path}", "/tokenize", "/detokenize", "/version")
# State of one replica; a router must not change it on an arbitrary one.
_PER_REPLICA = ("load_lora_adapter", "unload_lora_adapter")
_HOP_BY_HOP = {
    *("connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
}
_CONNECT_SECONDS = 5.0
_MOST_BYTES = 32 << 20
_UNAVAILABLE = 503


@dataclass(frozen=True)
class RouterOptions:
    """A router's settings.

    Args:
        prefix_chars: How many characters at a prompt's start choose its replica.
        health_interval: Seconds between a replica's health checks.
    """

    prefix_chars: int = 512
    health_interval: float = 2.0


def rank_replicas(key: str, urls: Iterable[str]) -> list[str]:
    """Return replicas by descending rendezvous score for a key.

    Args:
        key: See `compute_key`.
        urls: The replicas.
    """

    def score(url: str) -> bytes:
        return blake2b(f"{url}\n{key}".encode(errors="surrogatepass"), digest_size=8).digest()

    return sorted(urls, key=score, reverse=True)


def compute_key(body: Any, prefix_chars: int) -> str:
    """Return a request's model and the beginning of its prompt.

    A chat's key ends with its first user message, so that all its turns have the same key.

    Args:
        body: The parsed request.
        prefix_chars: Most characters from the prompt.
    """
    if not isinstance(body, dict):
        return ""
    prompt = body.get("messages", body.get("prompt", body.get("input", "")))
    if isinstance(prompt, list):
        roles = [message.get("role") if isinstance(message, dict) else None for message in prompt]
        if "user" in roles:
            prompt = prompt[: roles.index("user") + 1]
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    return f"{body.get('model')}\n{text[:prefix_chars]}"


class Router:
    """Forwards requests to replicas.

    Args:
        urls: The replicas' addresses.
        options: See `RouterOptions`.

    Raises:
        ValidationError: An address is no http or https URL, or there twice.
    """

    def __init__(self, urls: Sequence[str], options: RouterOptions | None = None) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        errors = [
            f"URL: must be http://host:port, got {url!r}"
            for url in self.urls
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc
        ]
        errors += [f"URL: {url!r} is there twice" for url in sorted(set(self.urls)) if self.urls.count(url) > 1]
        if not self.urls:
            errors.append("URL: at least one replica must be given")
        if errors:
            raise ValidationError(errors, subject="router")
        self.options = options or RouterOptions()
        # Why a replica gets no requests; empty for a healthy one.
        self.failures = dict.fromkeys(self.urls, "not checked yet")
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "lm_router_requests", "Requests answered by a replica.", ["replica"], registry=self._registry
        )
        self._retries = Counter(
            "lm_router_retries", "Requests that failed before the first byte.", ["replica"], registry=self._registry
        )
        self._up = Gauge("lm_router_replica_up", "1 for a healthy replica.", ["replica"], registry=self._registry)
        # The servers have their own timeouts for answers.
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    def build_application(self) -> Starlette:
        """Return the ASGI application, which checks the replicas while it runs."""
        methods = ["GET", "POST"]
        routes = [Route("/health", self._get_health), Route("/metrics", self._get_metrics)]
        routes += [Route(path, self._forward, methods=methods) for path in _ROUTES]
        return Starlette(routes=routes, lifespan=self._run)

    @contextlib.asynccontextmanager
    async def _run(self, application: Starlette) -> AsyncIterator[None]:
        async with self._client:
            await asyncio.gather(*(self.check(url) for url in self.urls))
            tasks = [asyncio.create_task(self._watch(url)) for url in self.urls]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def check(self, url: str) -> None:
        """Request a replica's /health once, and record the result.

        Args:
            url: The replica's.
        """
        try:
            response = await self._client.get(f"{url}/health", timeout=_CONNECT_SECONDS)
        except httpx.HTTPError as error:
            self._record(url, str(error) or type(error).__name__)
            return
        is_healthy = response.status_code == httpx.codes.OK
        self._record(url, "" if is_healthy else f"/health answers {response.status_code}")

    async def _watch(self, url: str) -> None:
        while True:
            await asyncio.sleep(self.options.health_interval)
            await self.check(url)

    def _record(self, url: str, failure: str) -> None:
        if bool(failure) != bool(self.failures[url]):
            _logger.warning("%s: %s", url, failure or "healthy")
        self.failures[url] = failure
        self._up.labels(url).set(not failure)

    async def _get_health(self, request: Request) -> Response:
        is_ready = not all(self.failures.values())
        states = {url: failure or "healthy" for url, failure in self.failures.items()}
        return JSONResponse({"replicas": states}, 200 if is_ready else _UNAVAILABLE)

    async def _get_metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _forward(self, request: Request) -> Response:
        if request.url.path.rpartition("/")[2] in _PER_REPLICA:
            return _build_error(f"{request.url.path}: send it to each replica", 404)
        content = b""
        try:
            async for chunk in request.stream():
                content += chunk
                if len(content) > _MOST_BYTES:
                    return _build_error(f"the request must have at most {_MOST_BYTES} bytes", 413)
        except ClientDisconnect:
            return Response(status_code=499)
        try:
            key = compute_key(json.loads(content or b"null"), self.options.prefix_chars)
        except (ValueError, RecursionError):
            # The replica's answer names the mistake.
            key = ""
        headers = [(name, value) for name, value in request.headers.raw if name.decode("latin-1") not in _HOP_BY_HOP]
        query = f"?{request.url.query}" if request.url.query else ""
        tried: dict[str, str] = {}
        healthy = [url for url in self.urls if not self.failures[url]]
        for url in rank_replicas(key, healthy):
            target = f"{url}{request.url.path}{query}"
            upstream = self._client.build_request(request.method, target, headers=headers, content=content)
            opening, gone = asyncio.create_task(self._open(upstream)), asyncio.ensure_future(request.receive())
            try:
                await asyncio.wait({opening, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not opening.done():
                    return Response(status_code=499)
                response, first, body = opening.result()
            except httpx.HTTPError as error:
                tried[url] = str(error) or type(error).__name__
                self._record(url, tried[url])
                self._retries.labels(url).inc()
                continue
            finally:
                # An answer that nobody waits for is not computed further: cancelling closes its connection.
                opening.cancel()
                gone.cancel()
            if response.status_code == _UNAVAILABLE:
                # Not loaded, or its queue's deadline has passed.
                tried[url] = first.decode(errors="replace")[:200]
                await response.aclose()
                self._retries.labels(url).inc()
                continue
            self._requests.labels(url).inc()
            kept = {name: value for name, value in response.headers.items() if name not in _HOP_BY_HOP}
            return StreamingResponse(_pass_on(url, response, first, body), response.status_code, kept)
        reasons = "; ".join(f"{url}: {reason}" for url, reason in {**self.failures, **tried}.items())
        return _build_error(f"no replica is left: {reasons}", _UNAVAILABLE)

    async def _open(self, request: httpx.Request) -> tuple[httpx.Response, bytes, AsyncIterator[bytes]]:
        """Return a replica's response, its first bytes and an iterator over the further ones."""
        response = await self._client.send(request, stream=True)
        try:
            body = response.aiter_raw()
            return response, await anext(body, b""), body
        except BaseException:
            await response.aclose()
            raise


async def _pass_on(
    url: str, response: httpx.Response, first: bytes, body: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Yield an answer's bytes as they arrive; a broken stream ends with an event that clients raise as an error."""
    try:
        yield first
        async for chunk in body:
            yield chunk
    except httpx.HTTPError as error:
        _logger.warning("%s: the answer broke off: %s", url, error or type(error).__name__)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise
        event = {"error": _describe(f"{url}: the answer broke off", 502)}
        yield f"\n\ndata: {json.dumps(event)}\n\n".encode()
    finally:
        await response.aclose()


def _describe(message: str, status: int) -> dict[str, Any]:
    return {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error", "code": status}


def _build_error(message: str, status: int) -> Response:
    return JSONResponse({"error": _describe(message, status)}, status)
