"""Decryption of MindIR files to bytes.

For MindSpore 2.9, whose public API decrypts a MindIR only into a loaded graph (`mindspore.load`), so an encrypted
file's metadata could not be read. The function below is what `mindspore.load_checkpoint` calls.
"""

from __future__ import annotations

from pathlib import Path


def try_decrypt_file(file: Path, key: bytes, mode: str) -> bytes | None:
    """Return a file's plain content, or None when the key or the content is wrong.

    Args:
        file: The encrypted file.
        key: 16, 24 or 32 bytes.
        mode: Encryption method, such as `AES-GCM`.
    """
    from mindspore._c_expression import _decrypt

    content = _decrypt(str(file), key, len(key), mode)
    return None if content is None else bytes(content)
