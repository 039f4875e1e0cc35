"""Why a request is not answered with outputs: one exception a reason, with its HTTP status and gRPC code."""

from __future__ import annotations


class RequestError(Exception):
    """A request that is not answered with outputs.

    Args:
        message: For the client: the field, what was expected and what was found.
    """

    status = 500
    code = "INTERNAL"
    reason = "error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(RequestError):
    """The client's mistake.

    Args:
        message: The field, what was expected and what was found.
        status: 400, or 413 for what is too large.
    """

    status = 400
    code = "INVALID_ARGUMENT"
    reason = "invalid"

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class UnknownModelError(RequestError):
    """No such model or version.

    Args:
        name: The model's name.
        version: The version that was asked for, if any.
    """

    status = 404
    code = "NOT_FOUND"
    reason = "invalid"

    def __init__(self, name: str, version: str = "") -> None:
        what = f"Model with name {name} does not exist."
        super().__init__(f"Model with name {name} has no version {version}." if version else what)


class NotReadyError(RequestError):
    """The model is known and not loaded yet.

    Args:
        name: The model's name; empty for the server as a whole.
    """

    status = 503
    code = "UNAVAILABLE"
    reason = "not_ready"

    def __init__(self, name: str = "") -> None:
        super().__init__(f"Model with name {name} is not ready." if name else "Server is not ready.")


class OverloadedError(RequestError):
    """More is queued than the limit.

    Args:
        count: How many are accepted and not yet answered.
        limit: How many may be.
        what: What is counted.
    """

    status = 503
    code = "RESOURCE_EXHAUSTED"
    reason = "overload"

    def __init__(self, count: int, limit: int, *, what: str = "rows") -> None:
        super().__init__(f"overloaded: {count} {what} are waiting and the limit is {limit}; try again later")


class DeadlineExceededError(RequestError):
    """The client's or the server's time for a request was over before it was computed."""

    status = 503
    code = "DEADLINE_EXCEEDED"
    reason = "deadline"

    def __init__(self) -> None:
        super().__init__("the time for this request was over before it was computed")


class ClientGoneError(RequestError):
    """The client closed its connection before its request was computed; nobody reads the answer."""

    status = 499
    code = "CANCELLED"
    reason = "cancelled"

    def __init__(self) -> None:
        super().__init__("the client has gone")


class ShuttingDownError(RequestError):
    """The grace period of the shutdown ended before the request was computed."""

    status = 503
    code = "UNAVAILABLE"
    reason = "cancelled"

    def __init__(self) -> None:
        super().__init__("the server is shutting down; try again on another connection")


class FixedModelsError(RequestError):
    """A client wants to load or unload a model of one of several processes."""

    status = 409
    code = "FAILED_PRECONDITION"
    reason = "unsupported"

    def __init__(self) -> None:
        super().__init__("with --workers the models of a server are fixed: this process would differ from the others")


class UnsupportedError(RequestError):
    """Something of the protocol that is not offered."""

    status = 501
    code = "UNIMPLEMENTED"
    reason = "unsupported"


class GraphError(RequestError):
    """The graph raised on inputs that fit the signature: the model's fault.

    Args:
        message: What MindSpore said.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"the model cannot compute this: {message}")
