"""Conversion from request values to arrays that match the signature; mismatches raise InvalidRequestError (400)."""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kfp_mindspore.formats.bundle import TensorSpec
from mindsporeserver.errors import InvalidRequestError, shorten_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

# Dtype for a transform input: each element is a text or a file.
BYTES = "bytes"

DATATYPES = {
    "bool": "BOOL",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    BYTES: "BYTES",
}
_BY_DTYPE = {np.dtype(name): datatype for name, datatype in DATATYPES.items() if name != BYTES}
_NUMBERS = frozenset({int, float})
# JSON types accepted for each dtype kind: floats are not integers, and only booleans are booleans.
_LEAVES = {
    "f": _NUMBERS,
    "i": frozenset({int}),
    "u": frozenset({int}),
    "b": frozenset({bool}),
}
_EXPECTED = {"f": "numbers", "i": "integers", "u": "integers", "b": "booleans", "c": "no JSON value"}
_FOUND = {str: "strings", type(None): "nulls", bool: "booleans", float: "floats", dict: "objects"}
_MAX_RANK = 32
# np.dot on larger arrays starts several threads.
_SMALL = 4096
_type: Callable[[Any], Any] = type


def name_datatype(dtype: str) -> str:
    """Return V2's name for a NumPy dtype, such as FP32.

    Raises:
        InvalidRequestError: V2 has no name for it, as for bfloat16 and complex numbers.
    """
    name = DATATYPES.get(dtype)
    if name is None:
        raise InvalidRequestError(f"dtype {dtype} has no name in the V2 protocol; use V1")
    return name


def name_array(array: NDArray[Any]) -> str:
    """Return V2's datatype for an array."""
    return _BY_DTYPE.get(array.dtype) or ("BYTES" if array.dtype.kind in "OSU" else name_datatype(array.dtype.name))


