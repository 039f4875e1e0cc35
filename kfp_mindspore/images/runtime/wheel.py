"""This package's wheel, with the same bytes on every machine, and the pinned versions that it is installed with."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

import kfp_mindspore
from kfp_mindspore.errors import MissingExtraError, ProcessFailedError, UserError
from kfp_mindspore.images.runtime.extras import DISTRIBUTION

CONSTRAINTS_FILE = "constraints.txt"
# The earliest time that a zip can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_EPOCH_SECONDS = "315532800"
_SOURCES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "kfp_mindspore_cli.py",
    "kfp_mindspore",
    "components",
    "pipelines",
    "serving",
    # The operator's manifests, which a link in the package names.
    "config",
)


def get_checkout() -> Path | None:
    """Return the source tree that this package runs from, or None when it is installed."""
    root = Path(kfp_mindspore.__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / CONSTRAINTS_FILE).is_file() else None


def read_wheel(wheel: Path | None = None) -> tuple[str, bytes]:
    """Return this package wheel's name and normalised bytes.

    Args:
        wheel: The file; default: built from the checkout.

    Raises:
        UserError: The file is not this package's wheel, or none is named outside a checkout.
        MissingExtraError: `build` is not installed.
        ProcessFailedError: The build fails; `log` has its last lines.
    """
    if wheel is not None:
        return wheel.name, normalise_wheel(_read(wheel))
    checkout = get_checkout()
    if checkout is None:
        version = metadata.version(DISTRIBUTION)
        raise UserError(
            f"wheel: must be named, since {DISTRIBUTION} is installed and does not run from a checkout",
            hint=f"pip download --no-deps {DISTRIBUTION}=={version}, then name the file with --wheel.",
        )
    return build_wheel(checkout)


def read_constraints(file: Path | None = None) -> str:
    """Return the pinned versions, one `name==version` a line.

    Args:
        file: The file; default: the checkout's, or the versions installed beside this package.

    Raises:
        UserError: The file cannot be read.
    """
    checkout = get_checkout()
    if file is None and checkout is not None:
        file = checkout / CONSTRAINTS_FILE
    if file is not None:
        return _read(file).decode()
    installed = {item.metadata["Name"]: item.version for item in metadata.distributions() if item.metadata["Name"]}
    installed.pop(DISTRIBUTION, None)
    # A local version is in no index.
    names = sorted((name for name in installed if "+" not in installed[name]), key=str.lower)
    return "".join(f"{name}=={installed[name]}\n" for name in names)


def build_wheel(checkout: Path) -> tuple[str, bytes]:
    """Build a source tree's wheel with `python -m build`, and return its name and normalised bytes.

    Raises:
        MissingExtraError: `build` is not installed.
        ProcessFailedError: The build fails; `log` has its last lines.
    """
    if importlib.util.find_spec("build") is None:
        raise MissingExtraError("build", "images")
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-wheel-") as folder:
        # setuptools writes to the source tree, and packs stale files from an earlier build.
        sources = Path(folder, "sources")
        _copy_sources(checkout, sources)
        # Without isolation: the backend is installed already, and an index may not be reachable.
        words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(sources)]
        done = subprocess.run(
            words,
            env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH_SECONDS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ProcessFailedError(
                f"{checkout}: the wheel could not be built",
                hint="Its build backend comes with pip install 'kfp-mindspore[images]'; or name a wheel with --wheel.",
                log=(done.stdout + done.stderr).splitlines()[-10:],
            )
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.name, normalise_wheel(wheel.read_bytes())


def normalise_wheel(content: bytes) -> bytes:
    """Return a wheel with sorted and uncompressed files, without times and modes: neither umask nor zlib change it.

    Raises:
        UserError: It is not this package's wheel.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"wheel: cannot be read: {error}") from None
    if not any(name.startswith("kfp_mindspore-") and name.endswith(".dist-info/WHEEL") for name in files):
        raise UserError(f"wheel: is not one of {DISTRIBUTION}")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # PEP 427 recommends the metadata at the end.
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.create_system = 3
            archive.writestr(info, files[name])
    return buffer.getvalue()


def _copy_sources(checkout: Path, target: Path) -> None:
    target.mkdir()
    for name in _SOURCES:
        source = checkout / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, target / name, symlinks=True, ignore=ignore)
        elif source.is_file():
            shutil.copy(source, target / name)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
