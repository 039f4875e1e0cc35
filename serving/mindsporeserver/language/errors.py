"""Errors of the OpenAI protocol, with the field that a request has to change."""

from __future__ import annotations

from typing import Any

from mindsporeserver.errors import RequestError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_REASONS = {429: "overload", 501: "unsupported", 503: "not_ready"}


class LanguageError(RequestError):
    """A refused or failed request to a language model.

    Args:
        message: The field, the expected and the found value.
        param: The field's name, such as `messages[0].role`; None where no field is at fault.
        status: The HTTP status.
        error_code: The protocol's `code`, such as `context_length_exceeded`; None without one.
        retry_after: Seconds for the header Retry-After; None without it.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        error_code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.error_code = error_code
        self.retry_after = retry_after
        self.reason = _REASONS.get(status, "error" if status >= 500 else "invalid")


def describe_error(error: RequestError) -> dict[str, Any]:
    """Return an error as the OpenAI protocol's error object."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = error.param if isinstance(error, LanguageError) else None
    code = error.error_code if isinstance(error, LanguageError) else None
    return {"error": {"message": error.message, "type": kind, "param": param, "code": code}}
