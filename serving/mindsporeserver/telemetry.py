"""What is counted, logged and traced of an inference request, the same for HTTP and gRPC."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mindsporeserver.errors import RequestError

if TYPE_CHECKING:
    from mindsporeserver.models.batcher import Ticket
    from mindsporeserver.models.model import MindSporeModel
    from mindsporeserver.observability.logs import RequestLog
    from mindsporeserver.observability.tracing import Span, Tracer


class Telemetry:
    """Makes the record of each request.

    Args:
        log: Writes a line per request.
        tracer: Makes spans, or None.
    """

    def __init__(self, log: RequestLog, tracer: Tracer | None = None) -> None:
        self.log = log
        self._tracer = tracer

    def start(
        self, protocol: str, model: MindSporeModel | str, headers: Iterable[tuple[bytes | str, bytes | str]]
    ) -> RequestRecord:
        """Return the record of a request that begins.

        Args:
            protocol: v1, v2, v2-binary or grpc.
            model: The model, or the name of one that is not served.
            headers: The HTTP headers or the gRPC metadata, for the caller's trace.
        """
        if isinstance(model, str):
            return RequestRecord(self.log, protocol, model, None, None)
        model.metrics.count_request(protocol)
        span = None
        if self._tracer is not None:
            found = {_to_text(name): _to_text(value) for name, value in headers}
            span = self._tracer.start(f"infer {model.name}", found)
        return RequestRecord(self.log, protocol, model.name, model, span)

    def close(self) -> None:
        """Send the last spans."""
        if self._tracer is not None:
            self._tracer.close()


class RequestRecord:
    """One request; `finish` or `fail` is called once, with its outcome."""

    __slots__ = ("_log", "_model", "_name", "_protocol", "_span", "request_id", "started", "ticket")

    def __init__(
        self, log: RequestLog, protocol: str, name: str, model: MindSporeModel | None, span: Span | None
    ) -> None:
        self._log = log
        self._protocol = protocol
        self._name = name
        self._model = model
        self._span = span
        self.started = time.monotonic()
        self.request_id = ""
        self.ticket: Ticket | None = None

    def fail(self, error: RequestError) -> None:
        """Record a request that was refused or failed."""
        self._count(error.reason)
        self.finish(error.status, error.code, error.message)

    def crash(self, error: BaseException) -> None:
        """Record a request that a defect of this server ended."""
        self._count("error")
        self.finish(500, "INTERNAL", type(error).__name__)

    def finish(self, status: int = 200, code: str = "OK", reason: str = "") -> None:
        """Log the request and end its span.

        Args:
            status: The HTTP status; for gRPC its equivalent.
            code: The gRPC code.
            reason: Why it failed.
        """
        span = self._span
        if span is None and not self._log.wants(status):
            return
        ticket = self.ticket
        queued_at, rows, queue_seconds, compute_seconds = 0, 0, 0.0, 0.0
        if ticket is not None:
            queued_at = time.time_ns() - int((time.monotonic() - ticket.arrived) * 1e9)
            rows, queue_seconds, compute_seconds = ticket.rows, ticket.queued_seconds, ticket.computed_seconds
        self._log.write(
            request_id=self.request_id,
            protocol=self._protocol,
            model=self._name,
            status=status,
            seconds=time.monotonic() - self.started,
            rows=rows,
            queue_seconds=queue_seconds,
            compute_seconds=compute_seconds,
            reason=reason,
            trace_id=span.trace_id if span is not None else "",
        )
        if span is not None:
            attributes = {"grpc_status": code} if self._protocol == "grpc" else {}
            span.finish(
                status,
                queued_at=queued_at,
                protocol=self._protocol,
                model=self._name,
                rows=rows,
                queue_seconds=queue_seconds,
                compute_seconds=compute_seconds,
                request_id=self.request_id,
                **attributes,
            )

    def _count(self, reason: str) -> None:
        if self._model is not None:
            self._model.metrics.count_failure(reason)


def _to_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
