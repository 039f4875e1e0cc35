"""What the server logs: one handler on stderr for kserve, uvicorn and this package, and one line a request at most."""

from __future__ import annotations

import configparser
import json
import logging
import logging.config
import os
import sys
import time
from pathlib import Path

import yaml

from kfp_mindspore.errors import UserError
from mindsporeserver.observability.log_output import JsonFormatter, LineHandler, TextFormatter

FORMATS = ("text", "json")
POLICIES = ("none", "failed", "all")
# kserve's own variable.
LEVEL_VARIABLE = "KSERVE_LOGLEVEL"
LINES_A_SECOND = 100

_OURS = "mindsporeserver"


def configure_logging(log_format: str, *, config_file: str | None = None, configure: bool = True) -> None:
    """Set up the loggers of kserve, uvicorn and this package; call it before kserve.ModelServer is made.

    kserve configures its loggers only when nobody else did, so after this it leaves them alone. Its three lines of
    timing and uvicorn's access line for each request are off: `RequestLog` writes one instead. A configuration file
    decides about everything, those lines included.

    Args:
        log_format: text or json.
        config_file: kserve's --log_config_file: JSON, YAML or logging's own format. It wins over `log_format`.
        configure: kserve's --configure_logging; when false, no handler and no level is touched.

    Raises:
        UserError: The format, the level or the file is wrong.
    """
    if log_format not in FORMATS:
        raise UserError(f"--log_format: must be one of {', '.join(FORMATS)}, got {log_format!r}")
    if configure and config_file is not None:
        _apply_file(config_file)
    elif configure:
        _apply_defaults(log_format)
    # On the logger, not on a handler: it holds whatever handlers a file or an application chose.
    kserve = logging.getLogger("kserve")
    if not any(isinstance(known, _ClientMistakes) for known in kserve.filters):
        kserve.addFilter(_ClientMistakes())


class RequestLog:
    """Writes the line of a request.

    Args:
        policy: Which requests: none, failed (a status of 400 or more) or all.
        lines_a_second: With `failed`, most lines a second for each status; the rest is counted and told in one line.

    Raises:
        UserError: There is no such policy.
    """

    def __init__(self, policy: str, *, lines_a_second: int = LINES_A_SECOND) -> None:
        if policy not in POLICIES:
            raise UserError(f"--log_requests: must be one of {', '.join(POLICIES)}, got {policy!r}")
        self._least = {"none": 1000, "failed": 400, "all": 0}[policy]
        self._limit = lines_a_second if policy == "failed" else 0
        self._logger = logging.getLogger(f"{_OURS}.requests")
        self._second = 0
        self._written: dict[int, int] = {}
        self._excess: dict[int, int] = {}

    def wants(self, status: int) -> bool:
        """Tell whether a request that is answered so gets a line; ask before putting its fields together.

        Args:
            status: The HTTP status; for gRPC the one that means the same.
        """
        if self._excess:
            self._report_excess()
        return status >= self._least

    def write(
        self,
        *,
        request_id: str,
        protocol: str,
        model: str,
        status: int,
        seconds: float,
        rows: int = 0,
        queue_seconds: float = 0.0,
        compute_seconds: float = 0.0,
        reason: str = "",
        trace_id: str = "",
    ) -> None:
        """Write a request's line, if the policy wants it.

        Args:
            request_id: The client's or ours; at most 128 characters of it are written.
            protocol: v1, v2, v2-binary or grpc.
            model: The model's name as the client gave it.
            status: The HTTP status; for gRPC the one that means the same.
            seconds: From the request's arrival to its answer.
            rows: Rows of the batch that were this request's.
            queue_seconds: How long it waited for the graph.
            compute_seconds: How long the graph took for its batch.
            reason: Why it failed, for a person.
            trace_id: The trace that holds its span.
        """
        level = _choose_level(status)
        if not self.wants(status) or not self._logger.isEnabledFor(level) or not self._admit(status):
            return
        fields: dict[str, str | int | float] = {
            "request_id": request_id[:128],
            "protocol": protocol,
            "model": model[:128],
            "status": status,
            "seconds": round(seconds, 6),
            "queue_seconds": round(queue_seconds, 6),
            "compute_seconds": round(compute_seconds, 6),
            "rows": rows,
            "reason": reason[:500],
        }
        if trace_id:
            fields["trace_id"] = trace_id
        self._log(level, "request answered" if status < 400 else "request failed", fields)

    def _log(self, level: int, message: str, fields: dict[str, str | int | float] | None) -> None:
        # Logger.log would walk the stack to find the caller, half of a line's price.
        record = logging.LogRecord(self._logger.name, level, __file__, 0, message, None, None)
        record.fields = fields
        self._logger.handle(record)

    def _admit(self, status: int) -> bool:
        if not self._limit:
            return True
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._written.clear()
        count = self._written[status] = self._written.get(status, 0) + 1
        if count > self._limit:
            self._excess[status] = self._excess.get(status, 0) + 1
        return count <= self._limit

    def _report_excess(self) -> None:
        if int(time.monotonic()) == self._second:
            return
        excess, self._excess = self._excess, {}
        for status, count in excess.items():
            self._log(_choose_level(status), f"{count} more requests failed with status {status}", None)


