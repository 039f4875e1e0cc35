"""A client for KServe's protocols V1 and V2 over HTTP, with the standard library only."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.settings import SERVICE_TOKEN_VARIABLE

_SHOWN_CHARACTERS = 500
_ROUTE_SECONDS = 15.0
_ROUTE_POLL_SECONDS = 0.1


class ServiceRequestError(KfpMindSporeError):
    """A request failed, or its response was not 200 with JSON.

    Args:
        message: Request and response.
        status: HTTP status, 0 without a response.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        hint = f"Set {SERVICE_TOKEN_VARIABLE} to a token of the server." if status == 401 else ""
        super().__init__(message, hint=hint)
        self.status = status


def request_json(method: str, url: str, body: Any = None, *, timeout: float = 60.0) -> Any:
    """Send a request and return the response's JSON.

    The environment's proxies are not used. The token in KFP_MINDSPORE_SERVICE_TOKEN, if any, is sent as bearer token.

    Args:
        method: `GET` or `POST`.
        url: http:// or https:// address.
        body: JSON body; None without a body.
        timeout: Seconds, for the connection and for each read.

    Raises:
        UserError: The address or the token is invalid.
        RequestError: The request failed, or the response was not 200 with JSON.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"url: must be http://host:port or https://host:port, got {url!r}")
    factory = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = factory(parts.hostname, parts.port, timeout=timeout)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    content = None if body is None else json.dumps(body, allow_nan=False).encode()
    headers = {"Accept": "application/json", **({} if content is None else {"Content-Type": "application/json"})}
    if token := os.environ.get(SERVICE_TOKEN_VARIABLE, "").strip():
        if not (token.isascii() and token.isprintable()):
            raise UserError(f"{SERVICE_TOKEN_VARIABLE}: must be one token of printable ASCII characters")
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServiceRequestError(f"{method} {url}: no answer ({error or type(error).__name__})") from error
    finally:
        connection.close()
    text = answer.decode(errors="replace")
    if response.status != 200:
        raise ServiceRequestError(
            f"{method} {url}: answered {response.status}: {_shorten(text)}", status=response.status
        )
    try:
        return json.loads(text)
    except ValueError:
        raise ServiceRequestError(
            f"{method} {url}: answered no JSON: {_shorten(text)}", status=response.status
        ) from None


def wait_for_route(url: str, *, seconds: float = _ROUTE_SECONDS) -> bool:
    """Wait until a new service's address accepts connections: nodes route to a ready pod some seconds after KServe is.

    Args:
        url: http:// or https:// address.
        seconds: Longest wait.

    Returns:
        Whether it accepts connections; if not, the next request's error says why.
    """
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(address, timeout=seconds).close()
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(_ROUTE_POLL_SECONDS)


def is_ready(url: str, name: str, *, timeout: float = 1.0) -> bool:
    """Return whether a model is ready.

    Args:
        url: Server address.
        name: Model name.
        timeout: Seconds.
    """
    try:
        answer = request_json("GET", f"{url}/v2/models/{name}/ready", timeout=timeout)
    except ServiceRequestError:
        return False
    return isinstance(answer, dict) and answer.get("ready", False) is True


def predict_v1(url: str, name: str, instances: list[Any], *, timeout: float = 60.0) -> list[Any]:
    """Send a V1 request and return the predictions, one for each instance.

    Raises:
        RequestError: The request failed, or the response has no prediction list.
    """
    address = f"{url}/v1/models/{name}:predict"
    answer = request_json("POST", address, {"instances": instances}, timeout=timeout)
    predictions = answer.get("predictions") if isinstance(answer, dict) else None
    if not isinstance(predictions, list):
        raise ServiceRequestError(f"POST {address}: answered no list of predictions: {_shorten(json.dumps(answer))}")
    return predictions


def infer_v2(url: str, name: str, inputs: list[dict[str, Any]], *, timeout: float = 60.0) -> dict[str, dict[str, Any]]:
    """Send a V2 request and return the outputs by name: {name, shape, datatype, data}.

    Raises:
        RequestError: The request failed, or the response has no outputs.
    """
    address = f"{url}/v2/models/{name}/infer"
    answer = request_json("POST", address, {"inputs": inputs}, timeout=timeout)
    outputs = answer.get("outputs") if isinstance(answer, dict) else None
    if not isinstance(outputs, list) or not all(isinstance(output, dict) and "name" in output for output in outputs):
        raise ServiceRequestError(f"POST {address}: answered no list of outputs: {_shorten(json.dumps(answer))}")
    return {str(output["name"]): output for output in outputs}


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
