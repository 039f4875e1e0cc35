"""Local paths of sources: paths as they are, URIs by fsspec."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kfp_mindspore.errors import NotFoundError, UserError


@contextmanager
def fetch_source(uri: str, *, hint: str = "") -> Iterator[Path]:
    """Yield a local path for a path or URI; a download is removed after the block.

    Args:
        uri: A path, or a URI that fsspec reads: s3://, gs://, http://, https://, file://.
        hint: Next step when there is no such path.

    Raises:
        NotFoundError: There is nothing.
        UserError: It cannot be read.
    """
    if "://" not in uri:
        path = Path(uri).expanduser()
        if not path.exists():
            raise NotFoundError(f"{uri}: neither a named data set nor an existing path", hint=hint)
        yield path
        return
    from fsspec.core import url_to_fs

    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-dataset-") as temporary:
        # Without the query of a URL, so that the suffix is the format's.
        local = Path(temporary, uri.partition("?")[0].rstrip("/").rpartition("/")[2] or "dataset")
        try:
            filesystem, remote = url_to_fs(uri)
            if not uri.startswith("http") and filesystem.isdir(remote):
                filesystem.get(remote.rstrip("/") + "/", f"{local}/", recursive=True)
            else:
                filesystem.get_file(remote, str(local))
        except FileNotFoundError:
            raise NotFoundError(f"{uri}: nothing there") from None
        except ImportError as error:
            raise UserError(
                f"{uri}: cannot be read ({error})",
                hint="s3 needs kfp-mindspore[artifacts], gs kfp-mindspore[gcs], http kfp-mindspore[data].",
            ) from None
        except (OSError, ValueError) as error:
            raise UserError(f"{uri}: cannot be read ({error})") from error
        yield local
