"""A local directory's copy in an object store, updated while the directory grows."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from kfp_mindspore.stores.artifact_store import ArtifactStore, join_uri
from kfp_mindspore.stores.commit import (
    get_directories,
    get_directory,
    is_marker,
    list_complete,
    order_deletions,
    plan_upload,
)

Stamp = tuple[int, int]


class ArtifactMirror:
    """Uploads a directory's complete files and deletes deleted files' objects.

    It follows the protocol in `stores.commit`. A directory with a marker appears at once under the name
    (`files.replace_directory`). Any other file is complete when the size and time are those at the previous call. Names
    that start with a dot are temporary.

    Args:
        store: The store.
        path: A directory, or one file; may not exist yet.
        uri: The URI.
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
            only: Relative names of append-only files to upload at any length; nothing else is uploaded or deleted.

        Raises:
            StoreError: The store cannot be reached or denies the request. The next call continues.
        """
        present = self._list_files()
        if only:
            for name in only:
                if name in present and self._uploaded.get(name) != present[name]:
                    self._upload(name, present[name])
            return
        directories = get_directories(present)
        complete = {
            name: stamp
            for name, stamp in present.items()
            if final or directories[name] or self._seen.get(name) == stamp
        }
        self._seen = present
        changed = {name for name, stamp in complete.items() if self._uploaded.get(name) != stamp}
        failed: set[str] = set()
        for operation in plan_upload(changed, self._uploaded, present):
            name = operation.name
            if operation.kind == "delete":
                self._delete(name)
            elif is_marker(name) and get_directory(name) in failed:
                continue
            elif not self._upload(name, present[name]):
                failed |= operation.directories

    def delete(self) -> None:
        """Delete all objects below the URI, descriptions first."""
        for name in order_deletions(self._uploaded):
            self._delete(name)

    def _list_files(self) -> dict[str, Stamp]:
        if self._path.is_file():
            return {"": _get_stamp(self._path)}
        found = {}
        # Unlike Path.rglob, os.walk passes over a directory that was renamed since it was listed, as a checkpoint's is.
        for folder, folders, names in os.walk(self._path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                file = Path(folder, name)
                try:
                    if file.is_file() and not name.startswith("."):
                        found[file.relative_to(self._path).as_posix()] = _get_stamp(file)
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
        self._store.delete(join_uri(self._uri, name))
        del self._uploaded[name]


def restore(store: ArtifactStore, uri: str, path: Path) -> ArtifactMirror:
    """Download a mirrored directory and return the mirror; a checkpoint without a description is omitted.

    Raises:
        StoreError: The store cannot be reached or denies the request.
    """
    names = list(store.list_files(uri))
    complete = [name for name in list_complete(names) if name]
    if complete:
        store.download(uri, path, complete)
    path.mkdir(parents=True, exist_ok=True)
    mirror = ArtifactMirror(store, path, uri, names)
    mirror.adopt(complete)
    return mirror


def _get_stamp(file: Path) -> Stamp:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
