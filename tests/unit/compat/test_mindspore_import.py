from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from kfp_mindspore.compat.mindspore_import import import_mindspore


def run(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_import_freezes_objects_and_keeps_collector_enabled() -> None:
    module = "kfp_mindspore.compat.mindspore_import"
    code = f"import gc, {module} as m; m.import_mindspore(); print(gc.get_freeze_count(), gc.isenabled())"
    count, is_enabled = run(code)
    assert int(count) > 100_000
    assert is_enabled == "True"


def test_mindspore_still_leaves_many_objects() -> None:
    """If it fails, MindSpore imports lazily and the module can go."""
    assert int(run("import gc, mindspore; print(len(gc.get_objects()))")[0]) > 100_000


def test_imported_mindspore_freezes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", None)
    before = gc.get_freeze_count()
    import_mindspore()
    assert gc.get_freeze_count() == before


def test_failed_import_enables_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mindspore", raising=False)
    monkeypatch.setattr("importlib.import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError(name)))
    with pytest.raises(ModuleNotFoundError):
        import_mindspore()
    assert gc.isenabled()
