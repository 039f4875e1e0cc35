"""Contracts of served tensor models for the OpenAPI document, with an example row from the bundle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.bundle import DETECTOR_KIND, TRANSFORM_FILE, ModelBundle
from kfp_mindspore.formats.tensors import is_ragged
from kfp_mindspore.transform.rows import unpack_columns
from mindsporeserver.models.served_model import TensorModel
from mindsporeserver.protocols.openapi import TensorContract
from mindsporeserver.protocols.tensors import list_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_THRESHOLD = {"type": "number", "minimum": 0, "maximum": 1, "description": "Boxes have greater scores."}
# Rows searched for one without missing values.
_MOST_ROWS = 100


def read_contract(model: TensorModel) -> TensorContract:
    """Return a model's contract; called in a thread, as it reads files.

    Args:
        model: The model, which is ready.
    """
    described = model.describe()
    layout = None if model.rows is None else model.rows.layout
    contract = TensorContract(
        model.name,
        described["inputs"],
        described["outputs"],
        () if layout is None else layout.columns,
        frozenset() if layout is None else layout.texts,
        frozenset() if layout is None else layout.lists,
        parameters={"threshold": _THRESHOLD} if model.bundle.signature.kind == DETECTOR_KIND else {},
    )
    inputs = _read_row(model.bundle, tuple(item["name"] for item in described["inputs"]))
    if not inputs:
        return contract
    columns = inputs
    if layout is not None:
        columns = unpack_columns([(one.name, one.columns, one.stacked) for one in layout.inputs], inputs)
    row: Any = {name: _to_json(array)[0] for name, array in columns.items()}
    if len(columns) == 1 and layout is None:
        (row,) = row.values()
    example: list[dict[str, Any]] = []
    # V2's tensors have rows of one length.
    if not any(map(is_ragged, inputs.values())):
        example = [
            {
                "name": item["name"],
                "shape": list(inputs[item["name"]].shape),
                "datatype": item["datatype"],
                "data": _to_json(inputs[item["name"]].ravel()),
            }
            for item in described["inputs"]
        ]
    return TensorContract(**{**vars(contract), "example": example, "row": row})


def _read_row(bundle: ModelBundle, names: tuple[str, ...]) -> Arrays:
    """Return one row without missing values that the bundle was verified with; empty if it has none."""
    try:
        if TRANSFORM_FILE in bundle.signature.files:
            found = bundle.read_example()
            inputs = {} if found is None else dict(found.inputs)
        else:
            verified = bundle.read_verified()
            inputs = dict(verified.raw or verified.inputs)
    except KfpMindSporeError:
        # Reloaded or damaged meanwhile: the contract without an example remains true.
        return {}
    if set(inputs) != set(names):
        return {}
    for index in range(min(_MOST_ROWS, len(inputs[names[0]]))):
        row = {name: inputs[name][index : index + 1] for name in names}
        if all(_is_finite(array) for array in row.values()):
            return row
    return {}


def _is_finite(array: NDArray[Any]) -> bool:
    values = np.concatenate([np.ravel(item) for item in array]) if is_ragged(array) else array
    return values.dtype.kind != "f" or all(map(math.isfinite, values.ravel().tolist()))


def _to_json(array: NDArray[Any]) -> list[Any]:
    if is_ragged(array):
        return [item.tolist() for item in array]
    values: list[Any] = list_texts(array) if array.dtype.kind in "OSU" else array.tolist()
    return values
