"""Short messages for MindSpore's compilation errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore

from kfp_mindspore.errors import UserError

# Each is a part of an error message of the graph compiler or of an operator's checks, and of no other error.
_MARKS = ("The Traceback of Net Construct Code", "For primitive[", "Kernel select failed", "C++ Call Stack")
_FRAME = re.compile(r"^# \d+ In file (?P<file>.+?):(?P<line>\d+)(?:~\d+)?, [^\n]*\n\s*(?P<code>[^\n]*)", re.MULTILINE)


def explain_computation(error: Exception, network: Any, names: Sequence[str], batch: Sequence[Any]) -> UserError | None:
    """Return a two-line error for a failed compilation: the reason, and the line of the user's code.

    Args:
        error: MindSpore's error: a page of text, with the reason at the top.
        network: The network.
        names: Names of the tensors.
        batch: The tensors of the step.

    Returns:
        The error to raise instead, or None for errors other than of the compilation.
    """
    text = str(error)
    if not any(mark in text for mark in _MARKS):
        return None
    reason = text.partition("\n----")[0].strip()
    shapes = " and ".join(
        f"{name} {tuple(tensor.shape)} {str(tensor.dtype).lower()}" for name, tensor in zip(names, batch, strict=False)
    )
    library = Path(mindspore.__file__).parent
    own = [frame for frame in _FRAME.finditer(text) if library not in Path(frame["file"]).parents]
    where = f"{own[-1]['file']}:{own[-1]['line']}: {own[-1]['code']}" if own else ""
    return UserError(f"{type(network).__name__} cannot be computed for a batch of {shapes}: {reason}", hint=where)
