"""Kubernetes API errors, with the request that failed and the next step."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, NotFoundError, UserError, ValidationError

_SHOWN = 300
# "policy" is any other admission plugin.
RefusalCause = Literal["role", "pod-security", "quota", "small-quota", "webhook", "policy"]
_WEBHOOK = "admission webhook"
# Admission plugins respond with a sentence only (Kubernetes 1.25 to 1.34): read here, and nowhere else.
_CAUSES: tuple[tuple[RefusalCause, re.Pattern[str]], ...] = (
    ("webhook", re.compile(_WEBHOOK)),
    ("pod-security", re.compile("violates PodSecurity")),
    # Nothing is used: the object alone is above the limit.
    ("small-quota", re.compile(r"exceeded quota: .* used: ([^=,\s]+=0,)+ limited: ")),
    ("quota", re.compile("exceeded quota: ")),
)


class ConfigurationError(UserError):
    """No cluster is configured, or its kubeconfig cannot be used."""


class UnreachableError(KfpMindSporeError, RuntimeError):
    """The API server does not respond."""


class UncertainError(UnreachableError):
    """The connection broke during a create request: the object may exist or not."""


class UnauthorizedError(UserError, RuntimeError):
    """The credentials were rejected (401)."""


class ForbiddenError(UserError, RuntimeError):
    """The account is not allowed to do this, or a quota or admission policy refused it (403).

    Args:
        message: The request and the server's message.
        hint: The next step.
        cause: What refused the request.
    """

    def __init__(self, message: str, *, hint: str = "", cause: RefusalCause = "policy") -> None:
        super().__init__(message, hint=hint)
        self.cause = cause


class WebhookDeniedError(ValidationError):
    """An admission webhook refused the object (400, 422)."""


class NotInstalledError(UserError, RuntimeError):
    """The API server does not serve this object kind."""


class ApiError(KfpMindSporeError, RuntimeError):
    """An error response without its own class.

    Args:
        message: The request and the server's message.
        status: HTTP status.
        reason: The API's reason, such as `InternalError`.
    """

    def __init__(self, message: str, *, status: int, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason


class ConflictError(ApiError):
    """The object was changed since it was read, or has another uid (409)."""


class ExpiredError(ApiError):
    """The resourceVersion or the list's continue token is too old (410): list again."""


@dataclass(frozen=True)
class ApiRequest:
    """A request, in RBAC rule terms.

    Attributes:
        verb: Such as `create`, `list` or `get`.
        resource: The plural, with its group and subresource: `msjobs.mindspore.gitee.com`, `pods/log`.
        name: The object; empty for a collection.
        namespace: The object's namespace; empty for none.
    """

    verb: str
    resource: str = ""
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{name}{where}"


def parse_status(body: bytes) -> dict[str, Any]:
    """Return a response's Status object; for any other response, its beginning as the message."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("kind") == "Status":
        return document
    return {"message": body[:_SHOWN].decode(errors="replace").strip()}


def explain_response(request: ApiRequest, http_status: int, status: Mapping[str, Any]) -> KfpMindSporeError:
    """Return the error for a response.

    Args:
        request: The request.
        http_status: The HTTP status.
        status: The Status object, from `parse_status`.
    """
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"HTTP status {http_status}")
    if http_status == 401:
        return UnauthorizedError(
            f"cannot {request}: the API server rejected these credentials",
            hint="Log in again, or choose another context (--context, --kubeconfig).",
        )
    if http_status == 403:
        return _explain_forbidden(request, message)
    if http_status == 404:
        return _explain_missing(request, status, message)
    if http_status == 409 and reason == "AlreadyExists":
        return AlreadyExistsError(f"cannot {request}: it exists already")
    if http_status == 409:
        return ConflictError(f"cannot {request}: {message}", status=http_status, reason=reason)
    if http_status == 410:
        return ExpiredError(f"cannot {request}: {message}", status=http_status, reason=reason)
    if http_status in (400, 422) and request.verb in ("create", "patch", "update"):
        kind = WebhookDeniedError if _WEBHOOK in message else ValidationError
        return kind(_list_causes(status, message), subject=f"{request.resource} {request.name}".strip())
    return ApiError(f"cannot {request}: {message}", status=http_status, reason=reason)


def _explain_forbidden(request: ApiRequest, message: str) -> ForbiddenError:
    # Quotas and admission policies respond with the same status, where no role would help.
    if "cannot " not in message or " resource " not in message:
        cause: RefusalCause = next((cause for cause, pattern in _CAUSES if pattern.search(message)), "policy")
        return ForbiddenError(f"cannot {request}: {message}", cause=cause)
    scope = f" -n {request.namespace}" if request.namespace else ""
    return ForbiddenError(
        f"not allowed to {request}: {message}",
        hint=f"Ask for a Role that allows the verb {request.verb!r} on {request.resource}; "
        f"check with: kubectl auth can-i {request.verb} {request.resource}{scope}",
        cause="role",
    )


def _explain_missing(request: ApiRequest, status: Mapping[str, Any], message: str) -> KfpMindSporeError:
    kind = (status.get("details") or {}).get("kind")
    if kind is None:
        # No Status: the group or resource does not exist.
        return NotInstalledError(
            f"cannot {request}: the API server does not know {request.resource}",
            hint="Install its CustomResourceDefinition with: "
            "kfp-mindspore operator install --image REGISTRY/NAME@sha256:…"
            if request.resource.startswith("msjobs.")
            else "",
        )
    if kind == "namespaces" and request.resource != "namespaces":
        return NotFoundError(
            f"cannot {request}: there is no such namespace",
            hint=f"Choose another with --namespace, or make it: kubectl create namespace {request.namespace}",
        )
    return NotFoundError(f"cannot {request}: {message}")


def _list_causes(status: Mapping[str, Any], message: str) -> list[str]:
    """Return one sentence per field; the API server repeats causes that several checks find."""
    causes = (status.get("details") or {}).get("causes") or []
    sentences = [f"{cause.get('field')}: {cause.get('message')}" for cause in causes if cause.get("field")]
    return list(dict.fromkeys(sentences)) or [message]