def describe(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Return V2's metadata for inputs or outputs, -1 for a free dimension."""
    return [
        {"name": spec.name, "datatype": DATATYPES.get(spec.dtype, spec.dtype.upper()), "shape": list(spec.shape)}
        for spec in specs
    ]


class InputReader:
    """Converts one input's values.

    Args:
        spec: Accepted dtype and shape; -1 for a free dimension.
        finite: Whether NaN and infinities are refused.
    """

    def __init__(self, spec: TensorSpec, *, finite: bool) -> None:
        self._depth = len(spec.shape) - 1
        self.spec = spec
        self.name = spec.name
        self.datatype = DATATYPES.get(spec.dtype, spec.dtype.upper())
        self.is_bytes = spec.dtype == BYTES
        self.dtype = np.dtype(object) if self.is_bytes else np.dtype(spec.dtype)
        self._leaves = _LEAVES.get(self.dtype.kind, frozenset())
        self._checks = finite and self.dtype.kind == "f"
        self._limits = np.iinfo(spec.dtype) if self.dtype.kind in "iu" else None

    def read_nested(self, values: Any) -> NDArray[Any]:
        """Convert nested lists to an array with their shape, which is validated later.

        Strings are not converted to numbers, and integers keep all digits.
        """
        if self.is_bytes:
            return _read_texts(values, self)
        if self._leaves is _NUMBERS and (found := self._read_numbers(values)) is not None:
            return self._check_values(found)
        # np.array on unchecked values would allocate the longest string's length for every element.
        leaves, shape = values, [len(values)]
        while (kinds := set(map(_type, leaves))) == {list}:
            sizes = set(map(len, leaves))
            if len(sizes) > 1:
                self.refuse_ragged()
            if len(shape) == _MAX_RANK:
                raise InvalidRequestError(f"input {self.name!r}: nested deeper than {_MAX_RANK} lists")
            shape += sizes
            leaves = list(itertools.chain.from_iterable(leaves))
        if not kinds <= self._leaves:
            if list in kinds:
                self.refuse_ragged()
            raise InvalidRequestError(
                f"input {self.name!r}: must contain {_EXPECTED[self.dtype.kind]} ({self.spec.dtype}), got "
                f"{_name_kinds(kinds - self._leaves)}"
            )
        if self._limits is not None and leaves:
            least, most = min(leaves), max(leaves)
            if least < self._limits.min or most > self._limits.max:
                raise InvalidRequestError(
                    f"input {self.name!r}: values must be {self._limits.min} to {self._limits.max} "
                    f"({self.spec.dtype}), got {least} to {most}"
                )
        array = np.array(leaves, self.dtype)
        return self._check_values(array if len(shape) == 1 else array.reshape(shape))

    def _read_numbers(self, values: Any) -> NDArray[Any] | None:
        """Fast path for valid numbers (three times as fast); None for any other input."""
        nested = values
        for _ in range(self._depth if values and type(values[0]) is list else 0):
            nested = itertools.chain.from_iterable(nested)
        try:
            # Only numbers reach np.array, so the array is not larger than the request.
            return np.array(values, self.dtype) if set(map(_type, nested)) <= _NUMBERS else None
        except (TypeError, ValueError, RuntimeWarning):
            return None

    def read_flat(self, values: Any, shape: Any) -> NDArray[Any]:
        """Convert V2's `data`, flat or nested, to an array.

        Args:
            values: Numbers, booleans or texts.
            shape: The client's `shape`.
        """
        count = self._check_shape(shape)
        if not isinstance(values, list):
            raise InvalidRequestError(f"input {self.name!r}: data must be a list, got {name_type(values)}")
        array = self.read_nested(values)
        if array.size != count:
            raise InvalidRequestError(
                f"input {self.name!r}: data of shape {list(shape)} must contain {count} values, got {array.size}"
            )
        return array.reshape(shape)

    def read_raw(self, content: bytes | memoryview, shape: Any) -> NDArray[Any]:
        """Return raw bytes, little-endian and row-major, as an array without a copy.

        Args:
            content: This input's bytes.
            shape: The client's `shape`.
        """
        count = self._check_shape(shape)
        if self.is_bytes:
            texts = _split_texts(content, self.name)
            if len(texts) != count:
                raise InvalidRequestError(
                    f"input {self.name!r}: binary data of shape {list(shape)} must contain {count} elements, got "
                    f"{len(texts)}"
                )
            return _make_objects(texts, tuple(shape))
        if len(content) != count * self.dtype.itemsize:
            raise InvalidRequestError(
                f"input {self.name!r}: binary data of shape {list(shape)} must have {count * self.dtype.itemsize} "
                f"bytes, got {len(content)}"
            )
        if self.dtype.kind == "b":
            # A boolean array with bytes other than 0 and 1 computes wrongly.
            return np.frombuffer(content, np.uint8).astype(bool).reshape(shape)
        return self._check_values(np.frombuffer(content, self.dtype).reshape(shape))

    def check_datatype(self, found: Any) -> None:
        """Refuse any datatype but the signature's."""
        if found != self.datatype:
            reason = ""
            if found == "BYTES":
                reason = ": strings and files need a model with a transform"
            raise InvalidRequestError(
                f"input {self.name!r}: datatype must be {self.datatype}, got {shorten(found)}{reason}"
            )

    def _check_shape(self, shape: Any) -> int:
        if not isinstance(shape, list) or not all(type(size) is int for size in shape) or len(shape) > _MAX_RANK:
            raise InvalidRequestError(f"input {self.name!r}: shape must be a list of integers, got {shorten(shape)}")
        expected = self.spec.shape
        fits = len(shape) == len(expected) and all(
            (size == wanted >= 0) or (wanted == -1 and size > 0) for size, wanted in zip(shape, expected, strict=True)
        )
        if not fits:
            raise InvalidRequestError(
                f"input {self.name!r}: shape must be {self.spec.describe_shape()}, got {shorten(tuple(shape))}"
            )
        return math.prod(shape)

    def refuse_ragged(self) -> NoReturn:
        """Refuse rows with different lengths, whether their element count fits or not."""
        raise InvalidRequestError(
            f"input {self.name!r}: shape must be {self.spec.describe_shape()}, got rows of different lengths"
        )

    def _check_values(self, array: NDArray[Any]) -> NDArray[Any]:
        if self._checks and not _is_finite(array):
            raise InvalidRequestError(
                f"input {self.name!r}: must contain finite numbers, got NaN, infinity or a number too large for "
                f"{self.spec.dtype}"
            )
        return array


def check_names(found: Iterable[str], expected: Mapping[str, Any]) -> None:
    """Refuse missing and unknown inputs."""
    names = list(found)
    for name in names:
        if name not in expected:
            raise InvalidRequestError(f"input {shorten(name)}: unknown, expected {join(expected)}")
    for name in expected:
        if name not in names:
            raise InvalidRequestError(f"input {name!r}: missing, got {join(names) or 'none'}")


def encode_texts(array: NDArray[Any]) -> bytes:
    """Encode strings as V2 binary data: each after the length in four bytes, little-endian."""
    parts = []
    for element in array.ravel().tolist():
        content = element if isinstance(element, bytes) else str(element).encode()
        parts.append(struct.pack("<I", len(content)) + content)
    return b"".join(parts)


def list_texts(array: NDArray[Any]) -> Any:
    """Return a string array as nested JSON lists; bytes that are not UTF-8 as base64."""
    return _map_texts(array.tolist())


def join(names: Iterable[Any]) -> str:
    """Return names joined to one string of bounded length."""
    return shorten_text(", ".join(repr(name) for name in names))


def shorten(value: Any) -> str:
    """Return a request value's reprwith bounded length."""
    return shorten_text(repr(value))


def name_type(value: Any) -> str:
    """Return JSON's name for a value's type."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
        bytes: "bytes",
    }
    return names.get(type(value), "a number")


def _is_finite(array: NDArray[Any]) -> bool:
    if array.size <= _SMALL:
        # A quarter of the time; inconclusive after an overflow.
        flat = array.ravel()
        if math.isfinite(np.dot(flat, flat)):
            return True
    return bool(np.isfinite(array).all())


def _name_kinds(kinds: Iterable[type]) -> str:
    return " and ".join(sorted(_FOUND.get(kind, "numbers") for kind in kinds))


def _map_texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_map_texts(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    return value


def _read_texts(values: Any, reader: InputReader) -> NDArray[Any]:
    leaves: list[bytes] = []
    return _make_objects(leaves, _flatten_texts(values, reader, leaves, 0))


def _flatten_texts(value: Any, reader: InputReader, leaves: list[bytes], depth: int) -> tuple[int, ...]:
    if isinstance(value, list):
        if depth >= _MAX_RANK:
            raise InvalidRequestError(f"input {reader.name!r}: nested deeper than {_MAX_RANK} lists")
        shapes = [_flatten_texts(item, reader, leaves, depth + 1) for item in value]
        if any(shape != shapes[0] for shape in shapes):
            reader.refuse_ragged()
        return (len(value), *(shapes[0] if shapes else ()))
    if isinstance(value, str):
        leaves.append(value.encode())
    elif isinstance(value, bytes):
        leaves.append(value)
    elif isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        try:
            leaves.append(base64.b64decode(value["b64"], validate=True))
        except (binascii.Error, ValueError):
            raise InvalidRequestError(f"input {reader.name!r}: b64 is not valid base64") from None
    else:
        raise InvalidRequestError(
            f'input {reader.name!r}: must contain strings or {{"b64": …}} (BYTES), got {name_type(value)}'
        )
    return ()


def _split_texts(content: bytes | memoryview, name: str) -> list[bytes]:
    texts, start, end = [], 0, len(content)
    while start < end:
        stop = start + 4
        if stop <= end:
            (length,) = struct.unpack_from("<I", content, start)
            start, stop = stop, stop + length
        if stop > end:
            raise InvalidRequestError(
                f"input {name!r}: binary data must be elements, each after its length in four bytes; an element ends "
                f"at byte {stop} of {end}"
            )
        texts.append(bytes(content[start:stop]))
        start = stop
    return texts


def _make_objects(values: Sequence[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)
