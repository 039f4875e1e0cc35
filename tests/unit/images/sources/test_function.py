from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images import collect_function, collect_script
from kfp_mindspore.images.sources.local_imports import resolve_module_imports

PROJECT = {
    "shared/__init__.py": "from .prices import total\n",
    "shared/prices.py": "import decimal\nfrom . import tax\nfrom .deep import *\ntotal = 1\n",
    "shared/tax.py": "def rate():\n    import numpy\n    return 1\n",
    "shared/deep/__init__.py": "import shared.deep.low as low\n",
    "shared/deep/low.py": "try:\n    import yaml\nexcept ImportError:\n    yaml = None\n",
    "shared/unused.py": "import torch\n",
    "app/train.py": "from shared import tax\nfrom plain.part import x\ndef main(): print(tax.rate())\nclass Job: pass\n"
    "def needs(a, b=1): pass\ndef outer():\n    def inner(): pass\n    return inner\n",
    "plain/part.py": "x = 1\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path, content in PROJECT.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path


@pytest.fixture
def train(project: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import app.train, and remove it from sys.modules afterwards."""
    monkeypatch.syspath_prepend(str(project))
    before = set(sys.modules)
    module = importlib.import_module("app.train")
    yield module
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("shared", "app", "plain"):
            del sys.modules[name]


def test_local_imports_are_resolved(project: Path) -> None:
    imports = resolve_module_imports("app.train", project)
    assert imports.files == {
        "app/train.py": "app.train",
        "plain/part.py": "plain.part",
        "shared/__init__.py": "shared",
        "shared/deep/__init__.py": "shared.deep",
        "shared/deep/low.py": "shared.deep.low",
        "shared/prices.py": "shared.prices",
        "shared/tax.py": "shared.tax",
    }
    assert imports.external == {"numpy", "yaml"}


def test_function_runs_from_its_context_alone(train: ModuleType, tmp_path: Path) -> None:
    context = collect_function(train.main)
    assert context.command == ("python3", "-c", "from app.train import main; main()")
    assert any("app.train, plain.part, shared, shared.deep" in note for note in context.notes)
    assert any("numpy, yaml" in note for note in context.notes)
    root = tmp_path / "image"
    for entry in context.entries:
        (root / entry.path).parent.mkdir(parents=True, exist_ok=True)
        (root / entry.path).write_bytes(b"".join(entry.read()))
    command = [sys.executable, *context.command[1:]]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_class_and_function_with_arguments(train: ModuleType) -> None:
    assert collect_function(train.Job).command == ("python3", "-c", "from app.train import Job; Job()")
    assert collect_function(train.needs).command == ()
    assert collect_function(train.needs, command=["python3", "-m", "x"]).command == ("python3", "-m", "x")


def test_functions_without_importable_name_are_refused(train: ModuleType) -> None:
    with pytest.raises(UserError, match=r"outer\.<locals>\.inner must be at the top"):
        collect_function(train.outer())
    with pytest.raises(UserError, match="<lambda> must be"):
        collect_function(lambda: None)
    with pytest.raises(UserError, match="must be a function or a class, got 3"):
        collect_function(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be a function or a class"):
        collect_function(print)
    typed: dict[str, object] = {"__name__": "__main__"}
    exec("def typed(): pass", typed)
    with pytest.raises(UserError, match="typed is not defined in a file"):
        collect_function(typed["typed"])  # type: ignore[arg-type]


def test_script_includes_its_local_modules(project: Path) -> None:
    script = project / "run it.py"
    script.write_text("import shared.tax, requests\n")
    context = collect_script(script)
    assert context.command == ("python3", "run it.py")
    assert {entry.path for entry in context.entries} >= {"run it.py", "shared/tax.py"}
    assert any("requests" in note for note in context.notes)
    with pytest.raises(NotFoundError, match="no such file"):
        collect_script(project / "none.py")
    script.write_text("def f(:\n")
    with pytest.raises(UserError, match=r"run it\.py, line 1"):
        collect_script(script)


def test_module_with_syntax_error_is_named(project: Path) -> None:
    (project / "shared" / "tax.py").write_text("x = 1\nif\n")
    with pytest.raises(UserError, match=r"tax\.py, line 2"):
        resolve_module_imports("app.train", project)
    with pytest.raises(UserError, match="no such module below"):
        resolve_module_imports("app.none", project)
