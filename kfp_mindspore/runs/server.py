"""The connection to a Kubeflow Pipelines server: whether one answers at an address, and what its errors mean."""

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
    """Return a server's address with its scheme and without a slash at the end.

    Args:
        host: The address; https is meant where no scheme is given, as for kfp.Client.

    Raises:
        UserError: It is empty or no HTTP address.
    """
    host = host.strip()
    if not host:
        raise UserError(
            "host: the address of Kubeflow Pipelines is missing",
            hint=f"Give --host, or set {HOST_VARIABLES[0]}, for example http://127.0.0.1:8888",
        )
    scheme, separator, rest = host.partition("://")
    if not separator:
        return f"https://{host.rstrip('/')}"
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise UserError(f"host: must be an http:// or https:// address, got {host!r}")
    return host.rstrip("/")


def check_server(host: str, token: str, seconds: float) -> None:
    """Find out whether Kubeflow Pipelines answers at an address.

    kfp.Client would ask five times with pauses of five seconds and log a stack trace each time.

    Args:
        host: What `check_host` returned.
        token: Bearer token; empty for none.
        seconds: Seconds to wait for the answer.

    Raises:
        UserError: The host is no address.
        KfpMindSporeError: Nothing answers, or something that refuses or is no Kubeflow Pipelines server.
    """
    import urllib3
    from urllib3.exceptions import HTTPError, LocationParseError

    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    url = f"{host}/apis/v2beta1/healthz"
    with urllib3.PoolManager(retries=False, timeout=seconds) as pool:
        try:
            answer = pool.request("GET", url, headers=headers)
        except LocationParseError as error:
            raise UserError(f"host: {host!r} is no address ({error})") from None
        except HTTPError as error:
            raise KfpMindSporeError(
                f"{host}: no answer from Kubeflow Pipelines ({_shorten(str(error))})",
                hint="Is the address right, and reachable from here? A port-forward makes it so: "
                "kubectl port-forward -n kubeflow svc/ml-pipeline 8888",
            ) from error
    if answer.status != 200:
        raise _make_error(host, "connect", answer.status, answer.reason or "", answer.data)
    try:
        json.loads(answer.data)
    except ValueError:
        kind = answer.headers.get("Content-Type", "no type")
        raise KfpMindSporeError(
            f"{url}: expected JSON from Kubeflow Pipelines, got {kind}",
            hint="A login page answers so: give a token. Or the path of the API is another one.",
        ) from None


@contextlib.contextmanager
def explain_errors(host: str, action: str, *, version: str = "") -> Iterator[None]:
    """Turn what kfp.Client raises in the block into this package's errors, and keep what it prints to itself.

    Args:
        host: The server.
        action: What is done, for the message.
        version: Name of the pipeline version that is uploaded.

    Raises:
        AlreadyExistsError: The server has a version of this name.
        KfpMindSporeError: It cannot be reached or refuses.
    """
    from kfp_server_api import ApiException  # type: ignore[import-untyped,unused-ignore]
    from urllib3.exceptions import HTTPError

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except ApiException as error:
        if version and "already exist" in _read_message(error.body).lower():
            raise AlreadyExistsError(
                f"version {version!r}: exists already, so nothing was uploaded",
                hint="This very pipeline was uploaded before, unless you named the version yourself.",
            ) from error
        raise _make_error(host, action, error.status or 0, error.reason or "", error.body) from error
    except (HTTPError, ValueError) as error:
        # After its retries urllib3 puts the address asked, filters and all, before the reason.
        reason = getattr(error, "reason", None) or error
        raise KfpMindSporeError(f"{host}: {action}: {_shorten(str(reason))}") from error


def _make_error(host: str, action: str, status: int, reason: str, body: Any) -> KfpMindSporeError:
    message = _read_message(body)
    hint = ""
    if status in (301, 302, 303, 307, 308, 401, 403):
        hint = f"Give a token (--token, {TOKEN_VARIABLE}) and your namespace (--namespace)."
    elif status == 404:
        hint = "The path of the API may be missing: many installations have it at …/pipeline."
    answered = f"{host}: {action}: answered {status} {reason}".rstrip()
    return KfpMindSporeError(f"{answered}: {message}" if message else answered, hint=hint)


def _read_message(body: Any) -> str:
    """Return what the body of an answer says to a person: KFP's message, or the text when it is short."""
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
