from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.runs import code_digest as code


def test_only_a_change_of_code_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1")
    first = code.digest_code(tmp_path)
    assert first is not None
    for path in ("notes.txt", ".hidden/x.py", "__pycache__/x.py", "venv/pyvenv.cfg", "venv/lib/x.py", "rank_0/a.bin"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    assert code.digest_code(tmp_path) == first
    (tmp_path / "train.py").write_text("a = 2")
    second = code.digest_code(tmp_path)
    (tmp_path / "train.py").rename(tmp_path / "fit.py")
    third = code.digest_code(tmp_path)
    assert len({first, second, third, code.digest_code()}) == 4


def test_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    first = code.digest_code()
    monkeypatch.setattr(code.importlib.metadata, "version", lambda name: "0")
    assert code.digest_code() != first


def test_a_change_of_this_package_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "toy_sources" / "__init__.py"
    module.parent.mkdir()
    module.write_text("a = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "kfp_mindspore" in code._PACKAGES
    assert "mindsporeserver" in code._PACKAGES
    monkeypatch.setattr(code, "_PACKAGES", ("toy_sources",))
    first = code.digest_code()
    module.write_text("a = 2")
    assert code.digest_code() != first


def test_a_directory_with_too_many_files_switches_the_cache_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "MAXIMUM_FILES", 500)
    for index in range(501):
        (tmp_path / f"m{index}.py").touch()
    assert code.digest_code(tmp_path) is None
