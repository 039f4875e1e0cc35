"""The images of a release: the wheel with its tested versions as one layer over a base image with Python."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.files import digest_file
from kfp_mindspore.images.builders.append import compose_image
from kfp_mindspore.images.plan import ImageOptions, ImagePlan
from kfp_mindspore.images.runtime.extras import DISTRIBUTION, EXTRAS_LABEL
from kfp_mindspore.images.runtime.image import DEFAULT_EXTRAS, DEVICE_FILES
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import EXECUTABLE_MODE, FILE_MODE, ContextEntry
from release.base import PLATFORM, PYTHON, Base, get_python, list_debian_packages, read_files
from release.layout import TAG, Layout
from release.process import run
from release.signatures import IMAGE_KIND, KIND, STATEMENT_TYPE, sign_image
from release.statements import (
    BILL_PREDICATE,
    BILL_TYPE,
    PROVENANCE_PREDICATE,
    SOURCE,
    make_bill,
    make_provenance,
    make_statement,
)

_VENV = "/opt/venv"
_PACKAGES = f"lib/{PYTHON}/site-packages"
# uv 0.13 writes the time of the wheel's file into it.
_CACHE_FILE = "uv_cache.json"
_ENVIRONMENT = {
    "PATH": f"{_VENV}/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "HOME": "/tmp",
}


@dataclass(frozen=True)
class ImageSpec:
    """An image of the release.

    Args:
        name: Its name, and its folder's.
        extras: Extras of this package.
        entrypoint: Program and first arguments.
        command: Default arguments.
        env: Environment variables that not every image has.
    """

    name: str
    extras: tuple[str, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


IMAGES = (
    ImageSpec("operator", ("operator",), command=("kfp-mindspore", "operator", "run")),
    ImageSpec(
        "server",
        ("artifacts", "lm", "serving", "storage", "tracing"),
        entrypoint=("python3", "-m", "mindsporeserver"),
        # Anybody may write to the working directory.
        env={"PYTHONSAFEPATH": "1"},
    ),
    ImageSpec("steps", DEFAULT_EXTRAS, command=("python3",)),
)


@dataclass(frozen=True)
class ReleaseSource:
    """What images are made from.

    Args:
        version: The release's version.
        commit: The commit.
        epoch: The commit's time, in seconds since 1970.
        wheel: The release's wheel.
        constraints: The tested versions.
    """

    version: str
    commit: str
    epoch: int
    wheel: Path
    constraints: Path


def write_image(
    folder: Path, spec: ImageSpec, base: Base, source: ReleaseSource, key: ec.EllipticCurvePrivateKey | None = None
) -> str:
    """Write an image as an OCI image layout with its referrers and signatures, and return its digest.

    Args:
        folder: The layout's folder.
        spec: The image.
        base: The base image.
        source: What it is made from.
        key: The key that signs it; None for no signature.

    Raises:
        UserError: The base image cannot be used.
        ProcessFailedError: A package cannot be installed.
    """
    layout = Layout(folder)
    for entry in (base.manifest.fields["config"], *base.manifest.fields["layers"]):
        layout.add(base.get_blob(entry))
    configuration = json.loads(layout.read(base.manifest.fields["config"]["digest"]))
    found = f"{configuration.get('os')}/{configuration.get('architecture')}"
    if found != PLATFORM:
        raise UserError(f"base: must be for {PLATFORM}, on which the release is made, got {found}")
    files = read_files(layout, base.manifest)
    python = get_python(files)
    name = f"{DISTRIBUTION}-{spec.name}"
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-release-") as temporary:
        site = Path(temporary, "packages")
        packages = _install(site, spec, source)
        if any(each.metadata["Name"] == "mindspore" for each in packages) and not _has_openmp(files):
            raise UserError(
                "base: must have libgomp.so.1, which MindSpore needs", hint="Choose one with Debian's libgomp1."
            )
        plan = ImagePlan(
            BuildContext(_list_entries(site, packages, python)),
            ImageOptions(
                base.name,
                PLATFORM,
                workdir=_VENV,
                user="1000:0",
                env={**_ENVIRONMENT, **spec.env},
                labels={
                    "org.opencontainers.image.title": name,
                    "org.opencontainers.image.version": source.version,
                    "org.opencontainers.image.revision": source.commit,
                    "org.opencontainers.image.source": SOURCE,
                    "org.opencontainers.image.licenses": "Apache-2.0",
                    EXTRAS_LABEL: ",".join(sorted(spec.extras)),
                },
                created=source.epoch,
            ),
            base.manifest.digest,
        )
        settings = {"Entrypoint": list(spec.entrypoint), "Cmd": list(spec.command), "WorkingDir": "/tmp"}
        manifest, composed = compose_image(plan, base.manifest, configuration, settings)
        for blob in (plan.context.layer(_VENV), composed):
            layout.add(blob)
        bill = make_bill(name, manifest.digest, plan.created_text, packages, list_debian_packages(files))
    system, architecture = PLATFORM.split("/")
    image = layout.add_manifest(
        manifest,
        platform={"os": system, "architecture": architecture},
        annotations={TAG: source.version, KIND: IMAGE_KIND},
    )
    parameters = {"version": source.version, "image": spec.name, "extras": sorted(spec.extras), "platform": PLATFORM}
    inputs = {each.name: f"sha256:{digest_file(each)}" for each in (source.wheel, source.constraints)}
    provenance = make_provenance(parameters, source.commit, {"name": base.name, "digest": base.manifest.digest}, inputs)
    statements = [
        make_statement(name, manifest.digest, PROVENANCE_PREDICATE, provenance),
        make_statement(name, manifest.digest, BILL_PREDICATE, bill),
    ]
    descriptors = [
        image,
        layout.add_referrer(image, BILL_TYPE, json.dumps(bill, indent=1).encode()),
        layout.add_referrer(image, STATEMENT_TYPE, json.dumps(statements[0], indent=1).encode()),
        *(sign_image(layout, image, statements, key) if key else ()),
    ]
    layout.write_index(descriptors)
    return manifest.digest


def _install(site: Path, spec: ImageSpec, source: ReleaseSource) -> list[Distribution]:
    """Install the wheel with an image's extras into a folder, compiled, and return the packages by name."""
    uv = str(Path(sys.executable).with_name("uv"))
    # By name: a path would be written into the packages' metadata.
    extras = f"[{','.join(spec.extras)}]" if spec.extras else ""
    requirement = f"{DISTRIBUTION}{extras}=={source.version}"
    words = ["pip", "install", "--quiet", "--python", sys.executable, "--target", str(site)]
    words += ["--find-links", str(source.wheel.parent), "--constraint", str(source.constraints), requirement]
    try:
        run(source.wheel.parent, uv, *words)
    except ProcessFailedError as error:
        raise ProcessFailedError(
            f"image {spec.name}: {requirement} cannot be installed with the tested versions",
            hint="constraints.txt names versions that the package index has.",
            log=error.log,
        ) from None
    for pattern in DEVICE_FILES:
        for path in site.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if "lm" in spec.extras:
        # The image has no C compiler. Without byte code: it is compiled below.
        run(site, sys.executable, "-B", "-m", "kfp_mindspore.lm.network.decode_library")
    compiling = ("-W", "ignore", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    moved = ("-s", str(site), "-p", f"{_VENV}/{_PACKAGES}")
    # Sets in byte code are in the order of hashes.
    run(site, sys.executable, *compiling, *moved, str(site), PYTHONHASHSEED="0")
    return sorted(distributions(path=[str(site)]), key=lambda each: each.metadata["Name"].lower())


def _list_entries(site: Path, packages: list[Distribution], python: str) -> Iterator[ContextEntry]:
    """Yield the files of a virtual environment over a base image's Python."""
    home = python.rpartition("/")[0]
    settings = f"home = {home}\ninclude-system-site-packages = false\nversion = {PYTHON.removeprefix('python')}\n"
    yield ContextEntry.from_bytes("pyvenv.cfg", settings.encode())
    for name, target in (("python3", python), ("python", "python3"), (PYTHON, "python3")):
        yield ContextEntry(f"bin/{name}", 0, link=target)
    # An installer's scripts name this machine's Python. Two packages may have one of the same name.
    points = (point for package in packages for point in package.entry_points if point.group == "console_scripts")
    for script, point in {point.name: point for point in points}.items():
        name = point.attr.partition(".")[0]
        lines = (
            f"#!{_VENV}/bin/python3",
            "import sys",
            f"from {point.module} import {name}",
            f"sys.exit({point.attr}())",
        )
        yield ContextEntry.from_bytes(f"bin/{script}", "\n".join((*lines, "")).encode(), mode=EXECUTABLE_MODE)
    for path in site.rglob("*"):
        within = path.relative_to(site)
        if path.is_dir() or within.parts[0] == "bin" or path.name in (_CACHE_FILE, ".lock"):
            continue
        target = f"{_PACKAGES}/{within.as_posix()}"
        if path.name == "RECORD":
            record = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = "".join(line for line in record if not line.startswith("bin/") and _CACHE_FILE not in line)
            yield ContextEntry.from_bytes(target, kept.encode())
        else:
            status = path.stat()
            yield ContextEntry(target, status.st_size, EXECUTABLE_MODE if status.st_mode & 0o100 else FILE_MODE, path)


def _has_openmp(files: dict[str, str]) -> bool:
    return any(name.endswith("/libgomp.so.1") for name in files)
