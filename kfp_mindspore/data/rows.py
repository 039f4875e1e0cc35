"""Rows for a prediction from files, as the model's inputs or by a table's column names, and files of predictions."""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from kfp_mindspore import files
from kfp_mindspore.data.sources.base import SourceRequest
from kfp_mindspore.data.sources.delimiters import check_delimiter, read_header, resolve_delimiter
from kfp_mindspore.data.sources.formats import read_path, recognise_format
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.names import normalize_name
from kfp_mindspore.formats.rows import RowInput, RowLayout
from kfp_mindspore.formats.shards import import_pyarrow
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.outputs import check_apart, check_output_file
from kfp_mindspore.transform.base import TransformInputError
from kfp_mindspore.transform.pipeline import stack_rows
from kfp_mindspore.transform.rows import RowPacker, to_row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

FORMATS = (".json", ".jsonl", ".csv", ".npz", ".npy")
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".tab", ".parquet", ".pq", ".jsonl.gz", ".ndjson")
WRITTEN = (".csv", ".parquet")
PICTURES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class FileRows:
    """A file's rows.

    Args:
        inputs: The model's inputs, with shape (N, …).
        target: The file's values of the dataset's target columns, one for each row in the file.
        kept: Which rows in the file have inputs: those with missing values have none after the rule `drop`.
    """

    inputs: Arrays
    target: dict[str, list[Any]] = field(default_factory=dict)
    kept: NDArray[np.bool_] | None = None

    def scatter(self, outputs: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return outputs as a list for each row in the file; None for a row without inputs."""
        lists = {name: list(array) for name, array in outputs.items()}
        if self.kept is None or self.kept.all():
            return lists
        found = {name: iter(values) for name, values in lists.items()}
        return {name: [next(values) if keep else None for keep in self.kept] for name, values in found.items()}


def read_rows(
    path: Path | str, specs: Sequence[TensorSpec], layout: RowLayout | None = None, *, delimiter: str = ""
) -> FileRows:
    """Read the rows in a file as arrays by input name.

    | format | content |
    |---|---|
    | .json | a list of rows, or an object: `{"instances": […]}`, `{"inputs": {…}}`, or a list of values by input name |
    | .jsonl | a row per line |
    | .csv | a header and a row per line: a column by input name, or all values of the only input, in order |
    | .npz, .npy | arrays by input name; of the only input by any name |
    | .png, .jpg, .jpeg | one row, for a model whose only input is bytes |

    A row is an object with values by input name, or the only input's value. A value with dtype bytes is a text, or
    `{"b64": "…"}`. With a layout, rows have the table's columns by name, and the file may be any table that
    `load_dataset` reads, such as the one that the model was trained with.

    Args:
        path: The file.
        specs: The inputs, with the row count as their first dimension.
        layout: The columns of a table's model; None for other models.
        delimiter: The character between two cells of a CSV file, or `tab`; empty to find it as `load_dataset` does.

    Returns:
        Arrays with shape (N, …) with the inputs' data types; shapes are validated by the model.

    Raises:
        NotFoundError: The file does not exist.
        UserError: The format is unknown, or an input or column is missing, unknown, or cannot be converted.
    """
    path = Path(path)
    check_delimiter(delimiter)
    takes_pictures = layout is None and [spec.dtype for spec in specs] == [BYTES]
    formats = (*FORMATS, *(PICTURES if takes_pictures else ())) if layout is None else (*FORMATS, *TABLES)
    name = path.name.lower()
    if not path.suffix and path.is_file():
        # A pipeline's artifact.
        name = f"{name}.{recognise_format(path)}"
    if not name.endswith(formats):
        raise UserError(f"{path}: must end in {', '.join(formats)}, got {path.suffix or 'no suffix'!r}")
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file")
    suffix = PurePath(name).suffix
    if layout is not None and _is_table(path, name, specs, layout, delimiter):
        return _read_table(path, layout, delimiter)
    try:
        if suffix in PICTURES:
            columns = {specs[0].name: [path.read_bytes()]}
        elif suffix in (".npz", ".npy"):
            columns = _read_numpy(path, specs, suffix)
        elif suffix == ".csv":
            columns = _read_csv(path, specs, delimiter)
        else:
            value = _read_json(path, specs, suffix)
            names = _list_names(value)
            if layout is not None and names and RowPacker(layout).accepts(names):
                return _pack_json(path, value, layout)
            columns = _to_columns(value, specs)
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read as {suffix}: {error}") from None
    expected = [spec.name for spec in specs]
    if sorted(columns) != sorted(expected):
        raise UserError(f"{path}: the model has the inputs {', '.join(expected)}, got {', '.join(columns) or 'none'}")
    arrays = {spec.name: _convert(path, columns[spec.name], spec) for spec in specs}
    if not all(map(len, arrays.values())):
        raise UserError(f"{path}: has no rows")
    return FileRows(arrays)


def write_predictions(path: Path | str, columns: Mapping[str, Sequence[Any]], labels: Sequence[str] = ()) -> None:
    """Write predictions as CSV or Parquet; an output with several values becomes a column for each.

    Earlier predictions, a table of the same columns, are replaced.

    Args:
        path: The file; its name ends with .csv or .parquet.
        columns: A value for each row, by name; None for none.
        labels: Class names, for the columns of an output with as many values.

    Raises:
        UserError: The name has another end, or the file has other content.
        MissingExtraError: pyarrow is not installed.
    """
    import io

    import numpy as np

    path = Path(path)
    check_written(path)
    pyarrow = import_pyarrow()
    from pyarrow import csv, parquet

    flat: dict[str, list[Any]] = {}
    for name, values in columns.items():
        sample: Any = next((value for value in values if value is not None), 0)
        if np.ndim(sample) == 0:
            flat[name] = [_to_cell(value) for value in values]
            continue
        size = np.size(sample)
        parts = labels if len(labels) == size else range(size)
        rows = [[None] * size if value is None else np.ravel(value).tolist() for value in values]
        for part, column in zip(parts, zip(*rows, strict=True), strict=True):
            flat[f"{name}_{part}"] = [_to_cell(value) for value in column]
    check_output_file(path, "predictions with the same columns", lambda file: _list_columns(file) == list(flat))
    table, content = pyarrow.table(flat), io.BytesIO()
    if path.suffix == ".csv":
        csv.write_csv(table, content)
    else:
        parquet.write_table(table, content)
    files.write_bytes(path, content.getvalue())


def _list_columns(path: Path) -> list[str]:
    """Return an existing table's columns; none if it is damaged."""
    pyarrow = import_pyarrow()
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".csv":
            with csv.open_csv(path) as reader:
                return list(reader.schema.names)
        return list(parquet.read_schema(path).names)
    except pyarrow.ArrowInvalid:
        return []


def check_written(path: Path, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse a file of predictions by its name, before they are computed.

    Args:
        path: The file.
        inputs: What is read.

    Raises:
        UserError: It ends neither with .csv nor with .parquet, or is an input.
    """
    check_apart(path, inputs)
    if path.suffix not in WRITTEN:
        raise UserError(f"{path}: must end in {' or '.join(WRITTEN)}, got {path.suffix or 'no suffix'!r}")


def _is_table(path: Path, name: str, specs: Sequence[TensorSpec], layout: RowLayout, delimiter: str) -> bool:
    """Return whether a file has the table's columns; a CSV may have the inputs, or columns 0, 1, … of the only one."""
    if name.endswith(".csv"):
        try:
            header = list(map(normalize_name, read_header(path, resolve_delimiter(path, delimiter))[0]))
        except (ValueError, csv.Error):
            return True
        # pandas names an array's columns 0, 1, …; other names are the table's, or wrong.
        is_array = len(specs) == 1 and header == [str(index) for index in range(_count(specs[0]))]
        packed = {spec.name for spec in specs} <= set(header) or is_array
        return set(layout.columns) <= set(header) or not packed
    return name.endswith(TABLES)


def _read_table(path: Path, layout: RowLayout, delimiter: str) -> FileRows:
    request = SourceRequest(
        None if layout.extra == "refuse" else frozenset(layout.columns),
        guess_target=False,
        exact=frozenset(layout.columns),
        optional=frozenset(layout.target),
        texts=layout.texts | layout.lists,
        delimiter=delimiter,
        lists=dict.fromkeys(layout.lists, 0),
    )
    source = read_path(path, request, recognise_format(path))
    columns: dict[str, Any] = dict(source.columns)
    for name in layout.columns:
        array = columns.get(name)
        if name in layout.lists:
            if source.missing.get(name) and layout.missing in ("refuse", "drop"):
                columns[name] = [row if len(row) else None for row in source.columns[name]]
        elif name in layout.texts and source.missing.get(name) and layout.missing in ("refuse", "drop"):
            columns[name] = [value or None for value in source.columns[name]]
        elif name not in layout.texts and array is not None and array.dtype == object:
            columns[name] = _parse_numbers(path, name, array)
    target = {name: list(map(_to_cell, columns[name].tolist())) for name in layout.target if name in columns}
    return _pack(path, columns, target, layout)


def _parse_numbers(path: Path, name: str, array: NDArray[Any]) -> list[float | None]:
    """Return the numbers in a CSV column that has texts too.

    Raises:
        UserError: The message names the first text.
    """
    numbers: list[float | None] = []
    for index, value in enumerate(array):
        try:
            numbers.append(float(value) if value else None)
        except ValueError:
            text = value.decode(errors="replace")
            raise UserError(f"{path}: row {index + 1}: column {name!r}: must be a number, got {text!r:.60}") from None
    return numbers


def _pack_json(path: Path, value: Any, layout: RowLayout) -> FileRows:
    columns, target = value, {name: value[name] for name in layout.target if name in value}
    if isinstance(value, list):
        with _naming(path):
            columns = RowPacker(layout).transpose(value, _name_row)
        target = {name: [row.get(name) for row in value] for name in layout.target if any(name in row for row in value)}
    return _pack(path, columns, target, layout)


def _pack(path: Path, columns: Mapping[str, Any], target: dict[str, list[Any]], layout: RowLayout) -> FileRows:
    import numpy as np

    packer = RowPacker(layout)
    with _naming(path):
        packer.check_columns(columns)
        kept = None
        if layout.missing == "drop" and (incomplete := packer.list_incomplete(columns)).any():
            kept = ~incomplete
            if not kept.any():
                raise UserError(f"{path}: each row has a missing value")
            columns = {
                name: [value for value, keep in zip(columns[name], kept, strict=True) if keep]
                if isinstance(columns[name], list)
                else np.asarray(columns[name])[kept]
                for name in layout.columns
            }
        return FileRows(packer.pack_columns({name: columns[name] for name in layout.columns}, _name_row), target, kept)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except TransformInputError as error:
        raise UserError(f"{path}: {error.message}") from None


def _name_row(index: int) -> str:
    return f"row {index + 1}"


def _to_cell(value: Any) -> Any:
    """Return a value for JSON and tables: texts as str, NaN as None."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and value != value else value


def _read_numpy(path: Path, specs: Sequence[TensorSpec], suffix: str) -> dict[str, Any]:
    import numpy as np

    loaded = np.load(path, allow_pickle=False)
    columns = {specs[0].name: loaded} if suffix == ".npy" else {name: loaded[name] for name in loaded.files}
    if len(specs) == len(columns) == 1:
        return {specs[0].name: next(iter(columns.values()))}
    return columns


def _read_json(path: Path, specs: Sequence[TensorSpec], suffix: str) -> Any:
    text = path.read_text(encoding="utf-8")
    value = [json.loads(line) for line in text.splitlines() if line.strip()] if suffix == ".jsonl" else json.loads(text)
    names = {spec.name for spec in specs}
    for wrapper in ("instances", "inputs"):
        if isinstance(value, Mapping) and set(value) == {wrapper} and wrapper not in names:
            value = value[wrapper]
    return value


def _list_names(value: Any) -> Sequence[str]:
    """Return the first JSON row's names; () when rows are values."""
    first = value[0] if isinstance(value, list) and value else value
    return list(first) if isinstance(first, Mapping) and set(first) != {"b64"} else ()


def _to_columns(value: Any, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    names = {spec.name for spec in specs}
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list):
        raise ValueError(f"expected a list or an object, got {type(value).__name__}")
    if value and all(isinstance(row, Mapping) and set(row) != {"b64"} for row in value):
        return {name: [_get(row, name, index) for index, row in enumerate(value)] for name in value[0]}
    if len(specs) != 1:
        raise ValueError(f"rows must be objects with {', '.join(sorted(names))}")
    return {specs[0].name: value}


def _read_csv(path: Path, specs: Sequence[TensorSpec], delimiter: str) -> dict[str, Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        cells = csv.reader(file, delimiter=resolve_delimiter(path, delimiter))
        header, *rows = [row for row in cells if row] or [[]]
    header = list(map(normalize_name, header))
    if header and not rows:
        raise ValueError(f"its only line is the header, {_shorten(header)}: expected a header and a line for each row")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(f"line {number}: has {len(row)} values, the header {len(header)}")
    names = [spec.name for spec in specs]
    if set(names) <= set(header):
        return {name: [row[header.index(name)] for row in rows] for name in names}
    if len(specs) == 1 and len(header) == _count(specs[0]):
        # pandas names an array's columns 0, 1, ….
        if all(map(_is_number, header)) and header != [str(index) for index in range(len(header))]:
            raise ValueError(f"line 1 has numbers only, {_shorten(header)}: expected a header above the rows")
        return {names[0]: rows}
    width = f", or {_count(specs[0])} columns" if len(specs) == 1 else ""
    raise ValueError(f"expected the columns {', '.join(names)}{width}, got {len(header)}: {_shorten(header)}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shorten(header: Sequence[str]) -> str:
    return ", ".join(header[:8]) + (", …" if len(header) > 8 else "")


def _convert(path: Path, values: Any, spec: TensorSpec) -> NDArray[Any]:
    import numpy as np

    if spec.dtype == BYTES:
        texts = np.array(values, object)
        texts.ravel()[:] = [_to_bytes(path, spec.name, value) for value in texts.ravel()]
        return texts
    dtype = np.dtype(spec.dtype)
    if spec.shape[1:2] == (-1,):
        one = RowInput(spec.name, spec.dtype, spec.shape[1:], (spec.name,))
        with _naming(path):
            rows = [to_row(one, value, _name_row(index)) for index, value in enumerate(values)]
        return stack_rows(rows)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US":
            array = array.astype(dtype if dtype.kind in "iu" else np.float64)
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise UserError(f"{path}: {spec.name}: must be {spec.dtype}, got {array.dtype}")
        array = array.astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {spec.name}: cannot be converted to {spec.dtype}: {error}") from None
    inner = spec.shape[1:]
    # A row in a CSV or a DataFrame is flat.
    if array.ndim == 2 and array.shape[1:] != inner and -1 not in inner and array.shape[1] == _count(spec):
        array = array.reshape(len(array), *inner)
    return array


def _count(spec: TensorSpec) -> int:
    import math

    return math.prod(spec.shape[1:])


def _get(row: Mapping[str, Any], name: str, index: int) -> Any:
    if name not in row:
        raise ValueError(f"row {index}: {name} is missing, got {', '.join(row)}")
    return row[name]


def _to_bytes(path: Path, name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("b64"), str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise UserError(f"{path}: {name}: not valid base 64: {error}") from None
    if isinstance(value, str):
        return value.encode()
    raise UserError(f'{path}: {name}: must be a text or {{"b64": "…"}}, got {value!r:.80}')
