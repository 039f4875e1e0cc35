"""Arrow tables as fields: CSV, Parquet and JSON lines, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import (
    Source,
    SourceRequest,
    guess_target,
    import_pyarrow,
    select_fields,
    to_objects,
)
from kfp_mindspore.data.sources.content import check_cells, check_lines
from kfp_mindspore.data.sources.lists import get_limit, parse_lists, read_lists
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import is_ragged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BATCH_ROWS = 1 << 16
_BLOCK_BYTES = 4 << 20
_TAB_SUFFIXES = (".tsv", ".tsv.gz", ".tab")


def read_csv(path: Path, request: SourceRequest) -> Source:
    """Read a CSV file with a header, tab-separated when its name ends with .tsv; compressed files too.

    Numbers that are no exact fields are parsed as float32, which halves the table's memory.

    Raises:
        UserError: The file cannot be parsed, or a field is missing.
        MissingExtraError: pyarrow is not installed.
    """
    import_pyarrow()
    from pyarrow import csv, float32, lib, string, types

    where = f"{path.name} (CSV)"
    delimiter = "\t" if path.name.endswith(_TAB_SUFFIXES) else ","
    parse = csv.ParseOptions(delimiter=delimiter)
    try:
        with csv.open_csv(str(path), parse_options=parse) as reader:
            schema = reader.schema
        if any(map(types.is_binary, schema.types)):
            check_cells(path, where, delimiter)
        names = select_fields(where, request, schema.names)
        exact = request.exact | request.optional | set(guess_target(names))
        stacked = {
            name: float32()
            for name in names
            if name not in exact
            and (types.is_floating(schema.field(name).type) or _is_integer(schema.field(name).type))
        }
        types_seen = {name: schema.field(name).type for name in names if not types.is_null(schema.field(name).type)}
        texts = {name: string() for name in names if name in request.texts or name in request.lists}
        options = csv.ConvertOptions(include_columns=names, column_types=types_seen | stacked | texts)
        integers = frozenset(name for name in names if _is_integer(schema.field(name).type))
        try:
            if len(types_seen) == len(names):
                blocks = csv.ReadOptions(block_size=_BLOCK_BYTES)
                with csv.open_csv(str(path), blocks, parse, options) as reader:
                    return read_batches("CSV", where, reader.schema, reader, request, exact, integers)
        except lib.ArrowInvalid:
            # A column that starts with numbers and continues with texts.
            pass
        # Arrow infers the types from all rows.
        options = csv.ConvertOptions(include_columns=names, column_types=texts)
        table = csv.read_csv(str(path), parse_options=parse, convert_options=options)
        if any(map(types.is_binary, table.schema.types)):
            check_cells(path, where, delimiter)
    except (lib.ArrowException, UnicodeDecodeError, OSError) as error:
        if not isinstance(error, OSError):
            check_cells(path, where, delimiter)
        raise UserError(f"{where}: cannot be parsed ({error})") from None
    return read_batches("CSV", where, table.schema, table.to_batches(), request, exact, integers)


def read_parquet(path: Path, request: SourceRequest) -> Source:
    """Read a Parquet file, or a directory with such files.

    Raises:
        UserError: It cannot be read, or a field is missing.
        MissingExtraError: pyarrow is not installed.
    """
    import_pyarrow()
    from pyarrow import lib, parquet

    where = f"{path.name} (Parquet)"
    try:
        files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
        if not files:
            raise UserError(f"{where}: has no file *.parquet")
        names = select_fields(where, request, parquet.read_schema(str(files[0])).names)
        table = parquet.read_table(str(path), columns=names)
    except (lib.ArrowException, OSError) as error:
        raise UserError(f"{where}: cannot be read ({error})") from None
    batches = table.to_batches(max_chunksize=_BATCH_ROWS)
    return read_batches(
        "Parquet", where, table.schema, batches, request, request.exact | request.optional | set(guess_target(names))
    )


def read_json_lines(path: Path, request: SourceRequest) -> Source:
    """Read a file with one JSON object per line; lists with equal lengths become arrays.

    Raises:
        UserError: It cannot be parsed, or a field is missing.
        MissingExtraError: pyarrow is not installed.
    """
    import_pyarrow()
    from pyarrow import json, lib

    where = f"{path.name} (JSON lines)"
    try:
        table = json.read_json(str(path))
        # Arrow does not check the encoding of texts.
        table.validate(full=True)
    except (lib.ArrowException, OSError) as error:
        if not isinstance(error, OSError):
            check_lines(path, where)
        raise UserError(f"{where}: cannot be parsed ({error})") from None
    names = select_fields(where, request, table.column_names)
    table = table.select(names)
    return read_batches(
        "JSON lines",
        where,
        table.schema,
        table.to_batches(),
        request,
        request.exact | request.optional | set(guess_target(names)),
    )


def _is_integer(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind))


def read_batches(
    kind: str,
    where: str,
    schema: Any,
    batches: Iterable[Any],
    request: SourceRequest,
    exact: frozenset[str] | set[str],
    integers: frozenset[str] = frozenset(),
) -> Source:
    """Return record batches as a source; its numbers that are no exact fields are one float32 matrix."""
    import numpy as np
    import pyarrow
    from pyarrow import types

    stacked = [
        field.name
        for field in schema
        if field.name not in exact and (types.is_floating(field.type) or _is_integer(field.type))
    ]
    others = [name for name in schema.names if name not in stacked]
    # A CSV file has no NaN beside its nulls; the other formats may have both.
    missing = dict.fromkeys(schema.names if kind == "CSV" else others, 0)
    parts: list[NDArray[np.float32]] = []
    rest = []
    for batch in batches:
        for name in missing:
            missing[name] += batch.column(name).null_count
        part = np.empty((batch.num_rows, len(stacked)), np.float32)
        for index, name in enumerate(stacked):
            part[:, index] = batch.column(name).to_numpy(zero_copy_only=False)
        parts.append(part)
        rest.append(batch.select(others))
    if not any(map(len, parts)):
        raise UserError(f"{where}: has no rows", hint="Export the file again, with a row for each sample.")
    table = pyarrow.Table.from_batches(rest)
    matrix = _join(parts)
    limits = {name: get_limit(request, name, exact=name in exact) for name in others}
    columns = {
        name: matrix[:, stacked.index(name)]
        if name in stacked
        else _to_array(f"{where}: {name}", table.column(name), limits[name])
        for name in schema.names
    }
    for name in others:
        if name in request.lists and columns[name].dtype == object and types.is_string(schema.field(name).type):
            columns[name] = parse_lists(f"{where}: {name}", columns[name], request.lists[name])
    for name in columns.keys() & request.lists.keys():
        if not is_ragged(columns[name]):
            raise UserError(
                f"{where}: {name}: Pad needs a list in each row, the column holds {schema.field(name).type}",
                hint=f"Name a column with lists, or leave the Pad for {name} out.",
            )
    times = tuple(field.name for field in schema if types.is_temporal(field.type))
    integers |= {field.name for field in schema if _is_integer(field.type)}
    return Source(
        kind,
        where,
        columns,
        target=guess_target(schema.names),
        times=times,
        is_table=True,
        missing=missing,
        integers=integers.intersection(stacked),
    )


def _join(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return matrices with the same columns as one; the list is emptied, since each is released once it is copied."""
    import numpy as np

    matrix = np.empty((sum(map(len, parts)), parts[0].shape[1]), np.float32)
    end = len(matrix)
    while parts:
        part = parts.pop()
        matrix[end - len(part) : end] = part
        end -= len(part)
    return matrix


def _to_array(where: str, column: Any, limit: int | None) -> NDArray[Any]:
    """Return an Arrow column as an array: numbers, `bytes` objects, times as int64, lists by `read_lists`."""
    import numpy as np
    from pyarrow import compute, types

    kind = column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_null(kind):
        return np.full(len(column), np.nan, np.float32)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        values = [b"" if value is None else value for value in column.cast("large_binary").to_pylist()]
        return to_objects(values)
    if types.is_temporal(kind):
        column = column.cast("int32" if kind.bit_width == 32 else "int64").cast("int64")
        return np.asarray(compute.fill_null(column, np.iinfo(np.int64).min).to_numpy())
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.ascontiguousarray(column.to_numpy())
    if types.is_decimal(kind):
        return np.ascontiguousarray(column.cast("float64").to_numpy())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return read_lists(where, column, limit)
    raise UserError(f"{where}: has the type {kind}, which cannot be a column", hint="Leave it out: --features NAME,…")
