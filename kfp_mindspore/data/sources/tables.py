"""Arrow tables as fields: CSV, Parquet and JSON lines, by pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import Request, Source, guess_target, import_pyarrow, select_fields, to_objects
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TAB_SUFFIXES = (".tsv", ".tsv.gz", ".tab")


def read_csv(path: Path, request: Request) -> Source:
    """Read a CSV file with a header, tab-separated when its name ends with .tsv; compressed files too.

    Numbers that are no exact fields are parsed as float32, which halves the memory of the table.

    Raises:
        UserError: The file cannot be parsed, or a field is missing.
        MissingExtraError: pyarrow is not installed.
    """
    import_pyarrow()
    from pyarrow import csv, float32, lib, types

    where = f"{path.name} (CSV)"
    parse = csv.ParseOptions(delimiter="\t" if path.name.endswith(_TAB_SUFFIXES) else ",")
    try:
        with csv.open_csv(str(path), parse_options=parse) as reader:
            schema = reader.schema
        names = select_fields(where, request, schema.names)
        exact = request.exact | set(guess_target(names))
        stacked = {
            name: float32()
            for name in names
            if name not in exact
            and (types.is_floating(schema.field(name).type) or _is_integer(schema.field(name).type))
        }
        options = csv.ConvertOptions(include_columns=names, column_types=stacked)
        try:
            table = csv.read_csv(str(path), parse_options=parse, convert_options=options)
        except lib.ArrowInvalid:
            # A column that starts with numbers and continues with texts: let Arrow infer its type from all rows.
            options = csv.ConvertOptions(include_columns=names)
            table = csv.read_csv(str(path), parse_options=parse, convert_options=options)
    except (lib.ArrowException, OSError) as error:
        raise UserError(f"{where}: cannot be parsed ({error})") from None
    integers = frozenset(name for name in names if _is_integer(schema.field(name).type))
    return _to_source("CSV", where, table, exact, integers)


def read_parquet(path: Path, request: Request) -> Source:
    """Read a Parquet file, or a directory of them.

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
    return _to_source("Parquet", where, table, request.exact | set(guess_target(names)))


def read_json_lines(path: Path, request: Request) -> Source:
    """Read a file with one JSON object a line; lists of equal lengths become arrays.

    Raises:
        UserError: It cannot be parsed, or a field is missing.
        MissingExtraError: pyarrow is not installed.
    """
    import_pyarrow()
    from pyarrow import json, lib

    where = f"{path.name} (JSON lines)"
    try:
        table = json.read_json(str(path))
    except (lib.ArrowException, OSError) as error:
        raise UserError(f"{where}: cannot be parsed ({error})") from None
    names = select_fields(where, request, table.column_names)
    return _to_source("JSON lines", where, table.select(names), request.exact | set(guess_target(names)))


def _is_integer(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind))


def _to_source(
    kind: str, where: str, table: Any, exact: frozenset[str] | set[str], integers: frozenset[str] = frozenset()
) -> Source:
    from pyarrow import types

    if not table.num_rows:
        raise UserError(f"{where}: has no rows")
    stacked = [
        name
        for name, field in zip(table.column_names, table.schema, strict=True)
        if name not in exact and (types.is_floating(field.type) or _is_integer(field.type))
    ]
    # A CSV file has no NaN beside its nulls; the other formats may have both.
    counted = table.column_names if kind == "CSV" else [name for name in table.column_names if name not in stacked]
    missing = {name: table.column(name).null_count for name in counted}
    matrix = _stack(table.select(stacked))
    columns: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        if name in stacked:
            columns[name] = matrix[:, stacked.index(name)]
        else:
            columns[name] = _to_array(f"{where}: {name}", table.column(name))
    times = tuple(field.name for field in table.schema if types.is_temporal(field.type))
    target = guess_target(table.column_names)
    integers |= {field.name for field in table.schema if _is_integer(field.type)}
    return Source(
        kind,
        where,
        columns,
        target=target,
        times=times,
        is_table=True,
        missing=missing,
        integers=integers.intersection(stacked),
    )


def _stack(table: Any) -> NDArray[Any]:
    """Return numeric columns as one float32 matrix, filled block by block; nulls become NaN."""
    import numpy as np

    matrix = np.empty((table.num_rows, table.num_columns), np.float32)
    start = 0
    for batch in table.to_batches(max_chunksize=1 << 16):
        for index, column in enumerate(batch.columns):
            matrix[start : start + batch.num_rows, index] = column.to_numpy(zero_copy_only=False)
        start += batch.num_rows
    return matrix


def _to_array(where: str, column: Any) -> NDArray[Any]:
    """Return an Arrow column as an array: numbers, `bytes` objects, times as int64, lists as arrays."""
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
        try:
            array = np.array(column.to_pylist())
        except ValueError:
            array = np.empty(0, object)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{where}: lists must hold numbers and have equal lengths")
        return array
    raise UserError(f"{where}: has the type {kind}, which cannot be a column", hint="Leave it out: --features NAME,…")
