"""The operator's HTTP port: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from aiohttp import web

# Returns the problem, or an empty string.
Check = Callable[[], str]
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def serve_health(
    host: str, port: int, *, healthy: Check, ready: Check, metrics: Callable[[], bytes]
) -> AsyncIterator[int]:
    """Serve probes and metrics while the block runs; yields the port.

    Args:
        host: The address to listen on.
        port: 0 for a free one.
        healthy: Returns why the process must be restarted.
        ready: Returns why it does not work now.
        metrics: Renders the metrics.

    Raises:
        UserError: The port is taken.
    """
    from aiohttp import web

    def probe(check: Check) -> Callable[[web.Request], object]:
        async def respond(request: web.Request) -> web.Response:
            problem = check()
            return web.Response(text=problem or "ok", status=503 if problem else 200)

        return respond

    async def render_metrics(request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": _METRICS_TYPE})

    application = web.Application()
    application.router.add_get("/healthz", probe(healthy))  # type: ignore[arg-type]
    application.router.add_get("/readyz", probe(ready))  # type: ignore[arg-type]
    application.router.add_get("/metrics", render_metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UserError(
                f"--metrics-port: {error}", hint="Give another --metrics-port; 0 takes a free one."
            ) from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