class _ClientMistakes(logging.Filter):
    """Logs what a client did wrong as one line, not as a stack trace of the server, and early questions not at all."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        # It was kserve that raised, so this import costs nothing.
        from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady, ServerNotReady, UnsupportedProtocol

        if isinstance(error, ServerNotReady | ModelNotReady):
            return False
        if isinstance(error, InvalidInput | ModelNotFound | UnsupportedProtocol | NotImplementedError):
            record.msg, record.args, record.exc_info, record.exc_text = f"refused: {error}", None, None, None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def _apply_defaults(log_format: str) -> None:
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    if not isinstance(logging.getLevelName(level), int):
        raise UserError(f"{LEVEL_VARIABLE}: must be DEBUG, INFO, WARNING, ERROR or CRITICAL, got {level!r}")
    handler = _make_handler(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    if not root.handlers or any(isinstance(known, LineHandler) for known in root.handlers):
        # What other libraries warn about: the whole of stderr is to have one form.
        _give(root, handler, logging.WARNING)
    _give(logging.getLogger("kserve"), handler, level)
    _give(logging.getLogger("uvicorn"), handler, logging.INFO)
    _give(logging.getLogger(_OURS), handler, level)
    _give(logging.getLogger("kserve.trace"), handler, logging.WARNING)
    # uvicorn asks whether this logger has handlers, and without any does not even format its line.
    _give(logging.getLogger("uvicorn.access"), None, logging.WARNING)
    logging.captureWarnings(True)


def _make_handler(formatter: logging.Formatter) -> logging.Handler:
    if sys.stderr is None:
        # It was closed: its descriptor may be anything by now, even a client's connection.
        return logging.NullHandler()
    try:
        return LineHandler(sys.stderr.fileno(), formatter)
    except OSError:
        # A notebook's or a test's, which is no file.
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter)
        return handler


def _give(logger: logging.Logger, handler: logging.Handler | None, level: int | str) -> None:
    for known in logger.handlers[:]:
        logger.removeHandler(known)
        if isinstance(known, LineHandler):
            known.close()
    if handler is not None:
        logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def _apply_file(config_file: str) -> None:
    # As kserve does it, without its import: the parent of workers reads the file too.
    try:
        if config_file.endswith((".json", ".yaml", ".yml")):
            with Path(config_file).open(encoding="utf-8") as file:
                value = json.load(file) if config_file.endswith(".json") else yaml.safe_load(file)
            # A file written for kserve knows nothing of us, and logging's default is to silence what it does not name.
            logging.config.dictConfig({"disable_existing_loggers": False, **value})
        else:
            logging.config.fileConfig(config_file, disable_existing_loggers=False)
    except OSError as error:
        raise UserError(f"--log_config_file: {config_file} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, yaml.YAMLError, configparser.Error) as error:
        detail = f"{error} ({error.__cause__})" if error.__cause__ else str(error)
        raise UserError(
            f"--log_config_file: {config_file} is no logging configuration: {detail}",
            hint="https://docs.python.org/3/library/logging.config.html tells what one holds.",
        ) from None
    ours, kserve = logging.getLogger(_OURS), logging.getLogger("kserve")
    if not ours.hasHandlers():
        for handler in kserve.handlers:
            ours.addHandler(handler)
        ours.setLevel(kserve.level)
    if not kserve.handlers:
        # Without any, kserve would apply the file again, and in its own way.
        kserve.addHandler(logging.NullHandler())


def _choose_level(status: int) -> int:
    if status < 400:
        return logging.INFO
    # Refused, not offered, overloaded or late: the server works as it should.
    return logging.WARNING if status < 500 or status in (501, 503, 504) else logging.ERROR
