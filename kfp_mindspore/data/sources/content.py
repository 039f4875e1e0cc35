"""Files whose content is not what their name says, and text that is not UTF-8."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import BinaryIO, cast

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
        wrong = bool(found)
    if wrong and start:
        expected = f"{_TITLES[kind]}{', compressed by gzip' if is_packed and kind != 'parquet' else ''}"
        raise UserError(f"{path.name}: read as {expected}, but its content is {found}", hint=_get_hint(found, other))


def _recognise(start: bytes) -> tuple[str, str]:
    return next((found for magic, found in _CONTENT.items() if start.startswith(magic)), ("", ""))


def _get_hint(found: str, other: str) -> str:
    if "Excel" in found:
        return "Export the sheet as CSV (UTF-8)."
    if found == "UTF-16 text":
        return "Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW.csv"
    if found == "gzip data":
        return "Name it with .gz at the end."
    if found == "a JSON list":
        return "Write one object a line: jq -c '.[]' FILE > NEW.jsonl"
    return f"Name it by its content, or give the format: --format {other}." if other else ""


def check_encoding(path: Path, where: str, delimiter: str) -> None:
    """Refuse a CSV file that is not UTF-8.

    Args:
        path: The file.
        where: File and format, for the message.
        delimiter: Between two cells.

    Raises:
        UserError: The message names line and column.
    """
    header: list[str] = []
    with _open(path) as file:
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


def check_lines(path: Path, where: str) -> None:
    """Refuse a JSON lines file that is not UTF-8.

    Args:
        path: The file.
        where: File and format, for the message.

    Raises:
        UserError: The message names the line.
    """
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found = line[max(error.start - 10, 0) : error.end + 10].decode("latin-1")
                raise UserError(
                    f"{where}: line {number}: must be UTF-8, got {found!r} in another encoding",
                    hint="Convert it: iconv -f LATIN1 -t UTF-8 FILE > NEW.jsonl",
                ) from None


def _is_invalid(cell: str) -> bool:
    try:
        cell.encode("latin-1").decode()
    except UnicodeDecodeError:
        return True
    return False


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")
