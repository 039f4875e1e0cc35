"""Files whose content is not what their name says, and text that is not UTF-8."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from kfp_mindspore.data.sources.delimiters import open_file
from kfp_mindspore.errors import UserError

_START = 512
# How files start that people give in place of a table.
_CONTENT = {
    b"PAR1": ("a Parquet file", "parquet"),
    b"PK\x03\x04": ("a ZIP, Excel or NPZ file", ""),
    b"\xd0\xcf\x11\xe0": ("an Excel file", ""),
    b"\x93NUMPY": ("an NPY file", "npy"),
    b"\x1f\x8b": ("gzip data", ""),
    b"\xff\xfe": ("UTF-16 text", ""),
    b"\xfe\xff": ("UTF-16 text", ""),
    b"\x89PNG": ("a PNG image", ""),
    b"%PDF": ("a PDF file", ""),
}
_TITLES = {"csv": "CSV", "parquet": "Parquet", "jsonl": "JSON lines"}


def check_content(path: Path, kind: str) -> None:
    """Refuse a table's file by its first bytes, when they are another format's.

    Args:
        path: The file; a directory is not checked.
        kind: The format by which it will be read.

    Raises:
        UserError: The message names the file, the expected format and the found one.
    """
    if kind not in _TITLES or path.is_dir():
        return
    with path.open("rb") as file:
        start = file.read(_START)
    found, other = _recognise(start)
    is_packed = path.name.lower().endswith(".gz")
    if kind == "parquet":
        wrong = not start.startswith(b"PAR1")
        found = found or "text, such as CSV"
    elif is_packed:
        wrong = not start.startswith(b"\x1f\x8b")
        found = found or "plain text"
    else:
        first = start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if not found and first == b"<":
            found = "HTML or XML"
        elif not found and kind == "csv" and first in (b"{", b"["):
            found, other = "JSON", "jsonl"
        elif not found and kind == "jsonl" and first != b"{":
            found = "a JSON list" if first == b"[" else "no JSON object"
            if b"," in start.partition(b"\n")[0] and first != b"[":
                found, other = "text, such as CSV", "csv"
        wrong = bool(found)
    if not start:
        raise UserError(f"{path.name}: is empty, expected {_TITLES[kind]}", hint="Export or copy the file again.")
    if wrong:
        expected = f"{_TITLES[kind]}{', compressed by gzip' if is_packed and kind != 'parquet' else ''}"
        raise UserError(f"{path.name}: read as {expected}, but its content is {found}", hint=_get_hint(found, other))


def _recognise(start: bytes) -> tuple[str, str]:
    return next((found for magic, found in _CONTENT.items() if start.startswith(magic)), ("", ""))


def _get_hint(found: str, other: str) -> str:
    if "Excel" in found:
        return "Export the sheet as CSV (UTF-8)."
    if found == "UTF-16 text":
        return "Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
    if found == "gzip data":
        return "Name it with .gz at the end."
    if found == "a JSON list":
        return "Write one object a line: jq -c '.[]' FILE > NEW.jsonl"
    return f"Name it by its content, or give the format: --format {other}." if other else ""


def check_cells(path: Path, where: str, delimiter: str) -> None:
    """Refuse a CSV file that is not UTF-8, or has a row with more or fewer cells than the header.

    Args:
        path: The file.
        where: File and format, for the message.
        delimiter: Between two cells.

    Raises:
        UserError: The message names line and column.
    """
    header: list[str] = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            cells = next(csv.reader([line.decode("latin-1")], delimiter=delimiter), [])
            header = header or cells
            try:
                line.decode()
            except UnicodeDecodeError:
                index, cell = next((index, cell) for index, cell in enumerate(cells) if _is_invalid(cell))
                column = f"column {header[index]!r}" if number > 1 and index < len(header) else "the header"
                raise UserError(
                    f"{where}: line {number}, {column}: must be UTF-8, got {cell!r:.60} in another encoding",
                    hint="Convert it: iconv -f LATIN1 -t UTF-8 FILE > NEW.csv",
                ) from None

    with open_file(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader, start = csv.reader(lines, delimiter=delimiter), 1
        try:
            for row in reader:
                header = header if start > 1 else row
                if row and len(row) != len(header):
                    raise UserError(
                        f"{where}: line {start}: must have {len(header)} cells as the header has, got {len(row)}: "
                        f"{delimiter.join(row)!r:.60}",
                        hint='Put a text with commas, quotes or line breaks in double quotes, "" for a quote in it; or '
                        "give the character between two cells: --delimiter (delimiter=…).",
                    )
                start = reader.line_num + 1
        except csv.Error as error:
            raise UserError(
                f"{where}: line {start}: cannot be read ({error})", hint="Correct the line, or export the file again."
            ) from None


def check_lines(path: Path, where: str) -> None:
    """Refuse a JSON lines file that is not UTF-8, has a damaged line, or a column with values of several types.

    Args:
        path: The file.
        where: File and format, for the message.

    Raises:
        UserError: The message names the line and, for a type, the column.
    """
    kinds: dict[str, tuple[str, int]] = {}
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found = line[max(error.start - 10, 0) : error.end + 10].decode("latin-1")
                raise UserError(
                    f"{where}: line {number}: must be UTF-8, got {found!r} in another encoding",
                    hint="Convert it: iconv -f LATIN1 -t UTF-8 FILE > NEW.jsonl",
                ) from None
            if line.strip():
                _check_line(line, f"{where}: line {number}", number, kinds)


def _check_line(line: bytes, where: str, number: int, kinds: dict[str, tuple[str, int]]) -> None:
    """Compare a line's types with earlier lines' types, which `kinds` has by column with their line numbers."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(
            f"{where}: must be a JSON object, got {line.decode().strip()!r:.60} ({error})",
            hint="Correct or remove the line; when it is the last one, the file was cut: copy it again.",
        ) from None
    if not isinstance(row, dict):
        raise UserError(
            f'{where}: must be a JSON object such as {{"text": "…"}}, got {_name_kind(row)}',
            hint="Write each row as an object with its columns' names.",
        )
    for name, value in row.items():
        kind = _name_kind(value)
        if kind == "null":
            continue
        expected, first = kinds.setdefault(name, (kind, number))
        if expected == "lists" and kind.startswith("lists of"):
            kinds[name] = (kind, number)
        elif kind not in (expected, "lists" if expected.startswith("lists") else expected):
            raise UserError(
                f"{where}: column {name!r}: must hold {expected}, as line {first}, got {json.dumps(value)!s:.60}",
                hint="Write one type in all rows, numbers as texts in quotes; or leave the column out (--features).",
            )


def _name_kind(value: Any) -> str:
    if isinstance(value, list):
        inner = sorted({_name_kind(item) for item in value} - {"null"})
        return f"lists of {' and '.join(inner)}" if inner else "lists"
    names = {str: "texts", bool: "true and false", dict: "objects", type(None): "null"}
    return names.get(type(value), "numbers")


def _is_invalid(cell: str) -> bool:
    try:
        cell.encode("latin-1").decode()
    except UnicodeDecodeError:
        return True
    return False
