from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.runs.local import code_digest


def test_digest_depends_on_code_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1")
    first = code_digest.compute_code_digest(tmp_path)
    assert first is not None
    for path in ("notes.txt", ".hidden/x.py", "__pycache__/x.py", "venv/pyvenv.cfg", "venv/lib/x.py", "rank_0/a.bin"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    assert code_digest.compute_code_digest(tmp_path) == first
    (tmp_path / "train.py").write_text("a = 2")
    second = code_digest.compute_code_digest(tmp_path)
    (tmp_path / "train.py").rename(tmp_path / "fit.py")
    third = code_digest.compute_code_digest(tmp_path)
    assert len({first, second, third, code_digest.compute_code_digest()}) == 4


def test_digest_depends_on_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    first = code_digest.compute_code_digest()
    monkeypatch.setattr(code_digest.importlib.metadata, "version", lambda name: "0")
    assert code_digest.compute_code_digest() != first


def test_digest_depends_on_this_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "toy_sources" / "__init__.py"
    module.parent.mkdir()
    module.write_text("a = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "kfp_mindspore" in code_digest._PACKAGES
    assert "mindsporeserver" in code_digest._PACKAGES
    monkeypatch.setattr(code_digest, "_PACKAGES", ("toy_sources",))
    first = code_digest.compute_code_digest()
    module.write_text("a = 2")
    assert code_digest.compute_code_digest() != first


def test_too_many_files_disable_caching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_digest, "MAXIMUM_FILES", 500)
    for index in range(501):
        (tmp_path / f"m{index}.py").touch()
    assert code_digest.compute_code_digest(tmp_path) is None
