"""Published language models in `--model_dir`, imported as bundles before they are served.

`python -m mindsporeserver.models.source_import SOURCE BUNDLE PARENT` is the import's own process: it frees the memory,
and this process' first operator, which fixes oneDNN's instruction set, is none of the import's.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kfp_mindspore import __version__
from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError, UserError
from kfp_mindspore.files import digest_file, walk_files
from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle

_logger = logging.getLogger(__name__)

_GGUF = ".gguf"
# What the import reads; a repository's other files do not change the bundle.
_READ = (".json", ".safetensors", ".jinja", _GGUF)


def find_source(path: Path) -> Path | None:
    """Return the published model at a path: a Hugging Face directory or a GGUF file; None for anything else.

    Args:
        path: A directory, such as KServe's storage initializer leaves it, or a GGUF file.

    Raises:
        UserError: A directory has several GGUF files.
    """
    if path.is_file():
        return path if path.suffix == _GGUF else None
    if not path.is_dir() or (path / SIGNATURE_FILE).exists():
        return None
    files = sorted(path.glob(f"*{_GGUF}"))
    if files and not any(path.glob("*.safetensors")):
        if len(files) > 1:
            raise UserError(
                f"--model_dir: {path}: must have one GGUF file, found {', '.join(file.name for file in files[:5])}",
                hint=f"Name one of them: --model_dir={files[0]}",
            )
        return files[0]
    return path if (path / "config.json").is_file() else None


def import_source(source: Path, cache_dir: Path, *, shown: str = "") -> Path:
    """Import a published model, unless the cache has the bundle; several processes may do so at once.

    Args:
        source: As `find_source` returns it.
        cache_dir: Directory for the bundle, named by the model's content; created if missing.
        shown: The model's name in messages; default the path.

    Returns:
        The bundle's directory.

    Raises:
        UserError: The model is not supported or damaged; the message is the importer's. Or `cache_dir` cannot be used.
        KfpMindSporeError: The import failed otherwise.
    """
    shown = shown or str(source)
    open_cache(cache_dir, shown)
    name = source.stem if source.is_file() else source.name
    bundle = cache_dir / f"{name}-{_digest(source)[:16]}"
    with (cache_dir / f".{bundle.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            ModelBundle.open(bundle)
        except UserError:
            start = time.monotonic()
            _logger.info("%s: no model bundle, importing it to %s", shown, bundle)
            _run(source, bundle, shown)
            _logger.info("%s: imported in %.1f s", shown, time.monotonic() - start)
        else:
            _logger.info("%s: imported already, see %s", shown, bundle)
    return bundle


def open_cache(cache_dir: Path, shown: str) -> None:
    """Create the directory for downloads and imports.

    Args:
        cache_dir: The directory.
        shown: The model's name in messages.

    Raises:
        UserError: It cannot be written, or belongs to another user.
    """
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(cache_dir, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(
            f"--model_dir: {shown}: the directory for downloads and imports {cache_dir} cannot be written: "
            f"{error.strerror}",
            hint="Give the container an emptyDir there, or a model bundle: kfp-mindspore lm import SOURCE -o BUNDLE.",
        ) from None
    # In a world-writable parent, another user may have created the directory.
    if cache_dir.stat().st_uid != os.geteuid():
        raise UserError(f"--model_dir: {shown}: the directory for downloads {cache_dir} belongs to another user")


def _digest(source: Path) -> str:
    files = [source] if source.is_file() else [file for file in walk_files(source) if file.suffix in _READ]
    digest = hashlib.sha256(__version__.encode())
    for file in files:
        digest.update(f"{file.relative_to(source)}\0{digest_file(file)}\n".encode())
    return digest.hexdigest()


def _run(source: Path, bundle: Path, shown: str) -> None:
    command = [sys.executable, "-m", __name__, str(source), str(bundle), str(os.getpid())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = {"message": f"{source}: the import ended with exit code {done.returncode}", "exit_code": 1}
        if done.returncode == -9:
            answer["hint"] = "It was killed, probably for its memory: raise the container's limit."
    if answer:
        kind = UserError if answer["exit_code"] == UserError.exit_code else KfpMindSporeError
        # The importer's messages name the source or a file of it.
        message = answer["message"].replace(str(source), shown)
        raise kind(f"--model_dir: {message}", hint=answer.get("hint", ""))


def main(source: str, bundle: str, parent: str) -> int:
    """Import a model; print an error as one line of JSON, else an empty object."""
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.local.process import die_with_parent

    die_with_parent(int(parent))
    failure: dict[str, Any] = {}
    try:
        import_mindspore()
        try:
            from kfp_mindspore.lm.bundle.causal import import_model

            import_model(Path(source), Path(bundle))
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "tokenizers", "lm") from None
    except KfpMindSporeError as error:
        failure = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    print(json.dumps(failure))
    return int(failure.get("exit_code", 0))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
