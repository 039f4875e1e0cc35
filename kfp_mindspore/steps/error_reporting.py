"""A failed step's error output: a KfpMindSporeError's message without a stack trace."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.settings import KFP_RUNTIME_VARIABLE, is_debug


def install_excepthook() -> None:
    """Print KfpMindSporeErrors without a stack trace in a KFP step's process; no effect elsewhere.

    `KFP_MINDSPORE_DEBUG=1` keeps the stack trace.
    """
    if os.environ.get(KFP_RUNTIME_VARIABLE) == "true" and not is_debug():
        sys.excepthook = _print_error


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KfpMindSporeError):
        print(f"{kind.__name__}: {error}", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)
