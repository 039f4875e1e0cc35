"""A release of the working tree for a network without internet: its three signed images, and wheels of a client.

`python -m tests.cluster.release_images` makes it.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kfp_mindspore import __version__
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.runtime.wheel import read_wheel
from release.base import PYTHON, open_base
from release.images import IMAGES, ReleaseSource, write_image
from tests.cluster.infrastructure.commands import call
from tests.cluster.infrastructure.images import build_archive
from tests.cluster.infrastructure.paths import ROOT, compute_digest, get_cache, lock
from tests.cluster.infrastructure.prerequisites import UnavailableError, install_packages

# Of the machine that runs docs/cluster-tutorial.md and `python -m release push`.
CLIENT_EXTRAS = ("data", "images", "kubernetes", "pipelines")
# Debian bookworm's.
_PYTHON = "python3.11"
_PACKAGES = ("ca-certificates", "libgomp1", "python3", "python3-venv")
_CONSTRAINTS = "constraints.txt"


def write_base(folder: Path) -> Path:
    """Write the base image of release images, Debian's Python, as an OCI image layout; return its folder.

    Raises:
        UnavailableError: A program is missing, or this Python is of another version.
        RuntimeError: A program failed; the message holds its errors.
    """
    if PYTHON != _PYTHON:
        raise UnavailableError(f"the tests run with {PYTHON}, the base image has {_PYTHON}")
    install_packages({"skopeo": "skopeo"})
    archive = build_archive("kfp-mindspore.test/python-venv:3.11", _PACKAGES)
    call("skopeo", "copy", "--quiet", f"docker-archive:{archive}", f"oci:{folder}:python", seconds=None)
    return folder


def write_public_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write a key's public key as a PEM file, and return the file."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, kind))
    return path


def get_release() -> Path:
    """Return the folder of `build_release`.

    Raises:
        UnavailableError: It is not made of the working tree as it is now.
    """
    _, content = read_wheel()
    directory = _locate(content)
    if not directory.exists():
        raise UnavailableError(f"{directory}: the release is not made; run `make test-airgap`")
    return directory


def build_release() -> Path:
    """Make a release of the working tree, in ten minutes and 4 GB, unless made; return its folder.

    `dist` has what `make release` writes there: the wheel, constraints.txt and the images. `release.pub` is the key
    that signed them, `wheels` what `pip wheel` makes of the wheel with the extras `CLIENT_EXTRAS`.

    Raises:
        UnavailableError: A program is missing, or this Python is of another version.
        RuntimeError: pip failed; the message holds its errors.
        ProcessFailedError: A package of an image cannot be installed.
    """
    name, content = read_wheel()
    directory = _locate(content)
    with lock(directory.with_name("release.lock")):
        if not directory.exists():
            # One is enough for a disk: also parts of one whose making failed.
            for earlier in get_cache().glob("release-*"):
                shutil.rmtree(earlier)
            partial = directory.with_suffix(".partial")
            (partial / "dist").mkdir(parents=True)
            (partial / "dist" / name).write_bytes(content)
            shutil.copyfile(ROOT / _CONSTRAINTS, partial / "dist" / _CONSTRAINTS)
            _write_wheels(partial)
            _write_images(partial, partial / "dist" / name)
            partial.replace(directory)
    return directory


def _write_images(folder: Path, wheel: Path) -> None:
    """Write the three images and the public key of their signatures."""
    key = ec.generate_private_key(ec.SECP256R1())
    write_public_key(folder / "release.pub", key)
    source = ReleaseSource(__version__, "0" * 40, 0, wheel, wheel.with_name(_CONSTRAINTS))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        layout = write_base(Path(temporary, "base"))
        with open_base(str(layout), RegistryConfig()) as base:
            for spec in IMAGES:
                write_image(wheel.parent / "images" / spec.name, spec, base, source, key)


def _write_wheels(folder: Path) -> None:
    """Write the wheels of a client, by the command of docs/air-gapped.md."""
    with tempfile.TemporaryDirectory() as temporary:
        call(sys.executable, "-m", "venv", temporary)
        words = ["--quiet", "--wheel-dir", "wheels", "--find-links", "dist", "--constraint", f"dist/{_CONSTRAINTS}"]
        requirement = f"kfp-mindspore[{','.join(CLIENT_EXTRAS)}]"
        call(f"{temporary}/bin/pip", "wheel", *words, requirement, seconds=None, folder=folder)


def _locate(content: bytes) -> Path:
    """Return the folder of the release with a wheel."""
    files = [ROOT / _CONSTRAINTS, *(ROOT / "release").glob("*.py")]
    digest = compute_digest(files, hashlib.sha256(content).hexdigest(), *_PACKAGES, *CLIENT_EXTRAS)
    return get_cache() / f"release-{digest}"


if __name__ == "__main__":
    print(build_release())
