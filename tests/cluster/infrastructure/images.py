"""Container images built here without a registry: one-layer archives for containerd."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.cluster.infrastructure.binaries import get_binaries
from tests.cluster.infrastructure.commands import call
from tests.cluster.infrastructure.paths import compute_digest, get_cache, lock, make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError

PAUSE = "kfp-mindspore.test/pause:1"
COREDNS = "kfp-mindspore.test/coredns:1"
PYTHON = "kfp-mindspore.test/python:3.11"
# Its Python version is that of the packages of pods.
_DEBIAN = "bookworm"
PYTHON_PACKAGES = ("python3", "python-is-python3", "ca-certificates", "libgomp1", "procps")
_UNUSED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class ImageConfig:
    """Configuration of an image.

    Args:
        entrypoint: Program and first arguments.
        command: Default arguments.
        environment: `NAME=value` besides PATH.
        user: The user's number, or name.
    """

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Sequence[str] = field(default=())
    user: str = ""


def get_images() -> dict[str, Path]:
    """Return the archives of the images of every node, by image name.

    Raises:
        UnavailableError: One is not built.
    """
    archives = _locate()
    missing = [name for name, archive in archives.items() if not archive.exists()]
    if missing:
        raise UnavailableError(f"images {', '.join(missing)} are not built; run `python -m tests.cluster build`")
    return archives


def build_images() -> dict[str, Path]:
    """Build missing archives; the Python image takes two minutes and debootstrap.

    Raises:
        UnavailableError: A tool is missing.
        RuntimeError: debootstrap failed; the message holds the end of its log.
    """
    archives, binaries = _locate(), get_binaries()
    with lock(get_cache() / "images" / ".lock"):
        for name, program in ((PAUSE, "pause"), (COREDNS, "coredns")):
            if not archives[name].exists():
                with make_root(archives[name]) as root:
                    shutil.copy(binaries / program, root / program)
                    make_directory(root / "tmp", 0o1777)
                    write_archive(name, root, archives[name], ImageConfig(entrypoint=[f"/{program}"]))
        if not archives[PYTHON].exists():
            with make_root(archives[PYTHON]) as root:
                bootstrap(root, PYTHON_PACKAGES)
                config = ImageConfig(command=["python3"], environment=["LANG=C.UTF-8", "PYTHONUNBUFFERED=1"])
                write_archive(PYTHON, root, archives[PYTHON], config)
    return archives


def build_archive(name: str, packages: Sequence[str], command: Sequence[str] = ()) -> Path:
    """Return the archive of an image of Debian with packages, built when missing: two minutes.

    Args:
        name: The image's name with its tag.
        packages: Debian packages.
        command: Default arguments.

    Raises:
        UnavailableError: debootstrap is missing.
        RuntimeError: It failed; the message holds the end of its log.
    """
    stem = name.partition(":")[0].rpartition("/")[2]
    archive = get_cache() / "images" / f"{stem}-{compute_digest([], *packages)}.tar"
    with lock(get_cache() / "images" / f".lock-{stem}"):
        if not archive.exists():
            with make_root(archive) as root:
                bootstrap(root, packages)
                write_archive(name, root, archive, ImageConfig(command=command))
    return archive


def bootstrap(root: Path, packages: Sequence[str]) -> None:
    """Create a Debian root file system with packages.

    Raises:
        UnavailableError: debootstrap is missing.
        RuntimeError: It failed; the message holds the end of its log.
    """
    if shutil.which("debootstrap") is None:
        raise UnavailableError("debootstrap is not installed; run `python -m tests.cluster build` as root")
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", _DEBIAN, str(root)]
    call(*command, seconds=None)
    for path in _UNUSED:
        shutil.rmtree(root / path, ignore_errors=True)


def write_archive(name: str, root: Path, archive: Path, config: ImageConfig | None = None) -> None:
    """Write a root file system as an archive of an image with one layer, in docker's format.

    Args:
        name: The image's name with its tag.
        root: The root file system.
        archive: The archive, replaced atomically.
        config: Configuration of the image.
    """
    config = config or ImageConfig()
    make_directory(archive.parent)
    partial = archive.with_name(f".{archive.name}.partial")
    with tempfile.TemporaryFile(dir=archive.parent) as layer:
        with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for entry in sorted(root.iterdir()):
                tar.add(entry, arcname=entry.name, filter=_normalise)
        layer.seek(0)
        digest = _compute_sha256(layer)
        settings = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "Env": [_PATH, *config.environment],
                "Entrypoint": list(config.entrypoint) or None,
                "Cmd": list(config.command) or None,
                "User": config.user,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z"}],
        }
        encoded = json.dumps(settings).encode()
        file = f"{hashlib.sha256(encoded).hexdigest()}.json"
        manifest = [{"Config": file, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
        with tarfile.open(partial, "w") as tar:
            _add(tar, file, io.BytesIO(encoded))
            _add(tar, "manifest.json", io.BytesIO(json.dumps(manifest).encode()))
            _add(tar, f"{digest}/layer.tar", layer)
    partial.replace(archive)


def unpack_archive(archive: Path, root: Path) -> None:
    """Unpack the one layer of an archive, with its owners."""
    with tarfile.open(archive) as tar:
        (name,) = json.load(tar.extractfile("manifest.json"))[0]["Layers"]
        with tarfile.open(fileobj=tar.extractfile(name)) as layer:
            layer.extractall(root, numeric_owner=True)


@contextlib.contextmanager
def make_root(archive: Path) -> Iterator[Path]:
    """Create an empty root file system beside an archive; remove it after the block."""
    with tempfile.TemporaryDirectory(prefix=".root-", dir=make_directory(archive.parent)) as directory:
        # Containers of any user must be able to enter their root directory.
        yield make_directory(Path(directory))


def _locate() -> dict[str, Path]:
    recipe = compute_digest([], _DEBIAN, *PYTHON_PACKAGES, *_UNUSED)
    built = get_binaries().name
    root = get_cache() / "images"
    return {
        PAUSE: root / f"pause-{built}.tar",
        COREDNS: root / f"coredns-{built}.tar",
        PYTHON: root / f"python-{recipe}.tar",
    }


def _compute_sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _normalise(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.mtime = 0
    return None if entry.ischr() or entry.isblk() else entry


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, os.SEEK_END)
    content.seek(0)
    tar.addfile(entry, content)
