"""The HTTP limit: an ASGI application on uvicorn that reads a JSON body and answers a constant.

https://www.uvicorn.org/#the-asgi-interface and https://github.com/ijl/orjson#quickstart
"""

from __future__ import annotations

import sys
from typing import Any

import orjson
import uvicorn

ANSWER = {"predictions": [[0.25, -1.5, 3.125, 0.0625, -2.75, 1.375, 0.875, -0.5, 2.25, -3.0]]}


async def answer(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    if body:
        orjson.loads(body)
    content = orjson.dumps(ANSWER)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


if __name__ == "__main__":
    uvicorn.run(
        answer,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
