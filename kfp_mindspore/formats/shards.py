"""Parquet shards of a dataset's split: written as rows arrive, read in blocks.

A block is a row group. A column of single numbers has its Arrow type and `bytes` are binary; any other row is one
binary value with the array's little-endian bytes, which Arrow 25 reads ten times as fast as lists.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, require_extra
from kfp_mindspore.formats.column import Column
from kfp_mindspore.formats.manifest import check_digest
from kfp_mindspore.formats.tensors import BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

WINDOW_BLOCKS = 16
"""Blocks whose rows are shuffled together, and blocks in a shard."""
_BLOCK_BYTES = 4 << 20


def compute_block_rows(row_bytes: float) -> int:
    """Return the rows in a block of about 4 MiB."""
    return max(1, int(_BLOCK_BYTES / max(row_bytes, 1)))


def measure_row(arrays: Arrays) -> float:
    """Return the mean bytes in a row."""
    total = sum(sum(map(_measure, array.flat)) if array.dtype == object else array.nbytes for array in arrays.values())
    return total / max(1, len(next(iter(arrays.values()))))


class SplitWriter:
    """Writes the shards of one split, each with at most `WINDOW_BLOCKS` blocks.

    Args:
        directory: An existing directory.
        split: The split; its shards are named `SPLIT-00000.parquet`.
        columns: The columns.
        block_rows: Rows in a block.

    Attributes:
        shards: Rows by file name.
    """

    def __init__(self, directory: Path, split: str, columns: Sequence[Column], block_rows: int) -> None:
        self.shards: dict[str, int] = {}
        self._directory = directory
        self._split = split
        self._columns = columns
        self._block_rows = block_rows
        self._tables: list[Any] = []
        self._pending = 0
        self._writer: Any = None
        self._file = ""

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._pending:
            self._write_block(self._pending)
        self._close()

    def write(self, arrays: Arrays) -> None:
        """Append rows: arrays with shape (N, *column.shape) by column."""
        self._tables.append(encode_columns(self._columns, arrays))
        self._pending += len(self._tables[-1])
        while self._pending >= self._block_rows:
            self._write_block(self._block_rows)

    def _write_block(self, rows: int) -> None:
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.concat_tables(self._tables)
        if self._writer is None:
            self._file = f"{self._split}-{len(self.shards):05}.parquet"
            self.shards[self._file] = 0
            path = str(self._directory / self._file)
            self._writer = parquet.ParquetWriter(
                path, table.schema, compression="lz4", use_dictionary=False, write_statistics=False
            )
        self._writer.write_table(table.slice(0, rows), row_group_size=rows)
        self.shards[self._file] += rows
        self._pending -= rows
        self._tables = [table.slice(rows)]
        if self.shards[self._file] >= WINDOW_BLOCKS * self._block_rows:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class ShardReader:
    """Rows of a split by index; the most recently used blocks are kept.

    Args:
        directory: The dataset directory.
        shards: Rows by file name, in order.
        columns: The columns to read.
        block_rows: Rows in each block but a shard's last one.
        digests: Each file's sha256, which is checked when the file is first read; None not to check.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        directory: Path,
        shards: Mapping[str, int],
        columns: Sequence[Column],
        block_rows: int,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        import numpy as np

        import_pyarrow()
        self._directory = directory
        self._columns = columns
        self._digests = digests
        self._metadata: dict[str, Any] = {}
        self._blocks = [
            (file, group, min(block_rows, rows - group * block_rows))
            for file, rows in shards.items()
            for group in range(math.ceil(rows / block_rows))
        ]
        self.block_sizes = tuple(rows for _, _, rows in self._blocks)
        """Rows in each block, in order."""
        self._ends = np.cumsum(self.block_sizes)
        self._kept: OrderedDict[int, dict[str, NDArray[Any]]] = OrderedDict()

    def take(self, indices: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the rows at indices, in their order; indices near each other, in blocks, are cheap.

        Args:
            indices: Row numbers from 0, at least one.

        Returns:
            Arrays with shape (len(indices), *column.shape) by column.

        Raises:
            CorruptBundleError: A file has another digest than described.
            UserError: A file cannot be read.
        """
        import numpy as np

        places = np.searchsorted(self._ends, indices, side="right")
        parts: dict[str, NDArray[Any]] = {}
        # Kept blocks first, since a block that is read may replace them.
        for place in sorted(np.unique(places).tolist(), key=lambda one: one not in self._kept):
            block = self._get_block(place)
            chosen = places == place
            rows = indices[chosen] - (self._ends[place] - self.block_sizes[place])
            for name, array in block.items():
                if name not in parts:
                    parts[name] = np.empty((len(indices), *array.shape[1:]), array.dtype)
                parts[name][chosen] = array[rows]
        return parts

    def iterate(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the blocks' arrays in order, none of them kept."""
        return map(self._read_block, range(len(self._blocks)))

    def _get_block(self, place: int) -> dict[str, NDArray[Any]]:
        if place in self._kept:
            self._kept.move_to_end(place)
        else:
            if len(self._kept) == WINDOW_BLOCKS:
                self._kept.popitem(last=False)
            self._kept[place] = self._read_block(place)
        return self._kept[place]

    def _read_block(self, place: int) -> dict[str, NDArray[Any]]:
        from pyarrow import lib, parquet

        file, group, rows = self._blocks[place]
        path = self._directory / file
        if file not in self._metadata and self._digests is not None:
            check_digest(path, self._digests[file], hint="Load the dataset again.")
        try:
            with parquet.ParquetFile(str(path), metadata=self._metadata.get(file)) as opened:
                self._metadata[file] = opened.metadata
                names = [column.name for column in self._columns]
                table = opened.read_row_group(group, columns=names, use_threads=False)
        except MemoryError:
            raise
        except (lib.ArrowException, OSError) as error:
            raise UserError(f"{path}: cannot be read ({error})", hint="Load the dataset again.") from None
        if len(table) != rows:
            raise UserError(f"{path}: block {group}: must have {rows} rows, got {len(table)}")
        return {column.name: decode_column(table.column(column.name), column) for column in self._columns}


def encode_columns(columns: Sequence[Column], arrays: Arrays) -> Any:
    """Return arrays as an Arrow table in the form of a shard.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    return import_pyarrow().table({column.name: _to_arrow(arrays[column.name], column) for column in columns})


def decode_column(values: Any, column: Column) -> NDArray[Any]:
    """Return an Arrow array from a shard as an array with shape (N, *column.shape)."""
    import numpy as np

    if column.dtype != BYTES and not column.shape:
        array: NDArray[Any] = values.to_numpy(zero_copy_only=False) if _is_array(values) else values.to_numpy()
        return array
    if column.dtype == BYTES or column.shape[0] == -1:
        rows = values.to_pylist()
        array = np.empty((len(rows), *(column.shape if column.dtype == BYTES else ())), object)
        if column.dtype == BYTES:
            array[...] = np.array(rows, object).reshape(array.shape) if column.shape else rows
        else:
            array[:] = [np.frombuffer(row, column.dtype).reshape(column.shape) for row in rows]
        return array
    joined = values if _is_array(values) else values.combine_chunks()
    flat = np.frombuffer(joined.buffers()[1], column.dtype)
    size = math.prod(column.shape)
    return flat[joined.offset * size : (joined.offset + len(joined)) * size].reshape(len(joined), *column.shape)


def _to_arrow(array: NDArray[Any], column: Column) -> Any:
    import numpy as np
    import pyarrow

    if column.dtype == BYTES:
        kind = pyarrow.binary()
        for _ in column.shape:
            kind = pyarrow.list_(kind)
        return pyarrow.array(array.tolist(), kind)
    if not column.shape:
        return pyarrow.array(array)
    if column.shape[0] == -1:
        return pyarrow.array([np.ascontiguousarray(row).tobytes() for row in array], pyarrow.binary())
    rows = np.ascontiguousarray(array)
    kind = pyarrow.binary(rows.itemsize * math.prod(column.shape))
    return pyarrow.Array.from_buffers(kind, len(rows), [None, pyarrow.py_buffer(rows.tobytes())])


def _is_array(values: Any) -> bool:
    return not hasattr(values, "chunks")


def _measure(value: Any) -> int:
    return int(value.nbytes) if hasattr(value, "nbytes") else len(value)


def import_pyarrow() -> Any:
    """Return the module pyarrow.

    Raises:
        MissingExtraError: It is not installed.
    """
    with require_extra("pyarrow", "data"):
        import pyarrow
    return pyarrow
