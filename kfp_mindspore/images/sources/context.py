"""The build context: sorted source files with normalised modes, without times and owners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import BinaryIO

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.sources.entry import ContextEntry
from kfp_mindspore.images.sources.layer import Layer


class BuildContext:
    """Source files, sorted by path.

    Args:
        entries: Files and links in any order.
        requirements: pip requirements named by the sources, such as a notebook's `%pip install` lines.
        command: Command that runs the sources, such as `("python", "train.py")`; empty when unknown.
        notes: How the sources were collected, such as the local modules that were included, one sentence each.

    Raises:
        UserError: Two entries have the same path, or one is both a file and a folder.
    """

    def __init__(
        self,
        entries: Iterable[ContextEntry],
        *,
        requirements: Iterable[str] = (),
        command: Iterable[str] = (),
        notes: Iterable[str] = (),
    ) -> None:
        self.entries: tuple[ContextEntry, ...] = tuple(sorted(entries, key=lambda entry: entry.path.encode()))
        self.requirements = tuple(requirements)
        self.command = tuple(command)
        self.notes = tuple(notes)
        self._layers = lru_cache(maxsize=None)(lambda prefix: Layer(self.entries, prefix))
        _refuse_conflicts(self.entries)

    @property
    def size_bytes(self) -> int:
        """Total file bytes."""
        return sum(entry.size for entry in self.entries)

    def layer(self, prefix: str = "") -> Layer:
        """Return the tar of the sources below a folder; its digest is computed once."""
        return self._layers(prefix)

    def write_tar(self, file: BinaryIO, *, prefix: str, extra: Iterable[ContextEntry] = ()) -> None:
        """Write a tar in constant memory.

        Args:
            file: Where to.
            prefix: The sources' folder in the tar.
            extra: Further entries at the tar's root, such as the Containerfile.
        """
        moved = [replace(entry, path=f"{prefix}/{entry.path}") for entry in self.entries]
        for chunk in Layer([*moved, *extra]).read():
            file.write(chunk)


def _refuse_conflicts(entries: tuple[ContextEntry, ...]) -> None:
    paths: set[str] = set()
    for entry in entries:
        if entry.path in paths:
            raise UserError(f"{entry.path}: is in the sources twice")
        paths.add(entry.path)
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent:
            if parent in paths:
                raise UserError(f"{parent}: is a file, and a folder for {path}")
            parent = parent.rpartition("/")[0]
