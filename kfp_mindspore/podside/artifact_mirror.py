"""A local directory's copy in an object store, updated while the directory grows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from kfp_mindspore.stores.artifact_store import ArtifactStore, join_uri

# As in formats/checkpoint.py, which cannot be imported without NumPy.
DESCRIPTION = "checkpoint.json"
_CHECKPOINT = re.compile(r"\d{5,}-\d+")

Stamp = tuple[int, int]


class ArtifactMirror:
    """Uploads a directory's complete files and deletes deleted files' objects.

    A checkpoint's description is its commit: it is deleted before a checkpoint file changes and uploaded after all its
    files, so that a store reader never finds a description with incomplete files. A checkpoint directory appears at
    once under its name (`formats.checkpoint.write_checkpoint`). Any other file is complete when its size and time equal
    the previous call's. Names that start with a dot are temporary.

    Args:
        store: The store.
        path: A directory, or one file; may not exist yet.
        uri: Its URI.
        names: Object names that exist below the URI.
    """

    def __init__(self, store: ArtifactStore, path: Path, uri: str, names: Iterable[str] = ()) -> None:
        self._store = store
        self._path = path
        self._uri = uri
        self._uploaded: dict[str, Stamp | None] = dict.fromkeys(names)
        self._seen: dict[str, Stamp] = {}

    def adopt(self, names: Iterable[str]) -> None:
        """Record files as uploaded that were downloaded from the URI."""
        present = self._list_files()
        self._uploaded.update({name: present[name] for name in names})

    def sync(self, *, final: bool = False, only: Collection[str] = ()) -> None:
        """Upload new and changed files.

        Args:
            final: Also upload files that may be incomplete, because no process writes them any more.
            only: Append-only files' relative names to upload at any length; nothing else is uploaded or deleted.

        Raises:
            StoreError: The store cannot be reached or denies the request. The next call continues.
        """
        present = self._list_files()
        if only:
            for name in only:
                if name in present and self._uploaded.get(name) != present[name]:
                    self._upload(name, present[name])
            return
        described = {_get_folder(name) for name in present if _is_description(name)}
        complete = {
            name: stamp
            for name, stamp in present.items()
            if final or _get_folder(name) in described or self._seen.get(name) == stamp
        }
        self._seen = present
        changed = {name for name, stamp in complete.items() if self._uploaded.get(name) != stamp}
        removed = set(self._uploaded) - set(present)
        touched = {_get_folder(name) for name in changed | removed}
        for name in sorted(self._uploaded):
            if _is_description(name) and _get_folder(name) in touched:
                self._delete(name)
                if name in complete:
                    changed.add(name)
        failed = set()
        for name in sorted(changed, key=lambda name: (_get_folder(name), _is_description(name), name)):
            if _is_description(name) and _get_folder(name) in failed:
                continue
            if not self._upload(name, complete[name]):
                failed.add(_get_folder(name))
        for name in sorted(removed):
            self._delete(name)

    def delete(self) -> None:
        """Delete all objects below the URI, descriptions first."""
        for name in sorted(self._uploaded, key=lambda name: not _is_description(name)):
            self._delete(name)

    def _list_files(self) -> dict[str, Stamp]:
        if self._path.is_file():
            return {"": _get_stamp(self._path)}
        found = {}
        for file in sorted(self._path.rglob("*")) if self._path.is_dir() else ():
            relative = file.relative_to(self._path)
            try:
                if file.is_file() and not any(part.startswith(".") for part in relative.parts):
                    found[relative.as_posix()] = _get_stamp(file)
            except FileNotFoundError:
                continue  # deleted since it was listed
        return found

    def _upload(self, name: str, stamp: Stamp) -> bool:
        """Upload a file; return False if it was deleted in the meantime."""
        try:
            self._store.upload(self._path / name if name else self._path, join_uri(self._uri, name))
        except FileNotFoundError:
            return False
        self._uploaded[name] = stamp
        return True

    def _delete(self, name: str) -> None:
        if name in self._uploaded:
            self._store.delete(join_uri(self._uri, name))
            del self._uploaded[name]


def restore(store: ArtifactStore, uri: str, path: Path) -> ArtifactMirror:
    """Download a mirrored directory and return its mirror; a checkpoint without a description is omitted.

    Raises:
        StoreError: The store cannot be reached or denies the request.
    """
    names = list(store.list_files(uri))
    described = {_get_folder(name) for name in names if _is_description(name)}
    complete = [
        name
        for name in names
        if name and (_get_folder(name) in described or not _CHECKPOINT.fullmatch(name.split("/")[0]))
    ]
    if complete:
        store.download(uri, path, complete)
    path.mkdir(parents=True, exist_ok=True)
    mirror = ArtifactMirror(store, path, uri, names)
    mirror.adopt(complete)
    return mirror


def _get_folder(name: str) -> str:
    return name.rpartition("/")[0]


def _is_description(name: str) -> bool:
    return name.rpartition("/")[2] == DESCRIPTION


def _get_stamp(file: Path) -> Stamp:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
