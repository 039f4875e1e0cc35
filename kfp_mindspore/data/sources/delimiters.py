"""A CSV file's delimiter and header."""

from __future__ import annotations

import csv
import gzip
import io
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from kfp_mindspore.errors import UserError, ValidationError

TAB_SUFFIXES = (".tsv", ".tsv.gz", ".tab")
DELIMITERS = (",", "\t", ";", "|")
"""Delimiters that are found without an option."""
_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}
_ROWS, _BYTES = 50, 1 << 16


def check_delimiter(delimiter: str) -> None:
    """Raise ValidationError unless a delimiter is empty, one character or a known name."""
    if len(_NAMES.get(delimiter, delimiter)) > 1 or delimiter in ('"', "\n", "\r") or not delimiter.isascii():
        raise ValidationError([f"delimiter: must be one ASCII character or tab, got {delimiter!r}"])


def resolve_delimiter(path: Path, stated: str = "") -> str:
    """Return a CSV file's delimiter.

    Args:
        path: The file; a name that ends with .tsv has tabs by default.
        stated: The user's; empty to find it. Another one than the default is found only where it alone divides all of
            the first lines in as many cells as the header, and the default does not.
    """
    if stated:
        check_delimiter(stated)
        return _NAMES.get(stated, stated)
    default = "\t" if path.name.lower().endswith(TAB_SUFFIXES) else ","
    start = read_start(path)
    if divides(start, default):
        return default
    found = [mark for mark in DELIMITERS if mark != default and divides(start, mark)]
    return found[0] if len(found) == 1 else default


def read_header(path: Path, delimiter: str) -> tuple[list[str], int]:
    """Return a CSV file's column names as they are, and how many blank lines are before them.

    Raises:
        UnicodeDecodeError: The header is not UTF-8.
        UserError: It is damaged.
    """
    with open_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            for blank, row in enumerate(csv.reader(text, delimiter=delimiter)):
                if row:
                    return row, blank
        except csv.Error as error:
            raise UserError(
                f"{path.name} (CSV): the header cannot be read ({error})", hint="Export the file again."
            ) from None
    return [], 0


def open_file(path: Path) -> BinaryIO:
    """Open a file, decompressed when its name ends with .gz."""
    return cast(BinaryIO, gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def read_start(path: Path) -> str:
    """Return whole lines from the start of a file."""
    with open_file(path) as file:
        content = file.read(_BYTES)
    whole = content if len(content) < _BYTES else content.rpartition(b"\n")[0] or content
    return whole.decode("utf-8-sig", "replace")


def divides(start: str, mark: str) -> bool:
    """Return whether each of the first rows has as many cells as the header, at least two."""
    try:
        sizes = {len(row) for row in islice(csv.reader(io.StringIO(start, newline=""), delimiter=mark), _ROWS) if row}
    except csv.Error:
        return False
    return len(sizes) == 1 and sizes.pop() > 1
