"""A folder as a build context."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import EXECUTABLE_MODE, FILE_MODE, ContextEntry
from kfp_mindspore.images.sources.ignore import IGNORE_FILE, IgnoreRules, make_secret_rules, read_ignore_rules

_MAX_LISTED = 20
_UNSUPPORTED_TYPES = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


def collect_folder(root: Path | str, *, command: Sequence[str] = (), include: Sequence[str] = ()) -> BuildContext:
    """Return a folder's files as a build context.

    Files that its `.dockerignore` names are left out; without one caches, virtual environments and `.git` are.
    Likely secrets, such as `.env` and private keys, are left out in any case; a note lists them.

    Args:
        root: The folder.
        command: Command that runs the sources, such as `("python", "train.py")`.
        include: `.dockerignore` patterns of likely secrets to include.

    Raises:
        NotFoundError: There is no such folder.
        UserError: A link points outside the folder, or an entry is a hard link or no file, link or folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise NotFoundError(f"{root}: no such folder")
    secret_rules = make_secret_rules(include)
    paths = list(_list_files(root, "", read_ignore_rules(root)))
    secrets = [path for path in paths if secret_rules.ignores(path)]
    left_out = set(secrets)
    entries = [make_entry(root, path) for path in paths if path not in left_out]
    if not entries:
        if (root / IGNORE_FILE).is_file():
            raise UserError(f"{root}: {IGNORE_FILE} leaves out every file", hint=f"See {root / IGNORE_FILE}.")
        raise UserError(
            f"{root}: has no files other than caches, virtual environments, .git and likely secrets",
            hint="Name the folder of the sources.",
        )
    notes = []
    if secrets:
        more = f" and {len(secrets) - _MAX_LISTED} more" if len(secrets) > _MAX_LISTED else ""
        listed = ", ".join(secrets[:_MAX_LISTED])
        notes.append(f"left out as likely secrets: {listed}{more}; include one with --include PATTERN")
    return BuildContext(entries, command=command, notes=notes)


def make_entry(root: Path, path: str) -> ContextEntry:
    """Return the entry of one file or link.

    Args:
        root: The folder that links must stay in.
        path: Relative path with `/`.

    Raises:
        UserError: A link points outside the folder, or the path is a hard link or neither file nor link.
    """
    file = root / path
    try:
        status = file.lstat()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        return ContextEntry(path, 0, link=_read_link(root, path))
    for matches, kind in _UNSUPPORTED_TYPES:
        if matches(status.st_mode):
            raise UserError(f"{file}: is {kind}, which an image cannot hold", hint="Leave it out by .dockerignore.")
    if status.st_nlink > 1:
        raise UserError(
            f"{file}: is a hard link, whose content can change through another path",
            hint="Replace it by a copy, or leave it out by .dockerignore.",
        )
    mode = EXECUTABLE_MODE if status.st_mode & stat.S_IXUSR else FILE_MODE
    return ContextEntry(path, status.st_size, mode, file)


def _list_files(root: Path, folder: str, rules: IgnoreRules) -> Iterator[str]:
    try:
        with os.scandir(root / folder) as found:
            children = list(found)
    except OSError as error:
        raise UserError(f"{root / folder}: {error.strerror}") from error
    for child in sorted(children, key=lambda child: os.fsencode(child.name)):
        path = f"{folder}/{child.name}" if folder else child.name
        if child.is_dir(follow_symlinks=False):
            if not rules.prunes(path):
                yield from _list_files(root, path, rules)
        elif not rules.ignores(path):
            yield path


def _read_link(root: Path, path: str) -> str:
    target = str((root / path).readlink())
    if target.startswith("/"):
        raise UserError(
            f"{root / path}: is an absolute link to {target}, expected a relative one within {root}",
            hint="Replace it by a copy or a relative link, or list it in .dockerignore.",
        )
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    real_root = os.path.realpath(root)
    real = os.path.realpath(root / path)
    if inside.startswith("..") or os.path.commonpath([real_root, real]) != real_root:
        raise UserError(
            f"{root / path}: is a link to {target}, out of the folder",
            hint="Replace it by a copy, or list it in .dockerignore.",
        )
    return target
