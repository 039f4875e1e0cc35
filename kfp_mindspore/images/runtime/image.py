"""The runtime image of component steps and MSJob pods: this package with MindSpore."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kfp_mindspore import __version__
from kfp_mindspore.errors import UserError
from kfp_mindspore.images.containerfile import SOURCES_FOLDER
from kfp_mindspore.images.plan import ImageOptions
from kfp_mindspore.images.runtime.extras import DISTRIBUTION, EXTRAS_LABEL, has_package, list_extras
from kfp_mindspore.images.runtime.wheel import CONSTRAINTS_FILE, read_constraints, read_wheel
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry

DEFAULT_BASE = "docker.io/library/python:3.11-slim-bookworm"
DEFAULT_EXTRAS = ("artifacts", "data", "images", "kubernetes", "pipelines", "sweeps", "train")
DEVICES = ("cpu", "gpu", "ascend", "all")
_GPU_FILES = ("mindspore/lib/plugin/gpu*", "mindspore/lib/plugin/libmindspore_gpu*")
_ASCEND_FILES = ("mindspore/lib/plugin/ascend", "mindspore/lib/plugin/*_ascend*")
# What device `cpu` leaves out, below the packages' folder.
DEVICE_FILES = (*_GPU_FILES, *_ASCEND_FILES, "mindspore/include")
_LEFT_OUT = {"cpu": DEVICE_FILES, "gpu": _ASCEND_FILES, "ascend": _GPU_FILES, "all": ()}
# The base's libraries are tested before anything is installed: the driver's come to the node's containers only.
BASES = {
    "gpu": "CUDA 11.6 with nvcc and CUDA_HOME in its environment, cuDNN 8 and Python with venv",
    "ascend": "CANN with the variables of its set_env.sh in its environment, and Python with venv",
}
BASE_TESTS = {
    "gpu": '[ -x "${CUDA_HOME}/bin/nvcc" ] && python3 -c "import ctypes; ctypes.CDLL(\'libcudnn.so.8\')"',
    "ascend": '[ -e "${ASCEND_HOME_PATH}/lib64/libascendcl.so" ]',
}
PIP_SECRET = "pip"
_VENV = "/opt/venv"
_BUILD = "/opt/build"
_SOURCE = "/source"


def make_runtime_context(wheel: Path | None = None, constraints: Path | None = None) -> BuildContext:
    """Return the runtime image's build context: the wheel and the pinned versions.

    Args:
        wheel: This package's wheel; default: built from the checkout.
        constraints: Pinned versions; default: the checkout's, or those installed beside this package.

    Raises:
        UserError: A file cannot be read or is not this package's wheel.
        ProcessFailedError: The wheel cannot be built.
    """
    name, content = read_wheel(wheel)
    pinned = read_constraints(constraints)
    return BuildContext(
        [ContextEntry.from_bytes(name, content), ContextEntry.from_bytes(CONSTRAINTS_FILE, pinned.encode())],
    )


def make_runtime_options(
    context: BuildContext,
    base_digest: str,
    *,
    base: str = DEFAULT_BASE,
    platform: str = "linux/amd64",
    extras: Sequence[str] = DEFAULT_EXTRAS,
    device: str = "cpu",
    pip_secret: bool = False,
) -> ImageOptions:
    """Return the runtime image's options.

    Args:
        context: `make_runtime_context`'s context.
        base_digest: The base image's digest for the platform.
        base: Image with Python, the venv module and pip.
        platform: Such as `linux/amd64`.
        extras: Extras in this package.
        device: `cpu` leaves out MindSpore's GPU and Ascend plugins (1.8 GB); `gpu` and `ascend` keep one, and need a
            base with its libraries; `all` keeps both.
        pip_secret: Whether the builder has pip's configuration as the secret `pip`, such as an index with a login.

    Raises:
        UserError: An extra or the device is unknown, or the base is the default one, which has no device's libraries.
    """
    known = list_extras()
    for extra in extras:
        if extra not in known:
            raise UserError(f"extras: must be among {', '.join(known)}, got {extra!r}")
    if device not in DEVICES:
        raise UserError(f"device: must be one of {', '.join(DEVICES)}, got {device!r}")
    check_base(base, device)
    (wheel,) = (entry.path for entry in context.entries if entry.path.endswith(".whl"))
    return ImageOptions(
        base=base,
        platform=platform,
        containerfile=write_runtime_containerfile(
            f"{base.partition('@')[0]}@{base_digest}", wheel, extras=extras, device=device, pip_secret=pip_secret
        ),
        labels={
            "org.opencontainers.image.title": f"{DISTRIBUTION}-runtime",
            "org.opencontainers.image.version": __version__,
            "org.opencontainers.image.licenses": "Apache-2.0",
            EXTRAS_LABEL: ",".join(sorted(extras)),
        },
    )


def check_base(base: str, device: str) -> None:
    """Raise a UserError for the default base image where a device needs another one."""
    if base == DEFAULT_BASE and device in BASES:
        raise UserError(f"base: is missing: device {device} needs an image with {BASES[device]}")


def write_runtime_containerfile(
    base: str, wheel: str, *, extras: Sequence[str] = DEFAULT_EXTRAS, device: str = "cpu", pip_secret: bool = False
) -> str:
    """Return the Containerfile: a build stage, and a final stage with its result, without pip.

    Args:
        base: The base image by digest.
        wheel: The wheel's file name.
        extras: Extras in this package.
        device: One of DEVICES.
        pip_secret: Whether pip's configuration is mounted from the secret `pip`.
    """
    chosen = f"[{','.join(sorted(extras))}]" if extras else ""
    mount = f"--mount=type=secret,id={PIP_SECRET},target=/etc/pip.conf " if pip_secret else ""
    has_mindspore = has_package(extras, "mindspore")
    lines = [
        f"FROM {base} AS build",
        # pip reads them; an earlier stage's ARGs are not in the image's history.
        "ARG PIP_INDEX_URL",
        "ARG PIP_EXTRA_INDEX_URL",
        "ARG PIP_TRUSTED_HOST",
        "USER 0:0",
        f"RUN python3 -m venv --without-pip {_VENV} && python3 -m venv {_BUILD}",
    ]
    if device in BASES:
        lines.append(
            f"RUN {BASE_TESTS[device]} || {{ echo 'device {device}: the base needs {BASES[device]}' >&2; exit 1; }}"
        )
    if has_mindspore:
        # OpenMP's runtime, which slim images lack; the last stage gets the library alone.
        lines.append(
            "RUN if ! ls /usr/lib/*/libgomp.so.1 >/dev/null 2>&1; then "
            "apt-get update -qq && apt-get install -y -qq --no-install-recommends libgomp1; fi "
            f"&& cp -L /usr/lib/*/libgomp.so.1 {_VENV}/lib/"
        )
    lines += [
        f"COPY {SOURCES_FOLDER}/ {_SOURCE}/",
        f"RUN {mount}{_BUILD}/bin/python -m pip --disable-pip-version-check --no-cache-dir"
        f" --python {_VENV}/bin/python install --progress-bar off --no-compile"
        f" --constraint {_SOURCE}/{CONSTRAINTS_FILE}"
        f' "{DISTRIBUTION}{chosen} @ file://{_SOURCE}/{wheel}"',
    ]
    trim = ""
    if has_mindspore and _LEFT_OUT[device]:
        files = " ".join(f'"${{packages}}"/{pattern}' for pattern in _LEFT_OUT[device])
        trim = f"rm -rf {files} && "
    lines += [
        # Unchecked hashes: file times do not invalidate the byte code.
        f"RUN packages=$({_VENV}/bin/python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))') && {trim}"
        f'{_VENV}/bin/python -W ignore -m compileall -q -j 0 --invalidation-mode unchecked-hash "${{packages}}"'
        f" && chmod -R a+rX,go-w {_VENV}",
        "",
        f"FROM {base}",
        f"COPY --from=build {_VENV} {_VENV}",
        # For a read-only root: byte code is compiled already, and HOME is writable. The base's library path comes
        # first: MindSpore's plugins load CANN's or CUDA's libraries from it.
        f"ENV PATH={_VENV}/bin${{PATH:+:${{PATH}}}}"
        f" LD_LIBRARY_PATH=${{LD_LIBRARY_PATH:+${{LD_LIBRARY_PATH}}:}}{_VENV}/lib"
        " PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp",
        "WORKDIR /tmp",
        "USER 1000:1000",
        'CMD ["python3"]',
    ]
    return "\n".join(lines) + "\n"
