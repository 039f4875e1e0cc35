"""Common parts of all format descriptions: file entries with sizes and digests, and field errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError, UserError

Entries = Mapping[str, Mapping[str, Any]]


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return {name: {"sha256": …, "size": bytes}} for a directory's files, and set their mode to 0644."""
    described = {}
    for file in sorted(directory.iterdir()):
        file.chmod(0o644)
        described[file.name] = {"sha256": files.digest_file(file), "size": file.stat().st_size}
    return described


def parse_entries(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what `describe_files` wrote, with its types checked.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: A field is missing or has another type.
    """
    return {str(name): {"sha256": str(entry["sha256"]), "size": int(entry["size"])} for name, entry in value.items()}


def check_files(directory: Path, entries: Entries, description: str, *, digests: bool = True, hint: str = "") -> None:
    """Compare a directory's files with their entries.

    Args:
        directory: The directory.
        entries: Expected size and digest by file name.
        description: Name of the file with the entries, for messages.
        digests: Whether to compare digests too, not only presence and size.
        hint: Next step for the user.

    Raises:
        UserError: Files are missing; the message names them.
        CorruptBundleError: A file has another size or digest; the message names it.
    """
    missing = [name for name in sorted(entries) if not (directory / name).is_file()]
    if missing:
        raise UserError(f"{directory}: {', '.join(missing)} missing, named by {description}", hint=hint)
    for name, entry in entries.items():
        file = directory / name
        if (size := file.stat().st_size) != entry["size"]:
            raise CorruptBundleError(f"{file}: must have {entry['size']} bytes, has {size}", hint=hint)
        if digests:
            check_digest(file, entry["sha256"], hint=hint)


def check_digest(file: Path, expected: str, *, hint: str = "") -> None:
    """Compare a file's sha256 with the expected one.

    Raises:
        CorruptBundleError: They differ.
    """
    if (digest := files.digest_file(file)) != expected:
        raise CorruptBundleError(f"{file}: sha256 must be {expected}, is {digest}: the file was changed", hint=hint)


@contextlib.contextmanager
def naming_fields(file: Path, kind: str) -> Iterator[None]:
    """Turn errors from parsing a description into a UserError that names the file and the field.

    Args:
        file: The file that is parsed.
        kind: What it should be, such as `a checkpoint's description`.
    """
    try:
        yield
    except KfpMindSporeError:
        raise
    except KeyError as error:
        raise UserError(f"{file}: field {error.args[0]!r} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file}: not {kind} ({error})") from None
