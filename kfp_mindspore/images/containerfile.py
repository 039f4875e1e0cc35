"""The Containerfile: generated from what the image needs, printable, and the user's own in its place when given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kfp_mindspore.errors import UserError

# Where a builder puts what the Containerfile copies, below the root of the context it hands over.
SOURCES_FOLDER = "sources"
REQUIREMENTS_FILE = "requirements.txt"
CONTAINERFILE_FILE = "Containerfile"


def generate_containerfile(
    base: str,
    base_digest: str,
    *,
    requirements: Sequence[str] = (),
    workdir: str = "/app",
    user: str = "1000:1000",
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> str:
    """Return a Containerfile: requirements first, so that changed sources do not install them again; then the sources.

    It is built in a context with `requirements.txt` (when there are requirements) and `sources/` at its root. Labels
    are not in it: builders set them, since they name the digest of the Containerfile itself.

    Args:
        base: Name of the base image.
        base_digest: Its digest; the `FROM` line names both.
        requirements: pip requirements.
        workdir: Folder of the sources.
        user: `uid:gid` the image runs as; an empty text keeps the base image's.
        env: Environment variables.
        command: What the image runs; empty keeps the base image's.
    """
    name = base.partition("@")[0]
    lines = [f"FROM {name}@{base_digest}"]
    lines += [f"ENV {key}={_quote(value)}" for key, value in sorted((env or {}).items())]
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


def _quote(value: str) -> str:
    # A $ would be taken for a variable of the build.
    return json.dumps(value, ensure_ascii=False).replace("$", "\\$")


def check_containerfile(text: str) -> None:
    """Find out whether a text can be a Containerfile.

    Raises:
        UserError: It has no FROM line, or something stands before it that may not.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip().partition(" ")[0].upper()
        if not word or word.startswith("#") or word == "ARG":
            continue
        if word != "FROM":
            raise UserError(f"Containerfile, line {number}: must start with FROM, got {line.strip()!r}")
        return
    raise UserError("Containerfile: has no FROM line")
