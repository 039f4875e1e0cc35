"""Extracts a step's own output from the log, which also contains lines from kfp.local and kfp's executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kfp_mindspore.local.logs import read_last_lines

LAST_LINES = 15

_TAIL = 400
# kfp.local indents a step's output, and not its own lines.
_INDENT = "    "
_EXECUTOR = "[KFP Executor "
_ERRORS = "kfp_mindspore.errors."


def read_last_step_lines(path: Path, count: int = LAST_LINES) -> list[str]:
    """Return a step's last output lines, oldest first.

    A KfpMindSporeError at the end is reduced to the message, without the stack trace.

    Args:
        path: The step's log; a missing file has no lines.
        count: Maximum line count.
    """
    lines = read_last_lines(path, _TAIL)
    own = list(drop_executor_lines(line.removeprefix(_INDENT) for line in lines if line.startswith(_INDENT)))
    # Without step output, kfp.local failed before the step started.
    own = [line.rstrip() for line in own or lines if line.strip()]
    return reduce_trace(own)[-count:]


def reduce_trace(lines: Sequence[str]) -> list[str]:
    """Return lines whose end is a KfpMindSporeError with only the message at the end, without the stack trace."""
    for index in range(len(lines) - 1, -1, -1):
        name, colon, message = lines[index].partition(": ")
        if colon and name.startswith(_ERRORS):
            return [message, *lines[index + 1 :]]
    return list(lines)


def drop_executor_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield a log's lines without kfp's executor's lines, which prints the input as JSON."""
    in_input = False
    for line in lines:
        if in_input:
            # The indented JSON object's last line.
            in_input = line.rstrip() != "}"
        elif _EXECUTOR in line:
            in_input = "Got executor_input" in line
        else:
            yield line
