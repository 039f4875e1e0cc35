"""An image's Containerfile: generated, or the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kfp_mindspore.errors import UserError

# Paths in the build context.
SOURCES_FOLDER = "sources"
REQUIREMENTS_FILE = "requirements.txt"
CONTAINERFILE_FILE = "Containerfile"
# Base images set them too, such as CANN's and CUDA's: an image adds to the base's value instead of replacing it.
SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def generate_containerfile(
    base: str, *, requirements: bool, workdir: str, user: str, env: Mapping[str, str], command: Sequence[str]
) -> str:
    """Return a Containerfile that installs requirements before it copies the sources, to reuse their layer.

    An image's labels contain the Containerfile digest, so builders set them.

    Args:
        base: The base image by digest.
        requirements: Whether the build context has a `requirements.txt`.
        workdir: The sources' folder.
        user: `uid:gid` for the command; empty keeps the base image's.
        env: Environment variables; search paths precede the base image's.
        command: The image's command; empty keeps the base image's.
    """
    lines = [f"FROM {base}"]
    lines += [f"ENV {key}={_quote(value, _refer_to_base(key))}" for key, value in sorted(env.items())]
    if requirements:
        lines += [
            "USER 0:0",
            f"COPY {REQUIREMENTS_FILE} /tmp/{REQUIREMENTS_FILE}",
            f"RUN python3 -m pip install --no-cache-dir --requirement /tmp/{REQUIREMENTS_FILE}"
            f" && rm /tmp/{REQUIREMENTS_FILE}",
        ]
    lines += [f"WORKDIR {workdir}", f"COPY {SOURCES_FOLDER}/ {workdir}/"]
    if user:
        lines.append(f"USER {user}")
    if command:
        lines.append(f"CMD {json.dumps(list(command))}")
    return "\n".join(lines) + "\n"


def check_containerfile(text: str) -> None:
    """Validate a Containerfile's first instruction.

    Raises:
        UserError: It has no FROM, or another instruction than ARG before it.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip().partition(" ")[0].upper()
        if not word or word.startswith("#") or word == "ARG":
            continue
        if word != "FROM":
            raise UserError(f"Containerfile, line {number}: must start with FROM, got {line.strip()!r}")
        return
    raise UserError("Containerfile: has no FROM")


def _quote(value: str, suffix: str) -> str:
    # The build expands $.
    quoted = json.dumps(value, ensure_ascii=False).replace("$", "\\$")
    return f'{quoted[:-1]}{suffix}"'


def _refer_to_base(variable: str) -> str:
    return f"${{{variable}:+:${{{variable}}}}}" if variable in SEARCH_PATHS else ""
