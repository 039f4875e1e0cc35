"""This package's own wheel, the same bytes on every machine, and the versions that it is installed with."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import kfp_mindspore
from kfp_mindspore.errors import ProcessFailedError, UserError

DISTRIBUTION = "kfp-mindspore"
CONSTRAINTS_FILE = "constraints.txt"
# The earliest time that a zip can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_EPOCH_SECONDS = "315532800"
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "kfp_mindspore", "components", "pipelines", "serving")
_SKIPPED = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")


def find_checkout() -> Path | None:
    """Return the folder of the source tree that this package runs from, or None when it is installed."""
    root = Path(kfp_mindspore.__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / CONSTRAINTS_FILE).is_file() else None


def read_wheel(wheel: Path | None = None) -> tuple[str, bytes]:
    """Return the name and the normalised bytes of this package's wheel.

    Args:
        wheel: The file; by default it is built from the checkout, or put together from what is installed.

    Raises:
        UserError: The file is no wheel of this package.
        ProcessFailedError: It cannot be built; `log` has pip's last lines.
    """
    if wheel is not None:
        return wheel.name, normalise_wheel(_read(wheel))
    checkout = find_checkout()
    if checkout is not None:
        return build_wheel(checkout)
    return _collect_installed()


def read_constraints(file: Path | None = None) -> str:
    """Return the pinned versions, one `name==version` a line.

    Args:
        file: The file; by default the checkout's, or the versions that are installed beside this package.

    Raises:
        UserError: The file cannot be read.
    """
    checkout = find_checkout()
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
    """Build a source tree's wheel with this Python's pip or uv.

    Raises:
        ProcessFailedError: It fails; `log` has the last lines.
    """
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-wheel-") as folder:
        if uv.is_file():
            words = [str(uv), "build", "--wheel", "--python", sys.executable, "--out-dir", folder, str(checkout)]
        else:
            words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, str(checkout)]
        # Builds leave folders in the tree that they are made from.
        with _copy_sources(checkout) as sources:
            words[-1] = str(sources)
            done = subprocess.run(
                words,
                env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH_SECONDS},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            raise ProcessFailedError(f"{checkout}: the wheel could not be built", log=lines[-10:])
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.name, normalise_wheel(wheel.read_bytes())


def normalise_wheel(content: bytes) -> bytes:
    """Return a wheel with the same files in the order of their names, stored, without times, owners and modes.

    Raises:
        UserError: It is no wheel of this package.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise UserError(f"wheel: is damaged or no wheel: {error}") from None
    if not any(name.startswith("kfp_mindspore-") and name.endswith(".dist-info/WHEEL") for name in files):
        raise UserError("wheel: is not one of kfp-mindspore")
    return _write_archive(files)


def _collect_installed() -> tuple[str, bytes]:
    """Put a wheel together from an installed distribution: pure Python is installed as it was packed."""
    distribution = metadata.distribution(DISTRIBUTION)
    files: dict[str, bytes] = {}
    head = ""
    for item in distribution.files or ():
        name = str(item)
        if name.startswith("..") or "__pycache__" in name or item.name in _SKIPPED:
            continue
        files[name] = Path(str(distribution.locate_file(item))).read_bytes()
        if name.endswith(".dist-info/WHEEL"):
            head = name.removesuffix("/WHEEL")
    if not head:
        raise UserError(
            f"{DISTRIBUTION}: is installed without its files",
            hint="Name a wheel with --wheel, or run from a checkout or an installed wheel.",
        )
    files[f"{head}/RECORD"] = _write_record(files, f"{head}/RECORD").encode()
    return f"{head.removesuffix('.dist-info')}-py3-none-any.whl", _write_archive(files)


def _write_record(files: Mapping[str, bytes], own_name: str) -> str:
    lines = []
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return "".join([*lines, f"{own_name},,\n"])


def _write_archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # pip reads the metadata from the end, where wheels have them.
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.create_system = 3
            archive.writestr(info, files[name])
    return buffer.getvalue()


@contextlib.contextmanager
def _copy_sources(checkout: Path) -> Iterator[Path]:
    """Yield a temporary copy of what a wheel is made of."""
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-source-") as folder:
        target = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for name in _SOURCES:
            source = checkout / name
            if source.is_dir():
                shutil.copytree(source, target / name, symlinks=True, ignore=ignored)
            elif source.is_file():
                shutil.copy(source, target / name)
        yield target


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
