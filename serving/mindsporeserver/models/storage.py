"""From what `--model_dir` says to a bundle on this machine: paths as they are, URIs through KServe's own downloader."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.files import digest_file
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle

# What kserve-storage downloads. `pvc://` is not among them: KServe mounts the volume into the pod instead.
SCHEMES = ("s3", "gs", "hf", "http", "https", "hdfs", "webhdfs", "oci", "modelscope")
_LIBRARY = "kserve_storage"
_EXTRA = "storage"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ARCHIVE = re.compile(r"\.(tar|tgz|tar\.gz|zip)$", re.IGNORECASE)
# Roots of the exceptions of the clouds' libraries, which kserve-storage lets through in places.
_CLOUD_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("google.api_core.exceptions", "GoogleAPIError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
)

_logger = logging.getLogger(__name__)


def resolve_model(uri_or_path: str | Path, cache_dir: Path) -> Path:
    """Return the directory of a model on this machine, downloaded when it is elsewhere.

    A download is checked by its digests and appears under `cache_dir` whole or not at all, in a directory that is named
    by what is in it: several processes may ask for the same model at once, and none sees its directory change. It uses
    processes of its own, so call it before the first thread is started.

    Args:
        uri_or_path: A directory; `file:///directory`; or a URI of a directory or archive (tar, tar.gz, zip) that
            kserve-storage reads, with the credentials of the environment.
        cache_dir: Where downloads go; made when missing.

    Returns:
        The directory. A path is not looked at.

    Raises:
        MissingExtraError: It is elsewhere and kserve-storage is not installed.
        UserError: The URI is malformed, cannot be read or holds no model bundle.
        CorruptBundleError: What was downloaded does not have the digests of its signature.
    """
    text = str(uri_or_path)
    match = _URI.match(text)
    if match is None:
        return Path(uri_or_path)
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
    """Return a URI without user, password, query and fragment, where secrets and signatures are."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _resolve_file(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UserError(f"--model_dir: must be file:///absolute/directory, got {hide_secrets(uri)}")
    return Path(unquote(parts.path))


def _download(uri: str, scheme: str, cache_dir: Path) -> Path:
    shown = hide_secrets(uri)
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".download-", dir=cache_dir)
    except OSError as error:
        raise UserError(
            f"--model_dir: {shown}: the directory for downloads {cache_dir} cannot be written: {error.strerror}",
            hint="Give the container an emptyDir there, or let KServe download: storageUri in the InferenceService.",
        ) from None
    with scratch:
        # Below a directory that everybody may write to, somebody else may have been here first.
        if cache_dir.stat().st_uid != os.geteuid():
            raise UserError(f"--model_dir: {shown}: the directory for downloads {cache_dir} belongs to another user")
        directory = Path(scratch.name, "model")
        _fetch(uri, scheme, directory)
        found = _find_bundle(directory, shown)
        ModelBundle.open(found)
        found.chmod(0o755)
        signature = digest_file(found / SIGNATURE_FILE)
        target = cache_dir / f"{_name(uri)}-{signature[:16]}"
        if target.exists() and not _is_intact(target, signature):
            target.rename(Path(scratch.name, "damaged"))
        try:
            found.rename(target)
        except OSError:
            # Another process was first, or an earlier one left it: the same content.
            if not _is_intact(target, signature):
                raise
    _logger.info("%s: downloaded to %s", shown, target)
    return target


def _fetch(uri: str, scheme: str, directory: Path) -> None:
    """Let kserve-storage fill `directory`.

    Raises:
        UserError: It could not.
    """
    library = importlib.import_module(_LIBRARY)
    # Objects are found by prefix: `s3://bucket/model` would bring `s3://bucket/model2` too.
    if scheme == "s3" and not uri.endswith("/") and not _ARCHIVE.search(uri):
        uri += "/"
    shown = hide_secrets(uri)
    # It writes whole URIs to its log.
    was_disabled = library.logger.disabled
    library.logger.disabled = was_disabled or shown != uri
    try:
        library.Storage.download(uri, str(directory))
    except _list_errors() as error:
        text = str(error).strip().replace(uri, shown)
        if shown != uri and (query := urlsplit(uri).query):
            text = text.replace(query, "…")
        raise UserError(f"--model_dir: {shown}: cannot be downloaded: {text or type(error).__name__}") from None
    finally:
        library.logger.disabled = was_disabled


def _list_errors() -> tuple[type[Exception], ...]:
    """Return what a failed download raises: kserve-storage's own, and those of the clouds' libraries it imported."""
    clouds = (getattr(sys.modules[module], name) for module, name in _CLOUD_ERRORS if module in sys.modules)
    return (RuntimeError, ValueError, OSError, *clouds)


def _find_bundle(directory: Path, shown: str) -> Path:
    """Return the bundle in what was downloaded: all of it, or its only folder that is one."""
    if (directory / SIGNATURE_FILE).is_file():
        return directory
    folders = sorted(file.parent for file in directory.glob(f"*/{SIGNATURE_FILE}"))
    if len(folders) == 1:
        return folders[0]
    entries = ", ".join(sorted(entry.name for entry in directory.iterdir())[:5]) if directory.is_dir() else ""
    raise UserError(
        f"--model_dir: {shown}: must hold one model bundle ({SIGNATURE_FILE} and the files it names), "
        f"found {f'{len(folders)} of them' if folders else entries or 'nothing'}"
    )


def _is_intact(path: Path, signature: str) -> bool:
    """Tell whether a directory holds the bundle whose signature file has this digest."""
    try:
        ModelBundle.open(path)
    except UserError:
        return False
    return digest_file(path / SIGNATURE_FILE) == signature


def _name(uri: str) -> str:
    """Return a name for a URI's directory that a person recognises and no other URI has."""
    last = _ARCHIVE.sub("", urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    label = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip(".-")[:40] or "model"
    return f"{label}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"
