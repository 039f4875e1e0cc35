"""Registry errors: unauthorized, forbidden, not found, transient."""

from __future__ import annotations

import email.utils
import time
from typing import Any

import requests

from kfp_mindspore.errors import KfpMindSporeError, UserError

_TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)
_MAX_DETAIL = 300
_MAX_RETRY_AFTER_SECONDS = 60.0
_RETRY_HINT = "Try again when the registry is available; complete layers are not sent again."
_CONNECT_HINT = (
    "Check the host's name and the network; --mirror HOST=LOCATION reads from another registry, --insecure HOST uses "
    "plain HTTP."
)


class RegistryError(KfpMindSporeError):
    """An error response from a registry, or a response that is wrong.

    Args:
        message: The request and the response.
        hint: The next step.
        code: The registry's error code, such as `DIGEST_INVALID`; empty for none.
    """

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class TransientError(RegistryError):
    """A failure to retry: 429, 5xx, or a broken connection.

    Args:
        message: The request and the response.
        retry_after: Seconds from the Retry-After header; 0 without one.
        hint: The next step.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0, hint: str = _RETRY_HINT) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class CredentialsError(UserError):
    """401: no credentials, or wrong ones."""


class PermissionDeniedError(UserError):
    """403: the account has no permission."""


class MissingError(UserError):
    """404: no such repository, manifest or blob."""


def explain_status(response: requests.Response, action: str, host: str, user: str) -> KfpMindSporeError:
    """Return the exception for a response with status 400 or above.

    Args:
        response: The response. Its URL can hold a signature and is not quoted.
        action: What was requested, such as `push a layer to registry.local/team/train`.
        host: The registry.
        user: The login's user name; empty without one.
    """
    status, detail = response.status_code, _get_detail(response)
    text = f"{action}: {host} returned {status}{f' ({detail})' if detail else ''}"
    if status == 401 and "insufficient_scope" in response.headers.get("WWW-Authenticate", ""):
        status = 403
    if status == 401:
        reason = f"the password of {user!r} is refused" if user else "there are no valid credentials for this registry"
        return CredentialsError(f"{text}: {reason}", hint=f"Log in with: docker login {host}")
    if status == 403:
        account = f"user {user!r}" if user else "an anonymous user"
        return PermissionDeniedError(
            f"{text}: {account} has no permission", hint="Get permission for this repository from the registry's owner."
        )
    if status == 404:
        return MissingError(text)
    if status in _TRANSIENT_STATUS:
        return TransientError(text, retry_after=_get_retry_after(response))
    return RegistryError(text, code=detail.partition(":")[0])


def explain_request_error(error: requests.RequestException, action: str, host: str) -> KfpMindSporeError:
    """Return the exception for a request without a response."""
    if isinstance(error, requests.exceptions.SSLError):
        return UserError(
            f"{action}: the certificate of {host} is not trusted ({get_root_cause(error)})",
            hint="Name its certificate authority by ca_file, or the host in insecure when it speaks plain HTTP.",
        )
    if isinstance(error, requests.Timeout):
        return TransientError(f"{action}: {host} did not respond in time", hint=_CONNECT_HINT)
    return TransientError(f"{action}: no connection to {host} ({get_root_cause(error)})", hint=_CONNECT_HINT)


def get_root_cause(error: BaseException) -> str:
    """Return the innermost exception's text: the HTTP libraries' outer ones quote the URL."""
    cause: BaseException = error
    while True:
        inner = cause.__cause__ or cause.__context__ or getattr(cause, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((part for part in cause.args if isinstance(part, BaseException)), None)
        if inner is None or inner is cause:
            break
        cause = inner
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    text = str(cause)
    return text[:_MAX_DETAIL] if text and "://" not in text and "/v2/" not in text else type(cause).__name__


def _get_detail(response: requests.Response) -> str:
    try:
        first = response.json()["errors"][0]
        parts: list[Any] = [first.get("code"), first.get("message"), first.get("detail")]
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        return response.reason or ""
    if _is_disk_full(parts[-1]):
        return "no space left on the registry's disk"
    return ": ".join(str(part) for part in parts[:2] if part)[:_MAX_DETAIL]


def _is_disk_full(detail: Any) -> bool:
    # docker-registry returns its storage's errno: ENOSPC is 28.
    if isinstance(detail, dict):
        return detail.get("Err") == 28 or any(_is_disk_full(value) for value in detail.values())
    return isinstance(detail, str) and "no space left" in detail


def _get_retry_after(response: requests.Response) -> float:
    text = response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        seconds = float(text)
    else:
        parsed = email.utils.parsedate_tz(text)
        seconds = email.utils.mktime_tz(parsed) - time.time() if parsed else 0.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_SECONDS)
