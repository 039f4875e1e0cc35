"""A failed step's error output: a KfpMindSporeError's message without a stack trace."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError
from kfp_mindspore.settings import KFP_RUNTIME_VARIABLE, is_debug
from kfp_mindspore.steps.missing_modules import explain_missing


def install_excepthook() -> None:
    """Print KfpMindSporeErrors and missing modules of extras without a stack trace in a KFP step's process.

    No effect elsewhere. `KFP_MINDSPORE_DEBUG=1` keeps the stack trace.
    """
    if os.environ.get(KFP_RUNTIME_VARIABLE) == "true" and not is_debug():
        sys.excepthook = _print_error


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ModuleNotFoundError):
        error = explain_missing(error) or error
    if isinstance(error, MissingExtraError):
        print(f"{type(error).__name__}: {error.message}. {error.hint}", file=sys.stderr, flush=True)
    elif isinstance(error, KfpMindSporeError):
        print(f"{kind.__name__}: {error}", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)
