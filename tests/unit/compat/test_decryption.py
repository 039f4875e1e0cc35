"""Decryption of MindIR files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.compat.decryption import decrypt_file
from kfp_mindspore.formats.bundle import MODEL_FILE

pytestmark = pytest.mark.mindspore

KEY = bytes(range(32))


def test_fault_upstream_no_public_function_decrypts_to_bytes() -> None:
    import mindspore

    assert [name for name in dir(mindspore) if "decrypt" in name.lower()] == [], "fixed upstream: use it"


def test_content_equals_the_plain_file(models: Path) -> None:
    assert (
        decrypt_file(models / "encrypted" / MODEL_FILE, KEY, "AES-GCM") == (models / "free" / MODEL_FILE).read_bytes()
    )


def test_wrong_key_returns_none(models: Path) -> None:
    assert decrypt_file(models / "encrypted" / MODEL_FILE, bytes(32), "AES-GCM") is None
