"""The server's logging: every logger to stderr by its own thread, and at most one line per request."""

from __future__ import annotations

import atexit
import configparser
import json
import logging
import logging.config
import logging.handlers
import os
import queue
import select
import sys
import time
from pathlib import Path

import yaml

from kfp_mindspore.errors import UserError
from mindsporeserver.observability.log_format import JsonFormatter, TextFormatter

POLICIES = ("none", "failed", "all")
# kserve's own variable.
LEVEL_VARIABLE = "KSERVE_LOGLEVEL"
LINES_PER_SECOND = 100

_FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}
# Lines that may be queued; more are dropped and counted.
_CAPACITY = 10_000
_FLUSH_SECONDS = 2.0


def configure_logging(log_format: str, *, config_file: str | None = None, configure: bool = True) -> None:
    """Configure the loggers in this package, uvicorn and the root.

    Args:
        log_format: text or json.
        config_file: --log_config_file: JSON, YAML or logging's own format. It has precedence over `log_format`.
        configure: --configure_logging; when false, no handler and no level is changed.

    Raises:
        UserError: The format, the level or the file is invalid.
    """
    if log_format not in _FORMATTERS:
        raise UserError(f"--log_format: must be one of {', '.join(_FORMATTERS)}, got {log_format!r}")
    if configure and config_file is not None:
        _apply_file(config_file)
    elif configure:
        level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
        if not isinstance(logging.getLevelName(level), int):
            raise UserError(f"{LEVEL_VARIABLE}: must be DEBUG, INFO, WARNING, ERROR or CRITICAL, got {level!r}")
        handler = _build_handler(_FORMATTERS[log_format]())
        root = logging.getLogger()
        if not root.handlers or isinstance(root.handlers[0], _DroppingHandler):
            _set_handler(root, handler, logging.WARNING)
        _set_handler(logging.getLogger("uvicorn"), handler, logging.INFO)
        _set_handler(logging.getLogger("mindsporeserver"), handler, level)
        logging.captureWarnings(True)


class RequestLog:
    """Logs requests.

    Args:
        policy: Which requests: none, failed (status 400 or more) or all.
        lines_per_second: With `failed`, most lines per second and status; the rest is counted in one line.

    Raises:
        UserError: There is no such policy.
    """

    def __init__(self, policy: str, *, lines_per_second: int = LINES_PER_SECOND) -> None:
        if policy not in POLICIES:
            raise UserError(f"--log_requests: must be one of {', '.join(POLICIES)}, got {policy!r}")
        self._least_status = {"none": 1000, "failed": 400, "all": 0}[policy]
        self._limit = lines_per_second if policy == "failed" else 0
        self._logger = logging.getLogger("mindsporeserver.requests")
        self._second = 0
        self._counts: dict[int, int] = {}
        self._excess: dict[int, int] = {}

    def is_enabled(self, status: int) -> bool:
        """Return whether a request with this HTTP status is logged; call it for every request.

        Args:
            status: The HTTP status; for gRPC the equivalent.
        """
        if self._excess and int(time.monotonic()) != self._second:
            excess, self._excess = self._excess, {}
            for failed, count in excess.items():
                self._logger.log(_get_level(failed), "%d more requests failed with status %d", count, failed)
        return status >= self._least_status

    def write(self, status: int, fields: dict[str, str | float]) -> None:
        """Log a request, if the policy includes it.

        Args:
            status: The HTTP status; for gRPC the equivalent.
            fields: Line fields; texts are cut to 500 characters.
        """
        level = _get_level(status)
        if not self.is_enabled(status) or not self._logger.isEnabledFor(level) or not self._admit(status):
            return
        shortened = {name: value[:500] if isinstance(value, str) else value for name, value in fields.items()}
        self._logger.log(level, "request answered" if status < 400 else "request failed", extra={"fields": shortened})

    def _admit(self, status: int) -> bool:
        if not self._limit:
            return True
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._counts = second, {}
        self._counts[status] = self._counts.get(status, 0) + 1
        if self._counts[status] <= self._limit:
            return True
        self._excess[status] = self._excess.get(status, 0) + 1
        return False


