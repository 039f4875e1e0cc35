"""Decryption of MindIR files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.compat.decryption import try_decrypt_file
from kfp_mindspore.formats.bundle import MODEL_FILE

pytestmark = pytest.mark.mindspore

KEY = bytes(range(32))


def test_fault_upstream_no_public_function_decrypts_to_bytes() -> None:
    import mindspore

    assert [name for name in dir(mindspore) if "decrypt" in name.lower()] == [], "fixed upstream: use it"


def test_content_is_plain_graph(models: Path) -> None:
    content = try_decrypt_file(models / "encrypted" / MODEL_FILE, KEY, "AES-GCM")
    assert content is not None
    assert b"dense.weight" in content


def test_wrong_key_returns_none(models: Path) -> None:
    assert try_decrypt_file(models / "encrypted" / MODEL_FILE, bytes(32), "AES-GCM") is None
