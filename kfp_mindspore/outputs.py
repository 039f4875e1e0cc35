"""Output paths: what a command or a function may replace.

An output path is never somebody else's: only a new path, an empty directory or an earlier output of the same kind is
written, and no output is an input, in one or around one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError

# In the head of each HTML page, by which an earlier page is recognised.
_PAGE_MARK = '<meta name="generator" content="kfp-mindspore">'
_READ_BYTES = 1 << 22


@dataclass(frozen=True)
class OutputKind:
    """A kind of output directory.

    Args:
        marker: A file that each such directory has.
        listing: Key of the marker's JSON, an object whose keys are the further files' names.
        names: Names of further files and folders that are not listed.
        replaces_damaged: Whether a directory whose marker is damaged, with no files but `names`, is of this kind.
    """

    marker: str
    listing: str = ""
    names: tuple[str, ...] = ()
    replaces_damaged: bool = False

    def list_others(self, directory: Path) -> list[str] | None:
        """Return the sorted names in a directory that are not this kind's; None if the directory is of another kind."""
        marker = directory / self.marker
        if not marker.is_file():
            return None
        known = {self.marker, *self.names}
        if self.listing:
            listed = self._read_listing(marker)
            if listed is None and not self.replaces_damaged:
                return None
            known.update(Path(name).parts[0] for name in listed or () if name)
        return sorted({entry.name for entry in directory.iterdir()} - known)

    def _read_listing(self, marker: Path) -> dict[str, Any] | None:
        """Return the marker's files by name; None if it is damaged or another program's."""
        try:
            described = json.loads(marker.read_bytes())
        except (OSError, ValueError):
            return None
        listed: Any = described.get(self.listing) if isinstance(described, dict) else None
        return listed if isinstance(listed, dict) else None


def check_replaceable(path: Path, kind: OutputKind | None, inputs: Iterable[Path | str | None] = ()) -> None:
    """Check that a directory may be replaced by an output.

    Args:
        path: The directory; it may be missing.
        kind: What the output is; None if earlier outputs are kept, too.
        inputs: What is read, see `check_apart`.

    Raises:
        UserError: It is a file, has other content, or is, contains or is in an input.
    """
    check_apart(path, inputs)
    expected = "a new or an empty directory" + (f", or one with {kind.marker} to replace" if kind else "")
    if os.path.lexists(path) and not path.is_dir():
        raise UserError(f"{path}: is a file, expected {expected}", hint="Choose another path.")
    if not path.is_dir() or not any(path.iterdir()):
        return
    others = kind.list_others(path) if kind else None
    if others is None:
        raise UserError(
            f"{path}: is a directory with other content, expected {expected}",
            hint="Choose another directory, or remove this one.",
        )
    if others:
        raise UserError(
            f"{path}: has {others[0]!r} beside an earlier output, which would be lost: expected {expected}",
            hint="Move it, or choose another directory.",
        )


def check_output_file(
    path: Path,
    what: str = "",
    is_own: Callable[[Path], bool] | None = None,
    inputs: Iterable[Path | str | None] = (),
) -> None:
    """Check that a file may be replaced by an output.

    Args:
        path: The file; it may be missing.
        what: The output, for messages, such as `a page of this package`.
        is_own: Called with an existing file; whether it is an earlier output. None if earlier outputs are kept, too.
        inputs: What is read, see `check_apart`.

    Raises:
        UserError: It is a directory, has other content, or is, or is in, an input.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected a file")
    check_apart(path, inputs)
    if not os.path.lexists(path):
        return
    if path.is_file() and (not path.stat().st_size or (is_own is not None and is_own(path))):
        return
    raise UserError(
        f"{path}: is a file with other content, expected a new one" + (f", or {what} to replace" if is_own else ""),
        hint="Choose another file, or remove this one.",
    )


def has_mark(path: Path, *marks: str) -> bool:
    """Return whether a file's beginning has one of the texts."""
    with path.open("rb") as file:
        content = file.read(_READ_BYTES)
    return any(mark.encode() in content for mark in marks)


def check_directory(path: Path, inputs: Iterable[Path | str | None] = ()) -> None:
    """Check that files may be written into a directory, whose other content is kept.

    Args:
        path: The directory; it may be missing, contain inputs and be in one.
        inputs: What is read, see `check_apart`.

    Raises:
        UserError: It is a file, or is an input.
    """
    check_apart(path, inputs, may_nest=True)
    if os.path.lexists(path) and not path.is_dir():
        raise UserError(f"{path}: is a file, expected a directory", hint="Choose another path.")


def check_page(path: Path, inputs: Iterable[Path | str | None] = ()) -> None:
    """Check that a file may be replaced by an HTML page of this package; the arguments are `check_output_file`'s."""
    check_output_file(path, "an earlier page", lambda file: has_mark(file, _PAGE_MARK), inputs)


def check_apart(output: Path, inputs: Iterable[Path | str | None], *, may_nest: bool = False) -> None:
    """Check that an output is no input, in none and around none, also by links.

    Args:
        output: Its path.
        inputs: Paths; URIs, names of data sets and whatever else does not exist here are passed over.
        may_nest: Whether the output may contain inputs and be in one, since nothing is replaced.

    Raises:
        UserError: It is, or is in or around, an input.
    """
    written = Path(os.path.realpath(output))
    for given in inputs:
        text = str(given or "").removeprefix("file://")
        if not text or "://" in text or not Path(text).exists():
            continue
        read = Path(os.path.realpath(text))
        if written == read or (not may_nest and (read in written.parents or written in read.parents)):
            relation = "is" if written == read else "is in" if read in written.parents else "contains"
            raise UserError(
                f"{output}: {relation} the input {given}, which would be changed or lost",
                hint="Choose another output, beside the input.",
            )
