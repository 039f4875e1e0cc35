"""The commit protocol of directories in object stores.

Object stores replace single objects only. A directory with a marker file is complete exactly while the marker exists:
the marker is deleted before another of the files changes, and uploaded after all of them. After any prefix of these
operations a reader finds the old directory, the new one or none, never a mixture. Directories that change are
committed before others are deleted, so that a writer that ends in between leaves a checkpoint.

The pods of a job import this module: it uses the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

# The descriptions of a checkpoint, a dataset and a model bundle in kfp_mindspore.formats.
CHECKPOINT_MARKER = "checkpoint.json"
MARKERS = frozenset({CHECKPOINT_MARKER, "dataset.json", "signature.json"})
_CHECKPOINT = re.compile(r"\d{5,}-\d+")


@dataclass(frozen=True)
class Operation:
    """One request to a store.

    Args:
        kind: The request.
        name: The object's relative name.
        directories: The directories with markers that contain it, by relative name.
    """

    kind: Literal["upload", "delete"]
    name: str
    directories: frozenset[str]


def is_marker(name: str) -> bool:
    """Return whether a file marks the directory as complete."""
    return name.rpartition("/")[2] in MARKERS


def get_directory(name: str) -> str:
    """Return a file's directory; empty for the root."""
    return name.rpartition("/")[0]


def is_checkpoint_name(name: str) -> bool:
    """Return whether a directory's name has the form `<epochs done, 5 digits>-<steps done>`."""
    return _CHECKPOINT.fullmatch(name) is not None


def get_directories(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return for each file the directories with markers that contain it."""
    names = list(names)
    marked = {get_directory(name) for name in names if is_marker(name)}
    return {name: frozenset(folder for folder in _list_ancestors(name) if folder in marked) for name in names}


def list_complete(names: Collection[str]) -> list[str]:
    """Return the names without those of checkpoints that have no marker: their upload was interrupted."""
    tops = {name: name.partition("/")[0] for name in names}
    return [name for name in names if not is_checkpoint_name(tops[name]) or f"{tops[name]}/{CHECKPOINT_MARKER}" in tops]


def plan_upload(changed: Collection[str], stored: Collection[str], present: Collection[str]) -> list[Operation]:
    """Return the operations after which the store has the local files.

    Args:
        changed: Names of the files to upload.
        stored: Names of the objects in the store.
        present: Names of all local files; other objects are deleted.
    """
    directories = get_directories({*stored, *present})
    kept = {directory for name in present for directory in directories[name]}
    removed = {name for name in stored if name not in present}
    touched = {directory for name in {*changed, *removed} for directory in directories[name]}
    markers = {name for name in directories if is_marker(name) and get_directory(name) in touched & kept}
    obsolete = {name for name in removed - markers if directories[name] & kept}
    operations: list[tuple[Literal["upload", "delete"], str]] = []
    # One outermost directory after another, each committed before the next begins.
    groups: dict[str, set[str]] = {}
    for name in sorted({*changed, *markers, *obsolete}):
        groups.setdefault(min(directories[name], default=""), set()).add(name)
    for _, group in sorted(groups.items()):
        marked = sorted(group & markers, key=_get_depth)
        # An outer directory is incomplete as long as one within it is.
        operations += [("delete", name) for name in marked if name in stored]
        operations += [("upload", name) for name in sorted(group - markers - obsolete)]
        operations += [("delete", name) for name in order_deletions(group & obsolete)]
        operations += [("upload", name) for name in reversed(marked) if name in present]
    operations += [("delete", name) for name in order_deletions(removed - markers - obsolete)]
    return [Operation(kind, name, directories[name]) for kind, name in operations]


def order_deletions(names: Iterable[str]) -> list[str]:
    """Return names in the order in which their objects are deleted: markers first, outer before inner ones."""
    return sorted(names, key=lambda name: (not is_marker(name), *_get_depth(name)))


def _get_depth(name: str) -> tuple[int, str]:
    return name.count("/"), name


def _list_ancestors(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(len(parts) + 1)]
