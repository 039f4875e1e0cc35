"""How a step ends that fails by an error of ours: with its message, which is written for a person, and no more."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from kfp_mindspore.errors import KfpMindSporeError

DEBUG_VARIABLE = "KFP_MINDSPORE_DEBUG"
_RUNTIME_VARIABLE = "_KFP_RUNTIME"


def shorten_errors() -> None:
    """In a process that runs a step of KFP, print errors of ours without a stack trace; elsewhere change nothing.

    `KFP_MINDSPORE_DEBUG=1` keeps the stack trace.
    """
    if os.environ.get(_RUNTIME_VARIABLE) == "true" and os.environ.get(DEBUG_VARIABLE, "") in ("", "0", "false"):
        sys.excepthook = _print_error


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KfpMindSporeError):
        print(f"{kind.__name__}: {error}", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)
