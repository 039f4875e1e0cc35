"""Arrow tables as fields: CSV, Parquet and JSON lines, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import (
    Source,
    SourceRequest,
    guess_target,
    is_index,
    select_fields,
    to_objects,
)
from kfp_mindspore.data.sources.content import check_cells, check_lines
from kfp_mindspore.data.sources.delimiters import read_header, resolve_delimiter
from kfp_mindspore.data.sources.lists import get_limit, parse_lists, read_lists
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.names import normalize_name
from kfp_mindspore.formats.shards import import_pyarrow
from kfp_mindspore.formats.tensors import is_ragged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BATCH_ROWS = 1 << 16
_BLOCK_BYTES = 4 << 20


def read_csv(path: Path, request: SourceRequest) -> Source:
    """Read a CSV file with a header; compressed files too.

    Numbers that are no exact fields are parsed as float32, which halves the table's memory.

    Raises:
        UserError: The file cannot be parsed, or a field is missing.
        MissingExtraError: pyarrow is not installed.
    """
    import_pyarrow()
    from pyarrow import csv, float32, lib, string, types

    where = f"{path.name} (CSV)"
    delimiter = resolve_delimiter(path, request.delimiter)
    parse = csv.ParseOptions(delimiter=delimiter)
    try:
        header, blank = read_header(path, delimiter)
        named = name_columns(where, header, request)
        # The names are given, since the file may have them in another form or twice.
        read: dict[str, Any] = {"column_names": named, "skip_rows": blank, "skip_rows_after_names": 1}
        with csv.open_csv(str(path), csv.ReadOptions(**read), parse) as reader:
            schema = reader.schema
        if any(map(types.is_binary, schema.types)):
            check_cells(path, where, delimiter)
        names = select_fields(where, request, named)
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
        integers = frozenset(name for name in names if _is_integer(schema.field(name).type) and name not in texts)
        blocks = csv.ReadOptions(block_size=_BLOCK_BYTES, **read)
        zeros = _list_leading_zeros(path, blocks, parse, integers)
        indexes = tuple(name for name in named if is_index(name) and name not in names)

        def finish(schema: Any, batches: Iterable[Any], integers: frozenset[str] = frozenset()) -> Source:
            found = read_batches("CSV", where, schema, batches, request, exact, integers)
            found.indexes, found.leading_zeros = indexes, zeros
            return found

        try:
            if len(types_seen) == len(names):
                with csv.open_csv(str(path), blocks, parse, options) as reader:
                    return finish(reader.schema, reader, integers)
        except lib.ArrowInvalid:
            # A column that starts with numbers and continues with texts.
            pass
        # Arrow infers the types from all rows.
        options = csv.ConvertOptions(include_columns=names, column_types=texts)
        table = csv.read_csv(str(path), csv.ReadOptions(**read), parse, options)
        if any(map(types.is_binary, table.schema.types)):
            check_cells(path, where, delimiter)
    except (lib.ArrowException, UnicodeDecodeError, OSError) as error:
        if not isinstance(error, OSError):
            check_cells(path, where, delimiter)
        raise UserError(f"{where}: cannot be parsed ({error})") from None
    return finish(table.schema, table.to_batches(), integers)


def name_columns(where: str, found: Sequence[str], request: SourceRequest) -> list[str]:
    """Return a table's column names in NFC; the second of two equal ones, where neither is needed, gets another.

    Raises:
        UserError: Two columns with a needed name are equal.
    """
    names = [normalize_name(name) for name in found]
    wanted = None if request.fields is None else request.fields | request.exact | request.optional
    for name in dict.fromkeys(names):
        places = [place for place, one in enumerate(names, 1) if one == name]
        if len(places) > 1 and not is_index(name) and (wanted is None or name in wanted):
            raise UserError(
                f"{where}: has {len(places)} columns with the name {name!r}, the columns "
                f"{' and '.join(map(str, places))}",
                hint="Rename or remove one of them in the file, or name the fields to use without it (--features).",
            )
        for place in places[1:]:
            names[place - 1] = f"{name} in column {place}" if name.strip() else " " * place
    return names


def _list_leading_zeros(path: Path, blocks: Any, parse: Any, integers: frozenset[str]) -> dict[str, str]:
    """Return the integer columns that have a leading zero in the file, each with the first such cell."""
    from pyarrow import compute, csv, string

    found: dict[str, str] = {}
    options = csv.ConvertOptions(include_columns=sorted(integers), column_types=dict.fromkeys(integers, string()))
    if not integers:
        return found
    with csv.open_csv(str(path), blocks, parse, options) as reader:
        for batch in reader:
            for name in integers.difference(found):
                column = batch.column(name)
                chosen = column.filter(compute.match_substring_regex(column, r"^\s*[-+]?0\d"))
                if len(chosen):
                    found[name] = chosen[0].as_py().strip()
    return found


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
        header = parquet.read_schema(str(files[0])).names
        named = name_columns(where, header, request)
        names = select_fields(where, request, named)
        raw = dict(zip(named, header, strict=True))
        table = parquet.read_table(str(path), columns=[raw[name] for name in names]).rename_columns(names)
    except (lib.ArrowException, OSError) as error:
        raise UserError(f"{where}: cannot be read ({error})") from None
    batches = table.to_batches(max_chunksize=_BATCH_ROWS)
    exact = request.exact | request.optional | set(guess_target(names))
    source = read_batches("Parquet", where, table.schema, batches, request, exact)
    source.indexes = tuple(name for name in named if is_index(name) and name not in names)
    return source


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
    table = table.rename_columns(name_columns(where, table.column_names, request))
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


def _get_unit(kind: Any) -> str:
    """Return NumPy's unit of a date or timestamp; empty for a time of day or a duration."""
    from pyarrow import types

    if types.is_timestamp(kind):
        return str(kind.unit)
    return {"date32[day]": "D", "date64[ms]": "ms"}.get(str(kind), "")


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
    times = {field.name: _get_unit(field.type) for field in schema if types.is_temporal(field.type)}
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
