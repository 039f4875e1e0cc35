"""Files behind URIs, read and written by fsspec with their store's credentials.

A job's pods import this module: apart from the standard library it needs fsspec only.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kfp_mindspore import files

# `Store` list as JSON; its secret values are in variables that start with SECRET_PREFIX.
STORES_VARIABLE = "KFP_MINDSPORE_STORES"
SECRET_PREFIX = "KFP_MINDSPORE_STORE_"
# KFP pipeline root schemes, and fsspec's protocols for them.
PROTOCOLS = {"s3": "s3", "minio": "s3", "gs": "gcs"}
# Import name and extra for fsspec's implementations.
LIBRARIES = {
    "s3": ("s3fs", "artifacts"),
    "minio": ("s3fs", "artifacts"),
    "gs": ("gcsfs", "gcs"),
    "http": ("aiohttp", "data"),
    "https": ("aiohttp", "data"),
}
_EXPECTED = f"expected a URI with one of {', '.join(LIBRARIES)}"
Kind = Literal["missing", "denied", "unsupported", "invalid", "unavailable"]
# boto and google-auth errors without a common base.
_CREDENTIAL_ERRORS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
_DENIED_STATUSES = (401, 403)
# Request timeout, too early, too many requests.
_RETRYABLE_STATUSES = (408, 425, 429)


class StoreError(Exception):
    """A failed request to a store.

    Args:
        message: One sentence with the URI and the reason.
        kind: `missing` (no such object), `denied` (by the store, or without credentials), `unsupported` (fsspec's
            implementation is not installed), `invalid` (any other refusal) or `unavailable`.
    """

    def __init__(self, message: str, *, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def retryable(self) -> bool:
        """Return whether the same request can succeed later."""
        return self.kind == "unavailable"


@dataclass(frozen=True)
class Store:
    """Access to the objects below a prefix.

    Args:
        prefix: URI that ends with `/`, such as `s3://bucket/`.
        options: Keyword arguments for the fsspec file system, without secrets.
        secrets: Further keyword arguments by name: the environment variable with the value. `token` is JSON.
    """

    prefix: str
    options: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


def dump_stores(stores: Sequence[Store]) -> str:
    """Return the STORES_VARIABLE value."""
    return json.dumps([asdict(store) for store in stores], sort_keys=True)


def join_uri(uri: str, name: str) -> str:
    """Return the URI for a file below a URI; an empty name is the URI itself."""
    return f"{uri.rstrip('/')}/{name}" if name else uri


class ArtifactStore:
    """Reads and writes the files below URIs.

    Args:
        stores: The stores by prefix; the longest matching prefix is used.
        environment: Environment variables with the secrets.
    """

    def __init__(self, stores: Sequence[Store], environment: Mapping[str, str]) -> None:
        self._stores = sorted(stores, key=lambda store: len(store.prefix), reverse=True)
        self._environment = environment

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ArtifactStore:
        """Return the stores in STORES_VARIABLE."""
        stores = [Store(**entry) for entry in json.loads(environment.get(STORES_VARIABLE) or "[]")]
        return cls(stores, environment)

    def list_files(self, uri: str) -> dict[str, int]:
        """Return file sizes in bytes below a URI by relative name; "" is an object at the URI itself.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("listed", uri):
            return self._find(uri)

    def _find(self, uri: str) -> dict[str, int]:
        system, root = self.open(uri)
        found = system.find(root, detail=True)
        names = {}
        for path, info in found.items():
            name = path[len(root) :].lstrip("/")
            if info.get("type") == "directory" or path.endswith("/"):
                continue
            if ".." in name.split("/"):
                raise StoreError(f"{uri}: the object {path!r} has '..' in its key", kind="invalid")
            names[name] = int(info["size"] or 0)
        return names

    def download(self, uri: str, path: Path, names: Sequence[str] | None = None) -> int:
        """Download a file or a directory; `path` appears once it is complete and replaces an existing one.

        Args:
            uri: The file, or the directory's prefix.
            path: Where it is written.
            names: Relative names to download; None for all.

        Returns:
            The file count.

        Raises:
            StoreError: There is no such object, or the store cannot be reached or denies the request.
        """
        if names is None:
            with _explain_errors("read", uri):
                names = list(self._find(uri))
            if not names:
                raise StoreError(f"{uri} cannot be read: no such object", kind="missing")
        with files.replace_path(path) as target, _explain_errors("read", uri):
            system, root = self.open(uri)
            if names == [""]:
                system.get_file(root, str(target))
            else:
                target.mkdir()
                local = [target / name for name in names]
                for folder in {file.parent for file in local}:
                    folder.mkdir(parents=True, exist_ok=True)
                system.get([posixpath.join(root, name) for name in names], [str(file) for file in local])
        return len(names)

    def check(self, uri: str) -> None:
        """Check that a file or directory exists and can be read, without the content.

        Raises:
            StoreError: There is no such object, or the store cannot be reached or denies the request.
        """
        with _explain_errors("read", uri):
            system, path = self.open(uri)
            system.info(path)

    def upload(self, path: Path, uri: str) -> None:
        """Upload a file; the object is replaced at once.

        Raises:
            FileNotFoundError: The local file does not exist any more.
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("written", uri, local=path):
            system, target = self.open(uri)
            system.put_file(str(path), target)

    def copy(self, source: str, target: str, *, without: str = "") -> None:
        """Copy the files below a URI in their store, without a download; a missing one is no error.

        Args:
            source: URI.
            target: URI in the same store.
            without: Name of a folder that is left out.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        names = [name for name in self.list_files(source) if not (without and name.startswith(f"{without}/"))]
        with _explain_errors("copied", source):
            system, root = self.open(source)
            _, folder = self.open(target)
            if names:
                system.copy(
                    [posixpath.join(root, name) for name in names], [posixpath.join(folder, name) for name in names]
                )

    def delete(self, uri: str) -> None:
        """Delete an object; a missing one is no error.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("deleted", uri):
            system, target = self.open(uri)
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(target)

    def read_bytes(self, uri: str) -> bytes | None:
        """Return an object's content, or None if it does not exist.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("read", uri):
            system, target = self.open(uri)
            try:
                return bytes(system.cat_file(target))
            except FileNotFoundError:
                return None

    def write_bytes(self, uri: str, content: bytes) -> None:
        """Write an object.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("written", uri):
            system, target = self.open(uri)
            system.pipe_file(target, content)

    def open(self, uri: str) -> tuple[Any, str]:
        """Return the fsspec file system for a URI, with the store's credentials, and the path in it.

        Raises:
            PermissionError: A secret's environment variable is not set.
            ImportError: fsspec's implementation is not installed.
            ValueError: fsspec does not know the scheme.
        """
        import fsspec
        from fsspec.core import url_to_fs

        scheme, _, path = uri.partition("://")
        protocol = PROTOCOLS.get(scheme)
        if protocol is None:
            system, path = url_to_fs(uri, use_listings_cache=False)
            return system, str(path)
        store = next((store for store in self._stores if uri.startswith(store.prefix)), Store(uri))
        options = dict(store.options)
        for name, variable in store.secrets.items():
            value = self._environment.get(variable)
            if not value:
                raise PermissionError(f"{variable} is not set")
            options[name] = json.loads(value) if name == "token" else value
        return fsspec.filesystem(protocol, use_listings_cache=False, **options), path.rstrip("/")


@contextlib.contextmanager
def _explain_errors(verb: str, uri: str, local: Path | None = None) -> Iterator[None]:
    """Convert the file system libraries' errors to a StoreError.

    Args:
        verb: Participle for the message, such as `read`.
        uri: The URI for the block's requests.
        local: Local file that the block reads; FileNotFoundError is raised where it is gone.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # boto, aiohttp and google-cloud raise their own errors, without a common base
        if local is not None and not local.exists():
            raise FileNotFoundError(str(local)) from error
        kind, status = _classify(error)
        reason = " ".join(str(error).split()) or type(error).__name__
        if status:
            reason = f"{status} {getattr(error, 'message', '')}".strip()
        if kind == "unsupported":
            library = LIBRARIES.get(uri.partition("://")[0])
            needed = f"the image of the job needs kfp-mindspore[{library[1]}]" if library else _EXPECTED
            reason += f"; {needed}"
        raise StoreError(f"{uri} cannot be {verb}: {reason}", kind=kind) from error


def _classify(error: Exception) -> tuple[Kind, int]:
    """Return an error's kind, and the HTTP status that aiohttp has in it; 0 without one."""
    status = getattr(error, "status", 0)
    if not isinstance(status, int):
        status = 0
    if isinstance(error, FileNotFoundError):
        return "missing", 0
    if isinstance(error, ImportError):
        return "unsupported", 0
    if isinstance(error, PermissionError) or type(error).__name__ in _CREDENTIAL_ERRORS or status in _DENIED_STATUSES:
        return "denied", status
    if isinstance(error, ValueError) or (400 <= status < 500 and status not in _RETRYABLE_STATUSES):
        return "invalid", status
    return "unavailable", status
