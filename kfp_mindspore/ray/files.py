"""A source's files as Ray Data reads them: on this machine's disk, or in an object store without a download."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow
import ray
from pyarrow import csv

from kfp_mindspore.data.fetch import fetch_source, raise_errors
from kfp_mindspore.data.sources.delimiters import resolve_delimiter
from kfp_mindspore.data.sources.formats import recognise_format, recognise_names
from kfp_mindspore.data.sources.images import SUFFIXES
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.dataset import SPLITS
from kfp_mindspore.stores.artifact_store import PROTOCOLS, ArtifactStore
from kfp_mindspore.stores.config import open_source

_FORMATS = {"parquet": (".parquet", ".pq"), "csv": (".csv",), "jsonl": (".jsonl", ".ndjson"), "images": SUFFIXES}
_HINT = "Engine ray reads a path or a URI such as s3://…; named data sets are for engine memory."
# s3fs's arguments, which a worker would read from its own node's environment.
_CREDENTIALS = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL",
}


@dataclass(frozen=True)
class SourceFiles:
    """A source's files.

    Args:
        name: The source's name, for messages.
        kind: Their format.
        paths: Their paths in the file system, in order.
        has_splits: Whether the paths of image files name the splits.
        filesystem: pyarrow's file system; None for the disk.
    """

    name: str
    kind: str
    paths: Sequence[str]
    has_splits: bool = False
    filesystem: Any = None

    def open(self, seed: int, delimiter: str = "", texts: Iterable[str] = ()) -> Callable[[], Any]:
        """Return a function that returns a Ray dataset with the source's rows from its start.

        Args:
            seed: Seed for the image order.
            delimiter: Between two cells in CSV files; empty for the comma.
            texts: CSV fields that are read as texts.
        """
        data: Any = ray.data
        if self.kind == "images":
            # Neighbours would be of one class.
            order = np.random.default_rng(seed).permutation(len(self.paths))
            shuffled = [self.paths[index] for index in order]
            return lambda: data.read_binary_files(shuffled, include_paths=True, filesystem=self.filesystem)
        read = {"parquet": data.read_parquet, "csv": data.read_csv, "jsonl": data.read_json}[self.kind]
        options: dict[str, Any] = {"lines": True} if self.kind == "jsonl" else {}
        if self.kind == "csv":
            # An object's content is not read here.
            found = delimiter or ("," if self.filesystem is not None else "")
            options["parse_options"] = csv.ParseOptions(delimiter=resolve_delimiter(Path(self.paths[0]), found))
            kinds = dict.fromkeys(texts, pyarrow.string())
            options["convert_options"] = csv.ConvertOptions(column_types=kinds)
        return lambda: read(list(self.paths), filesystem=self.filesystem, **options)


@contextmanager
def list_source(source: str, kind: str = "") -> Iterator[SourceFiles]:
    """Yield a source's files; a web server's are downloaded, and removed after the block.

    Args:
        source: A path or fsspec URI.
        kind: Their format; empty to recognise it.

    Raises:
        NotFoundError: There is no such source.
        UserError: It cannot be read, or its format is unknown or not one of Ray's.
    """
    scheme, mark, _ = source.partition("://")
    if mark and scheme in PROTOCOLS:
        access = open_source(source)
        with raise_errors(source, access):
            names = list(access.store.list_files(source))
            if not names:
                raise NotFoundError(f"{source}: nothing there")
            filesystem, root = open_filesystem(access.store, source)
        name = PurePosixPath(root).name
        yield _select(name, kind or recognise_names(name, names), root, names, filesystem)
        return
    with fetch_source(source, hint=_HINT) as path:
        kind = kind or recognise_format(path)
        files = [file for file in path.rglob("*") if file.is_file()]
        names = [file.relative_to(path).as_posix() for file in files] if path.is_dir() else [""]
        yield _select(path.name, kind, str(path), names)


def open_filesystem(store: ArtifactStore, uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a URI, and the path in it.

    Ray sends it to its workers, whose nodes need no credentials: the store's, or this process's, are in it.

    Args:
        store: The store.
        uri: The URI.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    system, path = store.open(uri)
    if PROTOCOLS[uri.partition("://")[0]] == "s3" and "key" not in system.storage_options:
        found = {name: os.environ[variable] for name, variable in _CREDENTIALS.items() if os.environ.get(variable)}
        system = type(system)(**{**found, **system.storage_options})
    return PyFileSystem(FSSpecHandler(system)), path


def _select(name: str, kind: str, root: str, names: list[str], filesystem: Any = None) -> SourceFiles:
    """Return the files with the format's suffixes, or the only one."""
    if kind not in _FORMATS:
        raise UserError(
            f"{name}: engine ray reads {', '.join(_FORMATS)}, got {kind}", hint="Load it with engine memory."
        )
    if names == [""] and kind != "images":
        return SourceFiles(name, kind, [root], filesystem=filesystem)
    found = sorted(
        (path for path in map(PurePosixPath, names) if path.suffix.lower() in _FORMATS[kind]), key=_get_order
    )
    if kind == "images":
        found = [path for path in found if len(path.parts) > 1 and not path.name.startswith(".")]
    if not found:
        expected = "images in class folders" if kind == "images" else f"files {', '.join(_FORMATS[kind])}"
        raise UserError(f"{name}: has no {expected}")
    has_splits = kind == "images" and {path.parts[0] for path in found} <= set(SPLITS)
    return SourceFiles(name, kind, [f"{root}/{path}" for path in found], has_splits, filesystem)


def _get_order(path: PurePosixPath) -> tuple[PurePosixPath, str]:
    return path.parent, path.name
