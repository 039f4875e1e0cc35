"""A process that renders one chat template in jinja2's sandbox.

It allows what transformers allows, and lists no costly filters and operators: the kernel limits its processor time and
memory, which also holds inside one call to C code, such as a format with the width 10 ** 9.
"""

from __future__ import annotations

import datetime
import json
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Exit code of a template that exceeds the memory limit.
OUT_OF_MEMORY = 3


class _Generation(Extension):
    """`{% generation %}`: marks an assistant's message for training; its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares a set

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the tag's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def main(requests: int, responses: int, seconds: float, most_bytes: int) -> None:
    """Compile a template, then render it for each message until the pipe closes.

    Args:
        requests: File descriptor for the requests' pipe, JSON in UTF-8: the template's text, then objects with values.
        responses: File descriptor for the responses' pipe: objects with `text` or `error`.
        seconds: Most processor time for each.
        most_bytes: Most memory beside the interpreter's own.
    """
    received, sent = Connection(requests, writable=False), Connection(responses, readable=False)
    environment = _build_environment()
    _limit_memory(most_bytes)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    template: Template | None = None
    while True:
        try:
            request = received.recv_bytes()
        except EOFError:
            return
        # SIGPROF's default action ends the process, also inside a call of C code.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            value = json.loads(request.decode("utf-8", "surrogatepass"))
            if template is None:
                template, text = environment.from_string(value), ""
            else:
                text = template.render(value)
            response = {"text": text}
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except TemplateError as error:
            response = {"error": str(error)}
        except Exception as error:  # noqa: BLE001  a template may raise any error of Python's
            response = {"error": f"{type(error).__name__}: {error}"}
        try:
            sent.send_bytes(json.dumps(response, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except BrokenPipeError:
            return
        signal.setitimer(signal.ITIMER_PROF, 0)


def _build_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    # An invented text is no part of a prompt.
    del environment.globals["lipsum"]
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _format_now}
    environment.filters["tojson"] = _to_json
    return environment


def _limit_memory(most_bytes: int) -> None:
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = used + most_bytes if hard == resource.RLIM_INFINITY else min(used + most_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _format_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja2's own filter escapes characters of HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
