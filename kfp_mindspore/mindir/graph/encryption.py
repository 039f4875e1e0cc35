"""Encrypted MindIR files: reading keys, decryption and errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.compat import decryption
from kfp_mindspore.errors import CorruptBundleError, UserError
from kfp_mindspore.files import read_secret_file
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.mindir.environment import import_mindspore, name_versions
from kfp_mindspore.settings import MODEL_KEY_VARIABLE

ENCRYPTION = "AES-GCM"
KEY_LENGTHS = (16, 24, 32)

_KEY_HINT = (
    "A key is 16, 24 or 32 bytes as they are, or 48 or 64 hexadecimal digits, such as: openssl rand -hex 32 > model.key"
)
_GIVE_HINT = f"Give the key it was exported with: in a file (--key-file, --model_key_file) or in {MODEL_KEY_VARIABLE}."
_MAX_FILE_BYTES = 4096
# Not 32 digits: 32 bytes are a binary key already, and one text must not stand for two keys.
_HEX_LENGTHS = (48, 64)


def read_model_key(key_file: Path | str | None, environment: Mapping[str, str]) -> bytes | None:
    """Read the encrypted models' key from a file or, without one, from the variable MINDSPORE_MODEL_KEY.

    48 or 64 hexadecimal digits are decoded; 16, 24 or 32 bytes are used unchanged. One trailing line end is removed. A
    file that others may read is used, with a warning in the log.

    Args:
        key_file: A file with the key only.
        environment: Such as os.environ.

    Returns:
        16, 24 or 32 bytes, or None when neither is given.

    Raises:
        UserError: The file cannot be read or is no key; the message names file or variable and never contains the key.
    """
    if key_file is not None:
        file = Path(key_file)
        return _parse(read_secret_file(file, "key file", _MAX_FILE_BYTES), str(file))
    if text := environment.get(MODEL_KEY_VARIABLE, ""):
        # surrogateescape: the environment's bytes, independent of the locale.
        return _parse(os.fsencode(text), MODEL_KEY_VARIABLE)
    return None


def check_key(key: bytes) -> bytes:
    """Return the key, if the length is valid for AES.

    Raises:
        UserError: Its length is not 16, 24 or 32 bytes.
    """
    if not isinstance(key, bytes) or len(key) not in KEY_LENGTHS:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise UserError(f"key: must be 16, 24 or 32 bytes, got {found}", hint=_KEY_HINT)
    return key


def load_graph(bundle: ModelBundle, key: bytes | None = None) -> Any:
    """Load a bundle's graph with MindSpore, decrypted in memory when it is encrypted.

    Args:
        bundle: An opened bundle.
        key: An encrypted model's key; not used for a plain one.

    Returns:
        `mindspore.nn.GraphCell`'s argument.

    Raises:
        UserError: It is encrypted and there is no key or another one, or it is no MindIR that MindSpore can load.
        MissingExtraError: MindSpore is not installed.
    """
    options: dict[str, Any] = {}
    if needed := require_key(bundle, key):
        options = {"dec_key": needed, "dec_mode": ENCRYPTION}
    mindspore = import_mindspore("serving")
    try:
        return mindspore.load(str(bundle.mindir), **options)
    except (RuntimeError, ValueError) as error:
        if needed:
            raise wrong_key(bundle.mindir) from None
        subject = name_versions(bundle.signature.mindspore_version)
        raise UserError(f"{bundle.mindir}: {subject} cannot load it: {error}") from error


def decrypt_file(file: Path, key: bytes) -> bytes:
    """Return an encrypted MindIR file's plain content, in memory only.

    Raises:
        UserError: The key is wrong.
        MissingExtraError: MindSpore is not installed.
    """
    import_mindspore()
    content = decryption.try_decrypt_file(file, check_key(key), ENCRYPTION)
    if content is None:
        raise wrong_key(file)
    return content


def require_key(bundle: ModelBundle, key: bytes | None) -> bytes | None:
    """Return the key if the bundle is encrypted, else None.

    Raises:
        UserError: It is encrypted and there is no key, or the key has an invalid length.
        CorruptBundleError: The encryption method is unknown.
    """
    method = bundle.signature.encryption
    if not method:
        return None
    if method != ENCRYPTION:
        raise CorruptBundleError(f"{bundle.path}: metadata.encryption: must be {ENCRYPTION}, got {method!r}")
    if key is None:
        raise missing_key(bundle.mindir)
    return check_key(key)


def missing_key(file: Path) -> UserError:
    """Return the error for an encrypted file without a key."""
    return UserError(f"{file}: is encrypted ({ENCRYPTION}), and no key is given", hint=_GIVE_HINT)


def wrong_key(file: Path) -> UserError:
    """Return the error for a key that does not decrypt a file."""
    return UserError(
        f"{file}: cannot be decrypted: the key is not the one it was exported with, or the file was changed",
        hint=_GIVE_HINT,
    )


def _parse(content: bytes, where: str) -> bytes:
    line = content.removesuffix(b"\n").removesuffix(b"\r")
    for candidate in (content, line):
        if len(candidate) in KEY_LENGTHS:
            return candidate
    if len(line) in _HEX_LENGTHS:
        with contextlib.suppress(ValueError):
            return bytes.fromhex(line.decode("ascii"))
    more = " or more" if len(content) == _MAX_FILE_BYTES else ""
    raise UserError(f"{where}: key: must be 16, 24 or 32 bytes, got {len(line)} bytes{more}", hint=_KEY_HINT)
