"""A folder as a build context: what `.dockerignore` leaves, and nothing that leads out of it."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images.context import EXECUTABLE_MODE, FILE_MODE, BuildContext, Entry
from kfp_mindspore.images.ignore import IGNORE_FILE, IgnoreRules, read_ignore_rules
from kfp_mindspore.images.secrets import find_secrets

_KINDS = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


def collect_folder(root: Path | str, *, command: Sequence[str] = ()) -> BuildContext:
    """Return the files of a folder.

    Args:
        root: The folder. Its `.dockerignore` says what is left out; without one caches, virtual environments and `.git`
            are.
        command: How the sources are run, such as `("python", "train.py")`.

    Raises:
        NotFoundError: There is no such folder.
        UserError: A link leads out of it, or something in it is neither file nor folder, or is a hard link; the message
            names it.
    """
    root = Path(root)
    if not root.is_dir():
        raise NotFoundError(f"{root}: no such folder")
    entries = list(_walk(root, "", read_ignore_rules(root)))
    if not entries:
        if (root / IGNORE_FILE).is_file():
            raise UserError(
                f"{root}: holds no file that {IGNORE_FILE} leaves", hint=f"See what {root / IGNORE_FILE} leaves out."
            )
        raise UserError(
            f"{root}: holds no file, besides caches, virtual environments and .git",
            hint="Give the folder that holds the sources.",
        )
    return BuildContext(entries, origin=f"folder {root}", command=command, warnings=find_secrets(entries))


def make_entry(root: Path, path: str) -> Entry:
    """Return the entry of one file or link.

    Args:
        root: The folder that it must not lead out of.
        path: Relative path with `/`.

    Raises:
        UserError: It leads out of the folder, or is neither a file nor a link to one.
    """
    file = root / path
    try:
        status = file.lstat()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        return Entry(path, 0, link=_check_link(root, path))
    for holds, kind in _KINDS:
        if holds(status.st_mode):
            raise UserError(f"{file}: is {kind}, which no image holds", hint="Leave it out by .dockerignore.")
    if status.st_nlink > 1:
        raise UserError(
            f"{file}: is a hard link, so what it holds can change from elsewhere",
            hint="Put a copy in its place, or leave it out by .dockerignore.",
        )
    mode = EXECUTABLE_MODE if status.st_mode & stat.S_IXUSR else FILE_MODE
    return Entry(path, status.st_size, mode, file)


def _walk(root: Path, folder: str, rules: IgnoreRules) -> Iterator[Entry]:
    try:
        with os.scandir(root / folder) as found:
            children = sorted(found, key=lambda child: os.fsencode(child.name))
    except OSError as error:
        raise UserError(f"{root / folder}: {error.strerror}") from error
    for child in children:
        path = f"{folder}/{child.name}" if folder else child.name
        _check_name(path)
        if child.is_dir(follow_symlinks=False):
            if not rules.prunes(path):
                yield from _walk(root, path, rules)
        elif not rules.ignores(path):
            yield make_entry(root, path)


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"{os.fsencode(path)!r}: a file's name in an image must be UTF-8") from None


def _check_link(root: Path, path: str) -> str:
    target = str((root / path).readlink())
    if target.startswith("/"):
        raise UserError(
            f"{root / path}: is an absolute link to {target}, expected a relative one within {root}",
            hint="Put a copy in its place, link relatively within the folder, or list it in .dockerignore.",
        )
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    real_root = os.path.realpath(root)
    real = os.path.realpath(root / path)
    if inside.startswith("..") or os.path.commonpath([real_root, real]) != real_root:
        raise UserError(
            f"{root / path}: is a link to {target}, out of the folder",
            hint="Put a copy in its place, or list it in .dockerignore.",
        )
    return target
