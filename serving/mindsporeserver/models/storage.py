"""`--model_dir` resolution: local paths as they are, URIs by KServe's storage library."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.files import digest_file, move_new, remove_directory
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
from mindsporeserver.models.source_import import find_source, import_source, open_cache

# kserve-storage schemes. Not `pvc://`: KServe mounts the volume into the pod instead.
SCHEMES = ("s3", "gs", "hf", "http", "https", "hdfs", "webhdfs", "oci", "modelscope")
_LIBRARY = "kserve_storage"
_EXTRA = "storage"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ARCHIVE = re.compile(r"\.(tar|tgz|tar\.gz|zip)$", re.IGNORECASE)
# KServe sets it to `async` beside a sidecar whose file system has the model.
_INIT_MODE = "MODEL_INIT_MODE"
# The sidecar's image was pulled by an init container; the pod's startup deadline is 600 s.
_SIDECAR_SECONDS = 60.0
_logger = logging.getLogger(__name__)


def resolve_model(uri_or_path: str | Path, cache_dir: Path) -> Path:
    """Return a model's local directory; download it from a URI.

    A downloaded language model that is no bundle is imported. A bundle's digests are verified, and it is moved to a
    directory in `cache_dir` named by the content: several processes can download the same model, and no directory
    changes once it exists. kserve-storage starts processes, so call this before the first thread is started.

    Args:
        uri_or_path: A directory; `file:///directory`; or a URI to a directory or archive (tar, tar.gz, zip) that
            kserve-storage reads, with the environment credentials.
        cache_dir: Download directory; created if missing.

    Returns:
        The directory; a path is returned unchecked. Where MODEL_INIT_MODE is `async`, it is waited for, and copied if
        it lies in another container.

    Raises:
        MissingExtraError: It is a URI and kserve-storage is not installed.
        UserError: The URI is malformed, cannot be downloaded or holds neither a model bundle nor a published
            language model.
        CorruptBundleError: The downloaded files do not have the signature's digests.
    """
    text = str(uri_or_path)
    match = _URI.match(text)
    if match is None:
        path = Path(uri_or_path)
        if os.environ.get(_INIT_MODE) == "async":
            _wait_for_sidecar(path)
            if path.exists() and not _is_own(path):
                return _obtain(lambda directory: shutil.copytree(path, directory), text, path.name, cache_dir)
        return path
    scheme = match[1].lower()
    if scheme == "file":
        return _resolve_file(text)
    if scheme == "pvc":
        raise UserError(
            f"--model_dir: {hide_secrets(text)}: must be a directory, got a volume's URI",
            hint="KServe mounts it into the pod: give storageUri: pvc://… to the InferenceService and "
            "--model_dir=/mnt/models to the server.",
        )
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in ("file", *SCHEMES))
        raise UserError(f"--model_dir: {hide_secrets(text)}: must be a directory or one of {known}, got {scheme}://")
    if importlib.util.find_spec(_LIBRARY) is None:
        raise MissingExtraError("kserve-storage", _EXTRA)
    return _download(text, scheme, cache_dir)


def hide_secrets(uri: str) -> str:
    """Return a URI without user, password, query and fragment, which may hold credentials and signatures."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _wait_for_sidecar(path: Path) -> None:
    """Wait until KServe's sidecar has linked the model of an `oci://` URI; the caller reports a missing directory."""
    deadline = time.monotonic() + _SIDECAR_SECONDS
    if not path.exists():
        _logger.info("waiting for %s, which a sidecar provides", path)
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def _resolve_file(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UserError(f"--model_dir: must be file:///absolute/directory, got {hide_secrets(uri)}")
    return Path(unquote(parts.path))


def _is_own(path: Path) -> bool:
    """Return whether a path's real path is the same file.

    It is not below /proc/PID/root of a process with another root, and MindSpore loads graphs by their real path.
    """
    real = path.resolve()
    return real.exists() and real.samefile(path)


def _download(uri: str, scheme: str, cache_dir: Path) -> Path:
    return _obtain(lambda directory: _fetch(uri, scheme, directory), hide_secrets(uri), _name(uri), cache_dir)


def _obtain(fetch: Callable[[Path], object], shown: str, name: str, cache_dir: Path) -> Path:
    """Fetch a model into a directory of the cache, whose name ends with the content's digest."""
    open_cache(cache_dir, shown)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=cache_dir) as scratch:
        directory = Path(scratch, "model")
        fetch(directory)
        found = _find_model(directory, shown)
        if (source := find_source(found)) is not None:
            return import_source(source, cache_dir, shown=shown)
        ModelBundle.open(found)
        found.chmod(0o755)
        signature = digest_file(found / SIGNATURE_FILE)
        target = cache_dir / f"{name}-{signature[:16]}"
        if target.exists() and not _is_intact(target, signature):
            remove_directory(target)
        try:
            move_new(found, target)
        except FileExistsError:
            # The same content from another process, or an earlier one.
            if not _is_intact(target, signature):
                raise
    _logger.info("%s: stored in %s", shown, target)
    return target


def _fetch(uri: str, scheme: str, directory: Path) -> None:
    """Download to `directory` by kserve-storage.

    Raises:
        UserError: The download failed.
    """
    library = importlib.import_module(_LIBRARY)
    # Objects are listed by prefix: `s3://bucket/model` would download `s3://bucket/model2` too.
    if scheme == "s3" and not uri.endswith("/") and not _ARCHIVE.search(uri):
        uri += "/"
    shown = hide_secrets(uri)
    # Its log lines contain the whole URI.
    was_disabled = library.logger.disabled
    library.logger.disabled = was_disabled or shown != uri
    try:
        library.Storage.download(uri, str(directory))
    except Exception as error:  # noqa: BLE001  kserve-storage 0.21 lets the exceptions of each cloud's library through
        text = str(error).strip().replace(uri, shown)
        if shown != uri and (query := urlsplit(uri).query):
            text = text.replace(query, "…")
        raise UserError(f"--model_dir: {shown}: cannot be downloaded: {text or type(error).__name__}") from None
    finally:
        library.logger.disabled = was_disabled


def _find_model(directory: Path, shown: str) -> Path:
    """Return a download's bundle or published language model: the root, or the only folder that is one."""
    if (directory / SIGNATURE_FILE).is_file() or find_source(directory) is not None:
        return directory
    folders = sorted(file.parent for file in directory.glob(f"*/{SIGNATURE_FILE}"))
    folders = folders or sorted(folder for folder in directory.glob("*/") if find_source(folder) is not None)
    if len(folders) == 1:
        return folders[0]
    entries = ", ".join(sorted(entry.name for entry in directory.iterdir())[:5]) if directory.is_dir() else ""
    raise UserError(
        f"--model_dir: {shown}: must hold one model bundle ({SIGNATURE_FILE} and the files it names), "
        f"found {f'{len(folders)} of them' if folders else entries or 'nothing'}"
    )


def _is_intact(path: Path, signature: str) -> bool:
    """Return whether a directory holds the bundle whose signature file has this digest."""
    try:
        ModelBundle.open(path)
    except UserError:
        return False
    return digest_file(path / SIGNATURE_FILE) == signature


def _name(uri: str) -> str:
    """Return a readable and unique name for a URI's directory."""
    last = _ARCHIVE.sub("", urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    label = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip(".-")[:40] or "model"
    return f"{label}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"
