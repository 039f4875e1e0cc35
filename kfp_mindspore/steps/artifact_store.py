"""Files of artifacts in object stores, read and written by fsspec.

The pods of a job import this module: it uses the standard library and fsspec only.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# JSON list of `Store`; the values of its secrets are in variables that start with SECRET_PREFIX.
STORES_VARIABLE = "KFP_MINDSPORE_STORES"
SECRET_PREFIX = "KFP_MINDSPORE_STORE_"
# Schemes of KFP's pipeline roots, and fsspec's protocols for them.
PROTOCOLS = {"s3": "s3", "minio": "s3", "gs": "gcs"}
_EXTRAS = {"s3": "artifacts", "gcs": "gcs"}
_PERMANENT = (FileNotFoundError, PermissionError, ImportError, ValueError)


class StoreError(Exception):
    """A failed request to an object store.

    Args:
        message: One sentence with the URI and the reason.
        retryable: Whether the same request can succeed later.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True)
class Store:
    """Access to the objects below a prefix.

    Args:
        prefix: URI that ends with `/`, such as `s3://bucket/`.
        options: Keyword arguments of the fsspec file system, without secrets.
        secrets: Further keyword arguments by name: the environment variable with the value. `token` is JSON.
    """

    prefix: str
    options: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


def dump_stores(stores: Sequence[Store]) -> str:
    """Return the value of STORES_VARIABLE."""
    return json.dumps([asdict(store) for store in stores], sort_keys=True)


def join_uri(uri: str, name: str) -> str:
    """Return the URI of a file below a URI; an empty name is the URI itself."""
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
        """Return the stores of STORES_VARIABLE."""
        stores = [Store(**entry) for entry in json.loads(environment.get(STORES_VARIABLE) or "[]")]
        return cls(stores, environment)

    def list_files(self, uri: str) -> dict[str, int]:
        """Return the sizes in bytes of the files below a URI by relative name; "" is an object at the URI itself.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("listed", uri):
            system, root = self._open(uri)
            found = system.find(root, detail=True)
        names = {}
        for path, info in found.items():
            name = path[len(root) :].lstrip("/")
            if info.get("type") == "directory" or path.endswith("/"):
                continue
            if ".." in name.split("/"):
                raise StoreError(f"{uri}: the object {path!r} has '..' in its key", retryable=False)
            names[name] = int(info["size"] or 0)
        return names

    def download(self, uri: str, path: Path, names: Sequence[str] | None = None) -> int:
        """Download a file or a directory; `path` appears once it is complete and replaces an existing one.

        Args:
            uri: The file, or the prefix of the directory.
            path: Where it is written.
            names: Relative names to download; None for all.

        Returns:
            The number of files.

        Raises:
            StoreError: There is no such object, or the store cannot be reached or denies the request.
        """
        if names is None:
            names = list(self.list_files(uri))
            if not names:
                raise StoreError(f"{uri} cannot be read: no such object", retryable=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
        target = temporary / path.name
        try:
            with _explain_errors("read", uri):
                system, root = self._open(uri)
                if names == [""]:
                    system.get_file(root, str(target))
                else:
                    target.mkdir()
                    local = [str(target / name) for name in names]
                    for folder in {os.path.dirname(name) for name in local}:  # noqa: PTH120
                        Path(folder).mkdir(parents=True, exist_ok=True)
                    system.get([posixpath.join(root, name) for name in names], local)
            if path.is_dir():
                shutil.rmtree(path)
            target.replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return len(names)

    def upload(self, path: Path, uri: str) -> None:
        """Upload a file; the object is replaced at once.

        Raises:
            FileNotFoundError: The local file does not exist any more.
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("written", uri, local=path):
            system, target = self._open(uri)
            system.put_file(str(path), target)

    def delete(self, uri: str) -> None:
        """Delete an object; a missing one is no error.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("deleted", uri):
            system, target = self._open(uri)
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(target)

    def read_bytes(self, uri: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        with _explain_errors("read", uri):
            system, target = self._open(uri)
            try:
                return bytes(system.cat_file(target))
            except FileNotFoundError:
                return None

    def _open(self, uri: str) -> tuple[Any, str]:
        import fsspec

        scheme, _, path = uri.partition("://")
        protocol = PROTOCOLS.get(scheme)
        if protocol is None:
            raise ValueError(f"expected a URI with one of {', '.join(PROTOCOLS)}")
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
    """Convert errors of the file systems' libraries to a StoreError."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # boto, aiohttp and google-cloud raise errors of their own, without a common base
        if local is not None and not local.exists():
            raise FileNotFoundError(str(local)) from error
        reason = " ".join(str(error).split()) or type(error).__name__
        retryable = not isinstance(error, _PERMANENT) and type(error).__name__ != "NoCredentialsError"
        if isinstance(error, ImportError):
            extra = _EXTRAS[PROTOCOLS[uri.partition("://")[0]]]
            reason += f"; the image of the job needs kfp-mindspore[{extra}]"
        raise StoreError(f"{uri} cannot be {verb}: {reason}", retryable=retryable) from error
