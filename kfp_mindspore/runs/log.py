"""Finds what a step itself said last in its log, among what kfp.local and kfp's executor say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from kfp_mindspore.local.logs import read_last_lines

LAST_LINES = 15

_TAIL = 400
# kfp.local prints a step's output behind this indentation, and its own lines without.
_INDENT = "    "
_EXECUTOR = "[KFP Executor "
_ERRORS = "kfp_mindspore.errors."


def read_last_step_lines(path: Path, count: int = LAST_LINES) -> list[str]:
    """Return the last lines that a step printed, oldest first.

    An error of this package at the end is shown by its message alone, without its stack trace.

    Args:
        path: The step's log; a missing one has no lines.
        count: How many lines at most.
    """
    lines = read_last_lines(path, _TAIL)
    own = list(_drop_executor(line.removeprefix(_INDENT) for line in lines if line.startswith(_INDENT)))
    # kfp.local itself failed before the step started.
    own = [line.rstrip() for line in own or lines if line.strip()]
    for index in range(len(own) - 1, -1, -1):
        name, colon, message = own[index].partition(": ")
        if colon and name.startswith(_ERRORS):
            return [message, *own[index + 1 :]][:count]
    return own[-count:]


def _drop_executor(lines: Iterable[str]) -> Iterator[str]:
    in_input = False
    for line in lines:
        if in_input:
            # The end of an indented JSON object.
            in_input = line.rstrip() != "}"
        elif _EXECUTOR in line:
            in_input = "Got executor_input" in line
        else:
            yield line
