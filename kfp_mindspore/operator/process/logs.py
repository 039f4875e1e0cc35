"""The operator's log, as text or JSON lines, with the job in each."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Literal

LogFormat = Literal["text", "json"]
_FIELDS = ("job", "state", "reason", "attempt")


class JobTextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO default/lenet: Running: …`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and a stack trace where there is one."""
        job = getattr(record, "job", "")
        text = f"{_format_time(record)} {record.levelname} {f'{job}: ' if job else ''}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JobJsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message and, for a job, job, state, reason and attempt."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        document = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in _FIELDS if getattr(record, name, None) is not None},
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return json.dumps(document)


def start_log(log_format: LogFormat, *, verbose: bool = False) -> None:
    """Send this process's log to standard error.

    Args:
        log_format: `text` or `json`.
        verbose: Whether to log at DEBUG level.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JobJsonFormatter() if log_format == "json" else JobTextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("kfp_mindspore").setLevel(logging.DEBUG if verbose else logging.INFO)


def _format_time(record: logging.LogRecord) -> str:
    time = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"
