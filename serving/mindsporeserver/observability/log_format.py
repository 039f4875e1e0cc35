"""Log record formatters: text and JSON, one line per record apart from stack traces in text."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


class JsonFormatter(logging.Formatter):
    """One JSON object in ASCII: time, level, logger, process, message, a request's fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        value: dict[str, Any] = {
            "time": format_record_time(record),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        # Strict parsers refuse a lone surrogate's escape, which a header that is not UTF-8 decodes to.
        texts = {name: text.encode("utf-8", "replace").decode() for name, text in value.items() if type(text) is str}
        return json.dumps(value | texts, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """`time level process logger message key=value …`; a stack trace's lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line or lines."""
        message = escape_controls(record.getMessage())
        line = f"{format_record_time(record)} {record.levelname} {record.process} {record.name} {message}"
        for name, value in getattr(record, "fields", {}).items():
            if value not in ("", 0):
                line += f" {name}={_quote(value)}"
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n    {escape_controls(part)}" for part in lines)
        return line


def format_record_time(record: logging.LogRecord) -> str:
    """Return a record's time as RFC 3339 in UTC with milliseconds."""
    seconds = int(record.created)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{moment}.{int((record.created - seconds) * 1000):03d}Z"


def escape_controls(text: str) -> str:
    r"""Return text with every unprintable character escaped as \x1b, \n or \u202e: it stays on the line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _quote(value: str | float) -> str:
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value):
        return value
    # A quote sent by a client must not end the value: the rest would be parsed as another field.
    escaped = escape_controls(value.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{escaped}"'
