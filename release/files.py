"""The files of a release, made of a commit alone: the same commit and build tools give the same bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from kfp_mindspore import __version__
from kfp_mindspore.errors import UserError
from kfp_mindspore.files import digest_file, replace_directory
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.runtime.wheel import normalise_wheel
from kfp_mindspore.outputs import OutputKind
from release.base import open_base
from release.images import IMAGES, ReleaseSource, write_image
from release.process import run
from release.signatures import read_key, sign

CHECKSUMS = "SHA256SUMS"
NOTES = "RELEASE_NOTES.md"
CONSTRAINTS = "constraints.txt"
SIGNATURE = f"{CHECKSUMS}.sig"
_MATERIALS = f"kfp_mindspore-{__version__}.cdx.json"
_WRITER = "cyclonedx-bom>=7,<8"
_IMAGES = "images"
_UPCOMING = "Upcoming"
_FILES = tuple(f"kfp_mindspore-{__version__}{suffix}" for suffix in ("-py3-none-any.whl", ".tar.gz"))
_CHART = f"kfp-mindspore-{__version__}.tgz"
_KIND = OutputKind(CHECKSUMS, names=(SIGNATURE, NOTES, CONSTRAINTS, _MATERIALS, _IMAGES, _CHART, *_FILES))


def write_release(
    checkout: Path,
    version: str,
    output: Path,
    key: Path | None = None,
    base: str | None = None,
    registry: RegistryConfig | None = None,
) -> list[str]:
    """Write the release of the commit that is checked out, and return its files' names.

    Wheel, source distribution, Helm chart, tested versions, their bill of materials (CycloneDX), the changelog's
    section, images and `SHA256SUMS`, which `sha256sum --check` reads.

    Args:
        checkout: The repository.
        version: The expected version.
        output: The directory; an earlier release of this version there is replaced.
        key: Private key that signs `SHA256SUMS` and the images; None for no signature.
        base: The images' base image, see `open_base`; None for no images.
        registry: How registries are reached.

    Raises:
        UserError: The package has another version, files are not committed, the changelog has no section for the
            version, `key` or `base` cannot be used, or `output` has other content.
        ProcessFailedError: A build failed; `log` has its last lines.
    """
    if version != __version__:
        raise UserError(
            f"VERSION: must be {__version__}, the version in kfp_mindspore/__init__.py, got {version!r}",
            hint="Change and commit the version there first.",
        )
    if changed := run(checkout, "git", "status", "--porcelain").splitlines():
        raise UserError(
            f"{checkout}: {len(changed)} files are not committed, such as {changed[0][3:]}",
            hint="A release is made of a commit: commit or stash them.",
        )
    signer = None if key is None else read_key(key)
    notes = read_notes((checkout / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    with contextlib.ExitStack() as stack:
        opened = None if base is None else stack.enter_context(open_base(base, registry or RegistryConfig()))
        directory = stack.enter_context(replace_directory(output, _KIND))
        epoch = read_epoch(checkout)
        build_packages(checkout, directory)
        (directory / _CHART).write_bytes(pack_chart(checkout / "charts" / "kfp-mindspore", epoch))
        (directory / NOTES).write_text(notes, encoding="utf-8")
        shutil.copyfile(checkout / CONSTRAINTS, directory / CONSTRAINTS)
        _write_materials(checkout, directory)
        if opened is not None:
            commit = run(checkout, "git", "rev-parse", "HEAD").strip()
            source = ReleaseSource(version, commit, epoch, directory / _FILES[0], directory / CONSTRAINTS)
            for spec in IMAGES:
                write_image(directory / _IMAGES / spec.name, spec, opened, source, signer)
        # An image's index has the digests of all its content.
        files = [path for path in directory.iterdir() if path.is_file()]
        files += directory.glob(f"{_IMAGES}/*/index.json")
        names = sorted(path.relative_to(directory).as_posix() for path in files)
        sums = [f"{digest_file(directory / name)}  {name}\n" for name in names]
        (directory / CHECKSUMS).write_text("".join(sums), encoding="utf-8")
        if signer is not None:
            (directory / SIGNATURE).write_bytes(sign(signer, (directory / CHECKSUMS).read_bytes()))
    return [*names, CHECKSUMS, *([] if signer is None else [SIGNATURE])]


def read_notes(changelog: str, version: str) -> str:
    """Return a version's section of a changelog, or before it has a version the newest one, `Upcoming`.

    Raises:
        UserError: The newest section is another version's.
    """
    found = re.search(r"^## (.*)\n((?:(?!## ).*\n?)*)", changelog, re.MULTILINE)
    heading, text = found.groups() if found else ("", "")
    if heading not in (version, _UPCOMING):
        raise UserError(
            f"CHANGELOG.md: the first section must be {version!r} or {_UPCOMING!r}, got {heading!r}",
            hint=f"Write what users of {version} can do now.",
        )
    return text.strip() + "\n"


def read_epoch(checkout: Path) -> int:
    """Return the time of the commit that is checked out, in seconds since 1970."""
    return int(run(checkout, "git", "log", "-1", "--format=%ct"))


def build_packages(checkout: Path, directory: Path) -> None:
    """Write wheel and source distribution into a directory, built from the files of the checked out commit.

    Raises:
        ProcessFailedError: The build fails; `log` has its last lines.
    """
    epoch = read_epoch(checkout)
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-release-") as folder:
        sources, built = Path(folder, "sources"), Path(folder, "built")
        archive = Path(folder, "sources.tar")
        run(checkout, "git", "archive", "--output", str(archive), "HEAD")
        with tarfile.open(archive) as members:
            members.extractall(sources, filter="data")
        # Without isolation: the backend is the one that constraints.txt pins.
        build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(sources))
        run(checkout, *build, SOURCE_DATE_EPOCH=str(epoch))
        for path in built.iterdir():
            data = path.read_bytes()
            is_wheel = path.suffix == ".whl"
            (directory / path.name).write_bytes(normalise_wheel(data) if is_wheel else normalise_sdist(data, epoch))


def pack_chart(chart: Path, epoch: int) -> bytes:
    """Return a chart's archive, as `helm install` takes it, with the files that links name.

    Args:
        chart: The chart's directory.
        epoch: Time of all files, in seconds since 1970.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", dereference=True) as archive:
        archive.add(chart, chart.name)
    return normalise_sdist(packed.getvalue(), epoch)


def _write_materials(checkout: Path, directory: Path) -> None:
    """Write the bill of materials for the wheel and all extras, installed with the tested versions."""
    uv = str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-release-") as folder:
        run(checkout, uv, "venv", "--quiet", "--python", sys.executable, folder)
        python = str(Path(folder, "bin", "python"))
        # By name: a path would be written into the bill.
        sources = ("--find-links", str(directory), "--constraint", str(directory / CONSTRAINTS))
        run(checkout, uv, "pip", "install", "--python", python, *sources, f"kfp-mindspore[all]=={__version__}")
        write = (uv, "tool", "run", "--from", _WRITER, "cyclonedx-py", "environment", "--output-reproducible")
        run(checkout, *write, "--output-file", str(directory / _MATERIALS), python)


def normalise_sdist(content: bytes, epoch: int) -> bytes:
    """Return a source distribution, or another archive, with sorted files of one time, without owners.

    Args:
        content: The `.tar.gz` file.
        epoch: Time of all files, in seconds since 1970.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as source,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            kept = tarfile.TarInfo(member.name)
            kept.type, kept.linkname, kept.size, kept.mtime = member.type, member.linkname, member.size, epoch
            kept.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            target.addfile(kept, source.extractfile(member) if member.isfile() else None)
    return packed.getvalue()
