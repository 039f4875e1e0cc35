"""pip requirements: files, merging, validation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kfp_mindspore.errors import NotFoundError, UserError

_URL_WITH_LOGIN = re.compile(r"://[^/\s@]+@")


def read_requirements(file: Path) -> list[str]:
    """Return a requirements file's lines, without comments and empty lines.

    Raises:
        NotFoundError: There is no such file.
        UserError: It includes another file, or cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    lines = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        requirement = line.partition(" #")[0].strip()
        if not requirement or requirement.startswith("#"):
            continue
        if requirement.startswith(("-r", "--requirement", "-c", "--constraint", "-e", "--editable")):
            raise UserError(
                f"{file}, line {number}: {requirement.split()[0]} names a file that is not in the image",
                hint="Write the requirements out, or give a Containerfile of your own.",
            )
        lines.append(requirement)
    return lines


def merge_requirements(*groups: Iterable[str]) -> tuple[str, ...]:
    """Return all requirements in their order, each once.

    Raises:
        UserError: One holds a login.
    """
    merged = tuple(dict.fromkeys(line.strip() for group in groups for line in group if line.strip()))
    for number, line in enumerate(merged, start=1):
        if _URL_WITH_LOGIN.search(line) and "git+ssh://" not in line:
            raise UserError(
                f"requirements, line {number}: a URL with a login in it would stay in the image",
                hint="Pass the login to the build as a secret, or install from a mirror without a login.",
            )
    return merged
