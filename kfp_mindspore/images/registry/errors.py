"""What can go wrong with a registry, told apart: nobody, not allowed, not there, not now."""

from __future__ import annotations

import email.utils
import time
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError, UserError

if TYPE_CHECKING:
    import requests

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_DETAIL = 300
_LONGEST_RETRY_AFTER_SECONDS = 60.0


_SENT = "Try again when the registry works: what was sent before is not sent again."
_AGAIN = "Try again when the registry works."
_NOT_FOUND = (
    "Check the host's name and the network; --mirror HOST=PLACE reads from another place, --insecure HOST speaks plain "
    "HTTP."
)


class RegistryError(KfpMindSporeError):
    """A registry failed or answered what it must not.

    Args:
        message: What was asked and what was answered.
        hint: The next step.
        code: The registry's own word for it, such as `DIGEST_INVALID`; an empty text for none.
    """

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class TransientError(RegistryError):
    """A failure that may pass: 429, 5xx, or a connection that broke.

    Args:
        message: What was asked and what was answered.
        retry_after: Seconds that the registry asks to wait; 0 when it names none.
        hint: The next step.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0, hint: str = _SENT) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class CredentialsError(UserError):
    """The registry does not know who asks (401): no credentials, or wrong ones."""


class PermissionDeniedError(UserError):
    """The registry knows who asks, who may not do this (403)."""


class MissingError(UserError):
    """The registry has no such repository, manifest or blob (404)."""


def explain_response(
    response: requests.Response, action: str, host: str, user: str, *, reads: bool = False
) -> KfpMindSporeError:
    """Return the exception for an answer of 400 or more.

    Args:
        response: The registry's answer. Its URL is never quoted: it can hold a signature.
        action: What was asked, such as `push a layer to registry.local/team/train`.
        host: The registry.
        user: Who asked; an empty text for nobody.
        reads: Whether nothing was sent to this registry that could be sent again.
    """
    status, detail = response.status_code, _read_detail(response)
    said = f"{host} answered {status}{f' ({detail})' if detail else ''}"
    if status == 401 and "insufficient_scope" in response.headers.get("WWW-Authenticate", ""):
        status = 403
    if status == 401:
        who = f"the password of {user!r} is not accepted" if user else "there are no credentials for this registry"
        return CredentialsError(f"{action}: {said}: {who}", hint=f"Log in with: docker login {host}")
    if status == 403:
        who = f"user {user!r}" if user else "a user without credentials"
        return PermissionDeniedError(
            f"{action}: {said}: {who} may not do this",
            hint="Ask the registry's owner for the right to this repository.",
        )
    if status == 404:
        return MissingError(f"{action}: {said}")
    if status in _TRANSIENT:
        return TransientError(
            f"{action}: {said}", retry_after=_read_retry_after(response), hint=_AGAIN if reads else _SENT
        )
    return RegistryError(f"{action}: {said}", code=detail.partition(":")[0])


def explain_failure(error: Exception, action: str, host: str, *, reads: bool = False) -> KfpMindSporeError:
    """Return the exception for a request without an answer; `reads` as for `explain_response`."""
    import requests

    hint = _NOT_FOUND if reads else _SENT
    if isinstance(error, requests.exceptions.SSLError):
        return UserError(
            f"{action}: the certificate of {host} is not accepted ({_find_cause(error)})",
            hint="Name its authority by ca_file, or the host in insecure when it speaks plain HTTP.",
        )
    if isinstance(error, requests.Timeout):
        return TransientError(f"{action}: {host} did not answer in time", hint=hint)
    return TransientError(f"{action}: no connection to {host} ({_find_cause(error)})", hint=hint)


def _find_cause(error: BaseException) -> str:
    """Return the innermost reason: those further out quote the URL."""
    seen: BaseException = error
    while True:
        inner = seen.__cause__ or seen.__context__ or getattr(seen, "reason", None)
        inner = (
            inner
            if isinstance(inner, BaseException)
            else next((part for part in seen.args if isinstance(part, BaseException)), None)
        )
        if inner is None or inner is seen:
            break
        seen = inner
    if isinstance(seen, OSError) and seen.strerror:
        return seen.strerror
    return str(seen)[:_LONGEST_DETAIL] if "://" not in str(seen) and "/v2/" not in str(seen) else type(seen).__name__


def _read_detail(response: requests.Response) -> str:
    try:
        first = response.json()["errors"][0]
        parts: list[Any] = [first.get("code"), first.get("message"), first.get("detail")]
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        return response.reason or ""
    if _holds_no_space(parts[-1]):
        return "no space left on the registry's disk"
    return ": ".join(str(part) for part in parts[:2] if part)[:_LONGEST_DETAIL]


def _holds_no_space(detail: Any) -> bool:
    # docker-registry passes the errno of its storage on: ENOSPC is 28 on every system it runs on.
    if isinstance(detail, dict):
        return detail.get("Err") == 28 or any(_holds_no_space(value) for value in detail.values())
    return isinstance(detail, str) and "no space left" in detail


def _read_retry_after(response: requests.Response) -> float:
    text = response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        seconds = float(text)
    else:
        moment = email.utils.parsedate_tz(text)
        seconds = email.utils.mktime_tz(moment) - time.time() if moment else 0.0
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER_SECONDS)
