"""Requests by a table's column names, in place of the model's own inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from kfp_mindspore.formats.bundle import TensorSpec
from kfp_mindspore.formats.names import normalize_name
from kfp_mindspore.formats.rows import RowLayout
from kfp_mindspore.transform.base import TransformInputError
from kfp_mindspore.transform.rows import RowPacker
from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols.tensors import DATATYPES, InputReader, shorten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}


class RowReader:
    """Converts requests by column names to the model's inputs.

    Args:
        layout: The columns and the inputs.
        finite: Whether infinities are refused.
    """

    def __init__(self, layout: RowLayout, *, finite: bool) -> None:
        self.layout = layout
        self._packer = RowPacker(layout, finite=finite)
        self._inputs = {column: one for one in layout.inputs for column in one.columns}
        self._make_reader = lru_cache(maxsize=256)(self._build_reader)

    @property
    def only_list(self) -> str:
        """The only column, if it holds lists; rows may then be the lists themselves."""
        (column, *others) = self.layout.columns
        return column if not others and self._inputs[column].is_list else ""

    def read_lists(self, rows: Sequence[Any]) -> Arrays:
        """Convert V1's rows, each a list for `only_list`.

        Raises:
            InvalidRequestError: As `read_rows`.
        """
        return self.read_rows([{self.only_list: row} for row in rows])

    def accepts(self, names: Iterable[str]) -> bool:
        """Return whether a request's names are columns, rather than the model's own inputs."""
        return self._packer.accepts(names)

    def read_rows(self, rows: Sequence[Any]) -> Arrays:
        """Convert V1's rows, each an object with the columns' values.

        Raises:
            InvalidRequestError: Naming row, column, what was expected and what was found.
        """
        try:
            return self._packer.pack_rows(rows, _name_instance)
        except TransformInputError as error:
            raise InvalidRequestError(error.message) from None

    def pack(self, columns: Arrays, names: Iterable[str]) -> Arrays:
        """Convert V2's columns.

        Args:
            columns: Arrays by column.
            names: All names in the request.

        Raises:
            InvalidRequestError: Naming the column, what was expected and what was found.
        """
        try:
            self._packer.check_columns(names)
            return self._packer.pack_columns(columns)
        except TransformInputError as error:
            raise InvalidRequestError(error.message) from None

    def get_reader(self, name: str, datatype: Any) -> ColumnReader | None:
        """Return the reader for a V2 input; None for one that is no column, which `pack` validates.

        Raises:
            InvalidRequestError: The datatype is not the column's; the message names the column.
        """
        name = normalize_name(name)
        if name not in self._inputs:
            return None
        is_text, is_list = name in self.layout.texts, self._inputs[name].is_list
        known = isinstance(datatype, str) and datatype in _DTYPES
        if not known or ((datatype == "BYTES") != is_text and not is_list):
            expected = "BYTES" if is_text else "a number's, such as FP64 or INT64"
            expected += ", or BYTES for lists as JSON text" if is_list else ""
            raise InvalidRequestError(f"column {name!r}: datatype must be {expected}, got {shorten(datatype)}")
        return self._make_reader(name, datatype)

    def _build_reader(self, name: str, datatype: str) -> ColumnReader:
        one = self._inputs[name]
        is_json = one.is_list and datatype == "BYTES"
        return ColumnReader(TensorSpec(name, _DTYPES[datatype], (-1, *(() if one.stacked or is_json else one.shape))))


class ColumnReader:
    """Converts one column's values in V2.

    Args:
        spec: The request's dtype and the column's shape.
    """

    def __init__(self, spec: TensorSpec) -> None:
        # A missing number is NaN; the packer refuses it unless the layout has a value for it.
        self._reader = InputReader(spec, finite=False)
        self._spec = spec

    def read_flat(self, values: Any, shape: Any) -> NDArray[Any]:
        """Convert `data`; null is a missing value."""
        reader, shape = self._reader, self._flatten(shape)
        if not isinstance(values, list) or None not in values:
            return reader.read_flat(values, shape)
        if not reader.is_bytes:
            reader = InputReader(dataclasses.replace(self._spec, dtype="float64"), finite=False)
        fill = "" if reader.is_bytes else np.nan
        array = reader.read_flat([fill if value is None else value for value in values], shape)
        if reader.is_bytes:
            array.ravel()[[value is None for value in values]] = None
        return array

    def read_raw(self, content: bytes | memoryview, shape: Any) -> NDArray[Any]:
        """Convert binary data."""
        return self._reader.read_raw(content, self._flatten(shape))

    def _flatten(self, shape: Any) -> Any:
        """Return [N] for [N, 1], the form of clients that send matrices."""
        is_matrix = isinstance(shape, list) and len(shape) == 2 and shape[1] == 1
        return shape[:1] if is_matrix and len(self._spec.shape) == 1 else shape


def describe_unknown(counts: Mapping[str, int]) -> str:
    """Return unknown categories as `INPUT=COUNT, …`, the names percent-encoded as headers need it; empty for none."""
    return ", ".join(f"{quote(name, safe=' ')}={count}" for name, count in counts.items()) if counts else ""


def _name_instance(index: int) -> str:
    return f"instances[{index}]"
