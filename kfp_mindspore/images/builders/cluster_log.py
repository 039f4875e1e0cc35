"""The log of a build's pod as progress, and the failure that it tells."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable

from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.images.builders.buildkit import read_plain_progress
from kfp_mindspore.images.builders.cluster_job import APPEND, BUILDKIT
from kfp_mindspore.images.builders.docker_messages import KEPT_LINES
from kfp_mindspore.images.result import OnProgress, Progress

_STEP = re.compile(r"(STEP \d+/\d+): (.*)")
_ERROR = re.compile(r"(?:(?:Error|error|fatal|ERROR): |.*level=(?:error|fatal) msg=)(.*)")


def read_log(tool: str, lines: Iterable[str], on_progress: OnProgress) -> ProcessFailedError:
    """Read a build's log to its end.

    Args:
        tool: Which of the tools writes it.
        lines: Its lines, as they come.
        on_progress: Told steps, lines and bytes.

    Returns:
        What to raise if the container ends badly: the step and the reason as far as the log tells them.
    """
    if tool == BUILDKIT:
        return read_plain_progress(lines, on_progress) or ProcessFailedError("build")
    if tool == APPEND:
        return _read_append(lines, on_progress)
    return _read_buildah(lines, on_progress)


def _read_append(lines: Iterable[str], on_progress: OnProgress) -> ProcessFailedError:
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    for line in lines:
        if line.startswith("{"):
            try:
                on_progress(Progress(**json.loads(line)))
                continue
            except (ValueError, TypeError):
                pass
        kept.append(line)
    return _make_failure("append", kept)


def _read_buildah(lines: Iterable[str], on_progress: OnProgress) -> ProcessFailedError:
    step = ""
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    for line in lines:
        if matched := _STEP.fullmatch(line):
            step = f"{matched[1]} ({matched[2]})"
            kept.clear()
            on_progress(Progress(step))
        elif line.strip():
            kept.append(line)
            on_progress(Progress(step or "Prepare", text=line))
    return _make_failure(step or "build", kept)


def _make_failure(step: str, kept: deque[str]) -> ProcessFailedError:
    for line in reversed(kept):
        if matched := _ERROR.match(line):
            return ProcessFailedError(f"{step}: {matched[1] or line}", log=list(kept))
    return ProcessFailedError(step, log=list(kept))
