"""A server that answers the operator's client by a script, failures included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from kfp_mindspore.kube import AsyncClient

SECONDS = 60
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refuse(code: int, reason: str = "", **headers: str) -> web.Response:
    """Return a refusal as the API server words it."""
    details = {"kind": "things"} if code == 404 else {}
    status = {"kind": "Status", "code": code, "reason": reason, "message": f"because of {reason}", "details": details}
    return web.json_response(status, status=code, headers=headers)


class Server:
    """Answers by a script, and notes who asked for what."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.asked: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        return await self.handler(request)


@asynccontextmanager
async def serve(handler: Handler, directory: Path, **user: Any) -> AsyncIterator[tuple[Server, AsyncClient]]:
    """Start a server, and a client that knows it by a kubeconfig."""
    server = Server(handler)
    runner = web.ServerRunner(web.Server(server.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "home"}}],
        "current-context": "x",
    }
    file = directory / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    client = AsyncClient(file, retry_timeout=5.0)
    try:
        yield server, client
    finally:
        await client.close()
        await runner.cleanup()


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine, for a while at most."""

    async def limited() -> Any:
        return await asyncio.wait_for(work(), SECONDS)

    return asyncio.run(limited())
