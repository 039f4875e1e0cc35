"""Safetensors files, also sharded and in 16 bits, with each header claim checked against the file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError

# I64 for position IDs beside the weights of old models.
_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8"}
_MOST_HEADER = 100 << 20


class SafetensorsReader:
    """Tensors in one file or several shards.

    Args:
        files: The files.

    Raises:
        UserError: A header claims what its file does not hold; the message names file, tensor and field.
    """

    def __init__(self, files: list[Path]) -> None:
        self.entries: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        for file in files:
            for name, start, entry in _read_header(file):
                if name in self.entries:
                    raise UserError(f"{file}: {name}: also in {self.entries[name][0].name}")
                self.entries[name] = file, start, entry

    def get_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return all shapes by name."""
        return {name: tuple(entry["shape"]) for name, (_, _, entry) in self.entries.items()}

    def read(self, name: str) -> NDArray[np.float32]:
        """Read one tensor as float32.

        Args:
            name: The tensor's name.
        """
        file, start, entry = self.entries[name]
        shape = tuple(entry["shape"])
        count = math.prod(shape)
        array = np.fromfile(file, _TYPES[entry["dtype"]], count, offset=start + entry["data_offsets"][0])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32, copy=False).reshape(shape)


def _read_header(file: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_MOST_HEADER, size - 8):
            raise UserError(f"{file}: header length: must be at most the file's {size} bytes, got {length}")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise UserError(f"{file}: header: no JSON: {error}") from None
    if not isinstance(header, dict):
        raise UserError(f"{file}: header: must be an object, got {type(header).__name__}")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        where = f"{file}: {name}"
        try:
            shape, (start, stop), kind = entry["shape"], entry["data_offsets"], entry["dtype"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise UserError(f"{where}: must have dtype, shape and data_offsets, got {entry!r}")
        if kind not in _TYPES:
            raise UserError(f"{where}: dtype must be one of {', '.join(_TYPES)}, got {kind!r}")
        if stop - start != (expected := math.prod(shape) * np.dtype(_TYPES[kind]).itemsize):
            raise UserError(f"{where}: data_offsets must span {expected} bytes for shape {shape}, got {stop - start}")
        if 8 + length + stop > size:
            raise UserError(f"{where}: data_offsets end at byte {8 + length + stop}, the file has {size}: truncated?")
        yield name, 8 + length, entry
