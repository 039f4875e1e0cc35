"""An example request and its response, kept with a model whose transform changes inputs or outputs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.formats.tensors import BYTES, get_row_type, is_ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ExampleRequest:
    """A request and its response.

    Args:
        inputs: By name; texts and files as arrays of `bytes` objects.
        outputs: By name, as `inputs`.
    """

    inputs: Arrays
    outputs: Arrays

    def encode(self) -> bytes:
        """Return the example as JSON, `bytes` in base 64."""
        value = {
            kind: {name: _encode(array) for name, array in arrays.items()}
            for kind, arrays in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        return (json.dumps(value, indent=1) + "\n").encode()

    @classmethod
    def decode(cls, content: bytes) -> ExampleRequest:
        """Rebuild an example from `encode`'s result.

        Raises:
            ValueError: The content is no example.
        """
        try:
            value = json.loads(content)
            return cls(
                inputs={name: _decode(entry) for name, entry in value["inputs"].items()},
                outputs={name: _decode(entry) for name, entry in value["outputs"].items()},
            )
        except (KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ValueError(f"not an example: {type(error).__name__}: {error}") from None


def _encode(array: NDArray[Any]) -> dict[str, Any]:
    if is_ragged(array):
        dtype, shape = get_row_type(array)
        return {"dtype": dtype, "shape": list(shape), "data": [row.tolist() for row in array]}
    texts = array.dtype == object
    data = [base64.b64encode(value).decode() for value in array.ravel()] if texts else array.ravel().tolist()
    return {"dtype": BYTES if texts else array.dtype.name, "shape": list(array.shape), "data": data}


def _decode(entry: Mapping[str, Any]) -> NDArray[Any]:
    import numpy as np

    array: NDArray[Any]
    if entry["shape"][1:2] == [-1]:
        array, inner = np.empty(len(entry["data"]), object), entry["shape"][2:]
        array[:] = [np.array(row, entry["dtype"]).reshape(-1, *inner) for row in entry["data"]]
        return array
    if entry["dtype"] == BYTES:
        array = np.empty(len(entry["data"]), object)
        array[:] = [base64.b64decode(text, validate=True) for text in entry["data"]]
    else:
        array = np.array(entry["data"], np.dtype(entry["dtype"]))
    return array.reshape(entry["shape"])