class _DroppingHandler(logging.handlers.QueueHandler):
    """Formats and queues records; drops them while the queue is full, as requests must not wait for a log reader."""

    def __init__(self, lines: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(lines)
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if notice := self.make_notice():
                self.queue.put_nowait(notice)
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def make_notice(self) -> logging.LogRecord | None:
        """Return the notice about lines dropped since the last one; None when no line was dropped."""
        if not self._dropped:
            return None
        text = f"{self._dropped} log lines were dropped: the log is read too slowly"
        notice = logging.LogRecord("mindsporeserver", logging.WARNING, __file__, 0, text, None, None)
        prepared: logging.LogRecord = self.prepare(notice)
        return prepared


class _Writer(logging.handlers.QueueListener):
    """Writes lines to a file descriptor.

    Not by a StreamHandler: the lock, held by a thread that waits for a slow reader, would block the process at the end.
    """

    def __init__(self, lines: queue.Queue[logging.LogRecord], descriptor: int) -> None:
        super().__init__(lines)
        self._lines = lines
        self._descriptor = descriptor

    def handle(self, record: logging.LogRecord) -> None:
        view = memoryview(f"{record.getMessage()}\n".encode("utf-8", "backslashreplace"))
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # another process that shares the pipe has made it non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError:  # closed by its reader, or the disk is full: the line is lost
                return

    def flush(self, handler: _DroppingHandler) -> None:
        """Write the queued lines and the handler's last notice, for 2 s at most."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        # No thread can be started at a process's end since Python 3.12, and QueueListener.stop has no timeout.
        if self._drain(deadline) and (notice := handler.make_notice()):
            self._lines.put_nowait(notice)
            self._drain(deadline)

    def _drain(self, deadline: float) -> bool:
        lines = self._lines
        with lines.all_tasks_done:
            return lines.all_tasks_done.wait_for(lambda: not lines.unfinished_tasks, deadline - time.monotonic())


def _build_handler(formatter: logging.Formatter) -> logging.Handler:
    handler: logging.Handler
    try:
        # A closed stderr is None: its descriptor may belong to a client's connection by now.
        descriptor = sys.stderr.fileno() if sys.stderr is not None else None
    except OSError:  # replaced by an object without a file, in a notebook or a test
        handler = logging.StreamHandler(sys.stderr)
    else:
        if descriptor is None:
            return logging.NullHandler()
        lines: queue.Queue[logging.LogRecord] = queue.Queue(_CAPACITY)
        handler = dropping = _DroppingHandler(lines)
        writer = _Writer(lines, descriptor)
        writer.start()
        atexit.register(writer.flush, dropping)
    handler.setFormatter(formatter)
    return handler


def _set_handler(logger: logging.Logger, handler: logging.Handler, level: int | str) -> None:
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False


def _apply_file(config_file: str) -> None:
    try:
        if config_file.endswith((".json", ".yaml", ".yml")):
            with Path(config_file).open(encoding="utf-8") as file:
                value = json.load(file) if config_file.endswith(".json") else yaml.safe_load(file)
            # A file for kserve does not name our loggers, and logging's default disables all that a file does not name.
            logging.config.dictConfig({"disable_existing_loggers": False, **value})
        else:
            # Python before 3.12 reports a missing file as one without sections.
            with Path(config_file).open(encoding="utf-8"):
                pass
            logging.config.fileConfig(config_file, disable_existing_loggers=False)
    except OSError as error:
        raise UserError(f"--log_config_file: {config_file} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, yaml.YAMLError, configparser.Error) as error:
        detail = f"{error} ({error.__cause__})" if error.__cause__ else str(error)
        raise UserError(
            f"--log_config_file: {config_file} is no logging configuration: {detail}",
            hint="See https://docs.python.org/3/library/logging.config.html.",
        ) from None
    logger, kserve = logging.getLogger("mindsporeserver"), logging.getLogger("kserve")
    if not logger.hasHandlers():
        logger.handlers = kserve.handlers[:]
        logger.setLevel(kserve.level)


def _get_level(status: int) -> int:
    if status < 400:
        return logging.INFO
    # Refused, overloaded or late: no server defect.
    return logging.WARNING if status < 500 or status in (501, 503, 504) else logging.ERROR
