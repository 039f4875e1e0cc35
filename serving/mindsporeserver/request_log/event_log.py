"""Queues answered requests, of which a thread writes events: requests never wait for the log."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple

from kfp_mindspore.inference.logger import LoggerOptions
from kfp_mindspore.stores.artifact_store import StoreError
from mindsporeserver.models.served_model import ServedModel, TensorModel
from mindsporeserver.observability.metrics import ServerMetrics
from mindsporeserver.request_log.columns import ColumnFilter
from mindsporeserver.request_log.payloads import (
    HTTPBody,
    Message,
    Payload,
    count_tokens,
    dump,
    dump_payload,
    read_value,
)
from mindsporeserver.request_log.sinks import Event, LostEventsError, Sink, describe_error, open_sink

logger = logging.getLogger(__name__)

KEY_VARIABLE = "MINDSPORESERVER_LOG_KEY"
_TYPE = "org.kubeflow.serving.inference."
# What may wait: further requests are answered and not logged.
_MOST_REQUESTS, _MOST_BYTES = 10_000, 64 << 20
# How many requests wake the thread before its time.
_WAKING = 1000
_CLOSE_SECONDS = 5.0
_REPORT_SECONDS = 60.0


class Exchange(NamedTuple):
    """An answered request.

    Args:
        id: The ID of both events.
        model: What answered.
        arrived: Arrival, in seconds since the epoch.
        answered: The answer's time, in seconds since the epoch.
        request: The request's body.
        response: The response's body.
        size: Bytes that it holds while it waits.
    """

    id: str
    model: ServedModel
    arrived: float
    answered: float
    request: Payload
    response: Payload
    size: int


class EventLog:
    """The log of one server process.

    Args:
        options: The logger's options.
        metrics: Count events.
        sink: Where events are written; default the options' URL.
    """

    def __init__(self, options: LoggerOptions, metrics: ServerMetrics, sink: Sink | None = None) -> None:
        self._options = options
        self._attributes = {"component": "predictor", "endpoint": "default", **options.attributes}
        self._sink = sink if sink is not None else open_sink(options, self._attributes)
        self._host = socket.gethostname()
        self._count = metrics.count_events
        self.columns: ColumnFilter | None = None
        if options.omit or options.hash:
            self.columns = ColumnFilter(options.omit, options.hash, os.environ.get(KEY_VARIABLE, ""))
        self._count(written=0, lost=0)
        self._kinds = ("request", "response") if options.mode == "all" else (options.mode,)
        # Its methods are atomic.
        self._queue: deque[Exchange] = deque()
        self._lock, self._wake, self._is_closing = threading.Lock(), threading.Event(), False
        self._waiting = self._bytes = 0
        self._reported = 0.0
        # It ends with the process: a sink may never return.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def has_texts(self) -> bool:
        """Whether language models' texts are logged."""
        return self._options.texts

    def choose_id(self, *given: str) -> str:
        """Return the first ID that a client gave, else a new one; empty if the request is not in the sample."""
        if self._options.sample < 1 and random.random() >= self._options.sample:
            return ""
        return next(filter(None, given), "") or str(uuid.uuid4())

    def add(
        self, request_id: str, model: ServedModel, seconds: float, request: Payload, response: Payload, size: int
    ) -> None:
        """Queue an answered request, or count its events as lost while too much waits.

        Args:
            request_id: What `choose_id` returned; nothing is logged for an empty one.
            model: What answered.
            seconds: Time since the request's arrival.
            request: The request's body.
            response: The response's body.
            size: Bytes of both.
        """
        if not request_id:
            return
        with self._lock:
            is_full = self._waiting >= _MOST_REQUESTS or self._bytes + size > _MOST_BYTES
            if not is_full:
                self._waiting += 1
                self._bytes += size
        if is_full:
            self._lose(len(self._kinds), "it is written too slowly")
            return
        now = time.time()
        self._queue.append(Exchange(request_id, model, now - seconds, now, request, response, size))
        if len(self._queue) == _WAKING:
            self._wake.set()

    def close(self) -> None:
        """Write what waits, for 5 s at most."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._waiting:
            self._lose(self._waiting * len(self._kinds), "the server ended")

    def _run(self) -> None:
        while True:
            # A thread that wakes for each request takes more from the event loop than it writes.
            self._wake.wait(self._sink.seconds)
            self._wake.clear()
            is_closing = self._is_closing
            while batch := self._take():
                self._write(batch)
            if is_closing:
                return

    def _take(self) -> list[Exchange]:
        batch: list[Exchange] = []
        with contextlib.suppress(IndexError):
            while len(batch) < self._sink.most:
                batch.append(self._queue.popleft())
        return batch

    def _write(self, batch: list[Exchange]) -> None:
        events = [event for exchange in batch for event in self._convert(exchange)]
        for start in range(0, len(events), self._sink.most):
            part = events[start : start + self._sink.most]
            try:
                self._sink.write(part)
            except LostEventsError as error:
                self._lose(error.count, str(error)[:200])
                self._count(written=len(part) - error.count)
            except (OSError, StoreError) as error:
                self._lose(len(part), describe_error(error))
            else:
                self._count(written=len(part))
        with self._lock:
            self._waiting -= len(batch)
            self._bytes -= sum(exchange.size for exchange in batch)

    def _convert(self, exchange: Exchange) -> list[Event]:
        try:
            return self._build_events(exchange)
        except Exception:
            # The thread goes on with the next request.
            logger.exception("request %s of model %s cannot be logged", exchange.id[:128], exchange.model.name)
            self._lose(len(self._kinds), "they cannot be converted")
            return []

    def _build_events(self, exchange: Exchange) -> list[Event]:
        events = []
        for kind in self._kinds:
            payload, moment = (
                (exchange.request, exchange.arrived) if kind == "request" else (exchange.response, exchange.answered)
            )
            attributes = {
                "specversion": "1.0",
                "id": exchange.id,
                "type": f"{_TYPE}{kind}",
                "source": self._host,
                "time": datetime.fromtimestamp(moment, timezone.utc).isoformat().replace("+00:00", "Z"),
                "inferenceservicename": exchange.model.name,
                **self._attributes,
            }
            events.append(Event(attributes, self._encode(payload, exchange.model)))
        return events

    def _encode(self, payload: Payload, model: ServedModel) -> bytes:
        if not isinstance(payload, (HTTPBody, Message)):
            return dump(payload if self._options.texts else count_tokens(payload))
        if self.columns is None or not isinstance(model, TensorModel):
            return dump_payload(payload)
        return dump(self.columns.change(read_value(payload), model))

    def _lose(self, events: int, reason: str) -> None:
        self._count(lost=events)
        if time.monotonic() - self._reported >= _REPORT_SECONDS or not self._reported:
            self._reported = time.monotonic()
            logger.warning("the log of requests lost %d events: %s", events, reason)


def open_log(options: LoggerOptions | None, metrics: ServerMetrics) -> EventLog | None:
    """Return the log; None without options."""
    return None if options is None else EventLog(options, metrics)


def make_check(log: EventLog | None) -> Callable[[ServedModel], None] | None:
    """Return what refuses a model without the log's columns; None for a log without such."""
    return None if log is None or log.columns is None else log.columns.check
