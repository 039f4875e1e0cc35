"""Local paths for sources: paths as they are, URIs by fsspec."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError, NotFoundError, UserError
from kfp_mindspore.stores.artifact_store import LIBRARIES, StoreError
from kfp_mindspore.stores.config import StoreAccess, open_source


@contextmanager
def fetch_source(uri: str, *, hint: str = "") -> Iterator[Path]:
    """Yield a local path for a path or URI; a download is removed after the block.

    Args:
        uri: A path, or a URI that fsspec reads: s3://, minio://, gs://, http://, https://, file://.
        hint: Next step when there is no such path.

    Raises:
        NotFoundError: There is nothing.
        UserError: It cannot be read; the message has the reason and where credentials were looked for.
        KfpMindSporeError: Its server cannot be reached.
    """
    if "://" not in uri:
        yield resolve_path(uri, hint=hint)
        return
    access = open_source(uri)
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-dataset-") as temporary:
        # Without a URL's query, so that the suffix is the format's.
        local = Path(temporary, uri.partition("?")[0].rstrip("/").rpartition("/")[2] or "dataset")
        with raise_errors(uri, access):
            # A web server lists nothing.
            access.store.download(uri, local, [""] if uri.startswith("http") else None)
        yield local


def resolve_path(path: str, *, hint: str = "") -> Path:
    """Return an existing path.

    Args:
        path: The path; `~` is the home directory.
        hint: Next step when there is no such path.

    Raises:
        NotFoundError: There is no such path.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise NotFoundError(f"{path}: neither a named data set nor an existing path", hint=hint)
    return found


def check_uri(uri: str, access: StoreAccess) -> None:
    """Check that a URI exists and can be read, without its content.

    Args:
        uri: The URI.
        access: How it is opened.

    Raises:
        NotFoundError: There is nothing.
        UserError: It cannot be read; the message has the reason and where credentials were looked for.
        KfpMindSporeError: Its server cannot be reached.
    """
    with raise_errors(uri, access):
        access.store.check(uri)


@contextlib.contextmanager
def raise_errors(uri: str, access: StoreAccess) -> Iterator[None]:
    """Convert a block's StoreError for a URI as `check_uri` has them.

    Args:
        uri: The URI.
        access: How it is opened.
    """
    try:
        yield
    except StoreError as error:
        if error.kind == "missing":
            raise NotFoundError(f"{uri}: nothing there") from None
        if error.kind == "denied":
            raise UserError(f"{error}; credentials: {access.credentials}", hint=access.hint) from None
        library = LIBRARIES.get(uri.partition("://")[0])
        if error.kind == "unsupported" and library is not None:
            raise MissingExtraError(*library) from None
        raise (KfpMindSporeError if error.retryable else UserError)(str(error)) from None
