"""Short messages for MindSpore's compilation errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.export.layer_source import locate_error
from kfp_mindspore.training.distributed import is_lost_peer

# Beginnings or parts of messages from the graph compiler and operator checks, and from no other error.
_BEGINNINGS = ("For '", "For primitive[")
# By part of the reason: the dtype kind that does not fit, and what is needed.
_DTYPES = (
    (re.compile(r"segment_ids|input_indices|Gather"), "float", "An embedding needs integer ids (int32)"),
    (re.compile(r"type.*(MatMul|Conv|BatchMatMul)|(MatMul|Conv).*type", re.DOTALL), "int", "Layers need float32"),
)
# An index outside a table, such as `'input_indices' should be in the range [0, 20), but got 48`.
_RANGE = re.compile(r"range \[-?\d+, (?P<end>\d+)\), but got (?P<index>-?\d+)")
_MARKS = ("The Traceback of Net Construct Code", "Kernel select failed")


def explain_computation(error: Exception, network: Any, names: Sequence[str], batch: Sequence[Any]) -> UserError | None:
    """Return a short error for a failed compilation: the reason, the needed dtype, and the user's code line.

    Args:
        error: MindSpore's error: a page of text, with the reason at the top.
        network: The network.
        names: Tensor names.
        batch: The step's tensors.

    Returns:
        The error to raise instead, or None for errors outside compilation.
    """
    text = str(error)
    if is_lost_peer(error):
        return None
    if not text.lstrip().startswith(_BEGINNINGS) and not any(mark in text for mark in _MARKS):
        return None
    reason = text.partition("\n----")[0].strip().strip("'").strip()
    shapes = " and ".join(
        f"{name} {tuple(tensor.shape)} {str(tensor.dtype).lower()}" for name, tensor in zip(names, batch, strict=False)
    )
    source = locate_error(network, text, [Path(__file__).parent])
    found = _RANGE.search(reason)
    cause = (
        _describe_index(int(found["index"]), int(found["end"]), names, batch)
        if found
        else _describe_dtypes(reason, names, batch)
    )
    hint = "\n".join(line for line in (cause, source.line) if line)
    name = f"{type(network).__name__}: {source}" if source.path else type(network).__name__
    return UserError(f"{name} cannot be computed for a batch of {shapes}: {reason}", hint=hint)


def _describe_index(index: int, end: int, names: Sequence[str], batch: Sequence[Any]) -> str:
    """Return which integer tensors have an index outside a table of `end` rows, and the size that they need."""
    arrays = {name: tensor.asnumpy() for name, tensor in zip(names, batch, strict=False)}
    largest = {
        name: int(array.max()) for name, array in arrays.items() if array.dtype.kind in "iu" and (array == index).any()
    }
    if not largest:
        return f"The network computes the index {index} of a table with {end} rows."
    columns = " or ".join(largest)
    if index < 0:
        return f"{columns} has the id {index}: ids must be 0 to {end - 1}."
    return (
        f"{columns} has ids up to {max(largest.values())} in this batch, and the table {end} rows, for ids of 0 to "
        f"{end - 1}: nn.Embedding needs a row for each id of the dataset."
    )


def _describe_dtypes(reason: str, names: Sequence[str], batch: Sequence[Any]) -> str:
    """Return what inputs with a wrong dtype should be; empty for another reason."""
    for pattern, kind, needed in _DTYPES:
        wrong = [name for name, tensor in zip(names, batch, strict=False) if kind in str(tensor.dtype).lower()]
        if wrong and pattern.search(reason):
            return f"{needed}; {' and '.join(wrong)} {'has' if len(wrong) == 1 else 'have'} another dtype."
    return ""
