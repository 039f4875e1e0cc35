"""A canary's traffic splitter: `python -m kfp_mindspore.inference.splitter NAME HOST PORT STABLE CANARY PERCENT`.

Like KServe's InferenceGraph router, it ignores a POST request's path: a body with `instances` is V1, one with `inputs`
is V2; the OpenAI protocol has `messages`, `prompt` or `input`. Each request is forwarded to either server, at random;
a stream arrives as a whole.
"""

from __future__ import annotations

import random
import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kfp_mindspore.inference.manifest import TENSOR_ROUTES, list_openai_routes


def build_application(name: str, stable: str, canary: str, percent: int) -> Starlette:
    """Return the application.

    Args:
        name: Model name on both servers.
        stable: Service address.
        canary: Canary address.
        percent: Percentage of requests for the canary.
    """
    # No timeout: the servers have their own.
    client = httpx.AsyncClient(timeout=None, trust_env=False)
    paths = {field: f"/{path.format(name)}" for field, path in (TENSOR_ROUTES | list_openai_routes()).values()}

    async def get_ready(request: Request) -> Response:
        return JSONResponse({"name": name, "ready": True})

    async def forward(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            body = None
        path = next((path for key, path in paths.items() if isinstance(body, dict) and key in body), None)
        if path is None:
            return JSONResponse({"error": f"the body must be JSON with one of {', '.join(paths)}"}, 404)
        url = canary if random.random() * 100 < percent else stable
        headers = {"Content-Type": "application/json"}
        if (authorization := request.headers.get("authorization")) is not None:
            headers["Authorization"] = authorization
        try:
            response = await client.post(f"{url}{path}", content=await request.body(), headers=headers)
        except httpx.HTTPError as error:
            return JSONResponse({"error": f"{url}: {error or type(error).__name__}"}, 502)
        return Response(response.content, response.status_code, media_type=response.headers.get("content-type"))

    routes = [Route(f"/v2/models/{name}/ready", get_ready), Route("/{path:path}", forward, methods=["POST"])]
    return Starlette(routes=routes)


if __name__ == "__main__":
    name, host, port, stable, canary, percent = sys.argv[1:]
    application = build_application(name, stable, canary, int(percent))
    uvicorn.run(application, host=host, port=int(port), log_level="warning")
