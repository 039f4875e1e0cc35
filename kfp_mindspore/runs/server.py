"""Connection to a Kubeflow Pipelines server: its URL, a first request and its errors."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, UserError

HOST_VARIABLES = ("KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT")
TOKEN_VARIABLE = "KFP_TOKEN"


def check_host(host: str) -> str:
    """Return the URL of a server with its scheme and without a trailing slash.

    Args:
        host: The URL; the default scheme is https, as for kfp.Client.

    Raises:
        UserError: The URL is empty or not an HTTP URL.
    """
    host = host.strip()
    if not host:
        raise UserError(
            "host: the URL of Kubeflow Pipelines is missing",
            hint=f"Set --host or {HOST_VARIABLES[0]}, for example http://127.0.0.1:8888",
        )
    scheme, separator, rest = host.partition("://")
    if not separator:
        return f"https://{host.rstrip('/')}"
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise UserError(f"host: must be an http:// or https:// URL, got {host!r}")
    return host.rstrip("/")


def check_server(host: str, token: str, seconds: float) -> None:
    """Check that a URL is served by Kubeflow Pipelines.

    kfp.Client would retry five times at intervals of five seconds and log a stack trace each time.

    Args:
        host: URL from `check_host`.
        token: Bearer token; empty for none.
        seconds: Timeout in seconds.

    Raises:
        UserError: The host is not a URL.
        KfpMindSporeError: The server is unreachable, refuses the request or is not Kubeflow Pipelines.
    """
    import urllib3
    from urllib3.exceptions import HTTPError, LocationParseError

    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    url = f"{host}/apis/v2beta1/healthz"
    with urllib3.PoolManager(retries=False, timeout=seconds) as pool:
        try:
            response = pool.request("GET", url, headers=headers)
        except LocationParseError as error:
            raise UserError(f"host: {host!r} is not a URL ({error})") from None
        except HTTPError as error:
            raise KfpMindSporeError(
                f"{host}: no response from Kubeflow Pipelines ({_shorten(str(error))})",
                hint="Check the URL, or forward a port: kubectl port-forward -n kubeflow svc/ml-pipeline 8888",
            ) from error
    if response.status != 200:
        raise _make_error(host, "connect", response.status, response.reason or "", response.data)
    try:
        json.loads(response.data)
    except ValueError:
        kind = response.headers.get("Content-Type", "no type")
        raise KfpMindSporeError(
            f"{url}: expected JSON from Kubeflow Pipelines, got {kind}",
            hint="This may be a login page: set a token. Or the path of the API differs.",
        ) from None


@contextlib.contextmanager
def explain_errors(host: str, action: str, *, version: str = "") -> Iterator[None]:
    """Convert errors of kfp.Client in the block to this package's errors, and suppress its output.

    Args:
        host: URL of the server.
        action: Name of the operation, for messages.
        version: Name of the uploaded pipeline version.

    Raises:
        AlreadyExistsError: The server has a version of this name.
        KfpMindSporeError: The server is unreachable or refuses the request.
    """
    from kfp_server_api import ApiException  # type: ignore[import-untyped,unused-ignore]
    from urllib3.exceptions import HTTPError

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except ApiException as error:
        if version and "already exist" in _read_message(error.body).lower():
            raise AlreadyExistsError(
                f"version {version!r}: already exists, nothing was uploaded",
                hint="Without --version, this means that the same pipeline was uploaded before.",
            ) from error
        raise _make_error(host, action, error.status or 0, error.reason or "", error.body) from error
    except (HTTPError, ValueError) as error:
        # After its retries, urllib3's message starts with the whole URL.
        reason = getattr(error, "reason", None) or error
        raise KfpMindSporeError(f"{host}: {action}: {_shorten(str(reason))}") from error


def _make_error(host: str, action: str, status: int, reason: str, body: Any) -> KfpMindSporeError:
    message = _read_message(body)
    hint = ""
    if status in (301, 302, 303, 307, 308, 401, 403):
        hint = f"Set a token (--token, {TOKEN_VARIABLE}) and your namespace (--namespace)."
    elif status == 404:
        hint = "The path of the API may be missing: many installations serve it at …/pipeline."
    summary = f"{host}: {action}: HTTP {status} {reason}".rstrip()
    return KfpMindSporeError(f"{summary}: {message}" if message else summary, hint=hint)


def _read_message(body: Any) -> str:
    """Return the error message in a response body: KFP's message, or the text unless it is HTML."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        document = json.loads(text)
    except ValueError:
        return "" if "<" in text else _shorten(text)
    if isinstance(document, dict):
        return _shorten(str(document.get("error_message") or document.get("message") or document.get("error") or ""))
    return _shorten(text)


def _shorten(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 300 else f"{words[:297]}…"
