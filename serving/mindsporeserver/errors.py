"""Exceptions for failed requests, each with the HTTP status and gRPC code."""

from __future__ import annotations


class RequestError(Exception):
    """Base class for failed requests.

    Args:
        message: Message for the client: the field, the expected and the found value.
    """

    status = 500
    code = "INTERNAL"
    reason = "error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(RequestError):
    """Invalid request.

    Args:
        message: The field, the expected and the found value.
        status: 400, or 413 for a request that is too large.
    """

    status = 400
    code = "INVALID_ARGUMENT"
    reason = "invalid"

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class UnknownModelError(RequestError):
    """Unknown model or version.

    Args:
        name: The model's name.
        version: The requested version; empty for none.
    """

    status = 404
    code = "NOT_FOUND"
    reason = "invalid"

    def __init__(self, name: str, version: str = "") -> None:
        name, version = shorten_text(name), shorten_text(version)
        what = f"Model with name {name} does not exist."
        super().__init__(f"Model with name {name} has no version {version}." if version else what)


class NotReadyError(RequestError):
    """The model is not loaded yet.

    Args:
        name: The model's name; empty for the server as a whole.
    """

    status = 503
    code = "UNAVAILABLE"
    reason = "not_ready"

    def __init__(self, name: str = "") -> None:
        super().__init__(f"Model with name {name} is not ready." if name else "Server is not ready.")


class OverloadedError(RequestError):
    """The queue is full.

    Args:
        count: Queued item count.
        limit: Maximum queued item count.
        what: The counted items' name.
    """

    status = 503
    code = "RESOURCE_EXHAUSTED"
    reason = "overload"

    def __init__(self, count: int, limit: int, *, what: str = "rows") -> None:
        super().__init__(f"overloaded: {count} {what} are queued, the limit is {limit}; retry later")


class DeadlineExceededError(RequestError):
    """The client's or the server's deadline passed before the request was computed."""

    status = 503
    code = "DEADLINE_EXCEEDED"
    reason = "deadline"

    def __init__(self) -> None:
        super().__init__("the deadline of the request passed before it was computed")


class ClientGoneError(RequestError):
    """The client disconnected before the response."""

    status = 499
    code = "CANCELLED"
    reason = "cancelled"

    def __init__(self) -> None:
        super().__init__("the client has disconnected")


class ShuttingDownError(RequestError):
    """The shutdown's grace period ended before the request was computed."""

    status = 503
    code = "UNAVAILABLE"
    reason = "cancelled"

    def __init__(self) -> None:
        super().__init__("the server is shutting down; retry on another connection")


class InternalError(RequestError):
    """Defect in this server.

    Args:
        error: The exception; the message has the type only, the log the trace.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the server failed with {type(error).__name__}; its log has the trace")


class FixedModelsError(RequestError):
    """Attempt to load or unload a model on a server with several worker processes."""

    status = 409
    code = "FAILED_PRECONDITION"
    reason = "unsupported"

    def __init__(self) -> None:
        super().__init__(
            "the models of a server with --workers are fixed: load and unload would reach one process only"
        )


class UnauthenticatedError(RequestError):
    """A request without an accepted token.

    Args:
        is_missing: Whether there is no token at all.
    """

    status = 401
    code = "UNAUTHENTICATED"
    reason = "denied"

    def __init__(self, *, is_missing: bool) -> None:
        found = "none" if is_missing else "one that is not accepted"
        super().__init__(f"header Authorization: must be 'Bearer TOKEN' with a token of this server, got {found}")


class ManagementPortError(RequestError):
    """A management request on the public port.

    Args:
        port: The management port.
    """

    status = 403
    code = "PERMISSION_DENIED"
    reason = "denied"

    def __init__(self, port: int) -> None:
        super().__init__(f"load, unload and metrics are answered on the management port only, {port}, by HTTP")


class UnsupportedError(RequestError):
    """Unsupported protocol feature."""

    status = 501
    code = "UNIMPLEMENTED"
    reason = "unsupported"


class GraphError(RequestError):
    """The graph failed on inputs that match the signature.

    Args:
        message: MindSpore's error message.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"the computation of the model failed: {message}")


def shorten_text(text: str, limit: int = 200) -> str:
    """Truncate a client's text for a message."""
    return text if len(text) <= limit else f"{text[:limit]}…"
