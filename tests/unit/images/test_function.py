from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images import collect_function, collect_script
from kfp_mindspore.images.local_imports import resolve_module_imports

PROJECT = {
    "shop/__init__.py": "from .prices import total\n",
    "shop/prices.py": "import decimal\nfrom . import tax\nfrom .deep import *\ntotal = 1\n",
    "shop/tax.py": "def rate():\n    import numpy\n    return 1\n",
    "shop/deep/__init__.py": "import shop.deep.low as low\n",
    "shop/deep/low.py": "try:\n    import yaml\nexcept ImportError:\n    yaml = None\n",
    "shop/unused.py": "import torch\n",
    "desk/train.py": "from shop import tax\nfrom plain.part import x\ndef main(): print(tax.rate())\nclass Job: pass\n"
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
    """Import desk.train, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(project))
    before = set(sys.modules)
    module = importlib.import_module("desk.train")
    yield module
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("shop", "desk", "plain"):
            del sys.modules[name]


def test_takes_the_modules_that_are_imported(project: Path) -> None:
    imports = resolve_module_imports("desk.train", project)
    assert imports.files == {
        "desk/train.py": "desk.train",
        "plain/part.py": "plain.part",
        "shop/__init__.py": "shop",
        "shop/deep/__init__.py": "shop.deep",
        "shop/deep/low.py": "shop.deep.low",
        "shop/prices.py": "shop.prices",
        "shop/tax.py": "shop.tax",
    }
    assert imports.external == {"numpy", "yaml"}


def test_a_function_comes_with_its_modules_and_runs_alone(train: ModuleType, tmp_path: Path) -> None:
    context = collect_function(train.main)
    assert context.command == ("python3", "-c", "from desk.train import main; main()")
    assert context.origin == "function desk.train.main"
    assert any("desk.train, plain.part, shop, shop.deep" in note for note in context.notes)
    assert any("numpy, yaml" in note for note in context.notes)
    root = tmp_path / "image"
    for entry in context.entries:
        (root / entry.path).parent.mkdir(parents=True, exist_ok=True)
        (root / entry.path).write_bytes(b"".join(entry.read()))
    command = [sys.executable, *context.command[1:]]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_a_class_is_taken_and_arguments_leave_the_command_open(train: ModuleType) -> None:
    assert collect_function(train.Job).origin == "class desk.train.Job"
    assert collect_function(train.needs).command == ()
    assert collect_function(train.needs, command=["python3", "-m", "x"]).command == ("python3", "-m", "x")


def test_refuses_what_no_import_can_reach(train: ModuleType) -> None:
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


def test_a_script_comes_with_its_neighbours(project: Path) -> None:
    script = project / "run it.py"
    script.write_text("import shop.tax, requests\n")
    context = collect_script(script)
    assert context.command == ("python3", "run it.py")
    assert {entry.path for entry in context.entries} >= {"run it.py", "shop/tax.py"}
    assert any("requests" in note for note in context.notes)
    with pytest.raises(NotFoundError, match="no such file"):
        collect_script(project / "none.py")
    script.write_text("def f(:\n")
    with pytest.raises(UserError, match=r"run it\.py, line 1"):
        collect_script(script)


def test_names_the_module_that_is_no_python(project: Path) -> None:
    (project / "shop" / "tax.py").write_text("x = 1\nif\n")
    with pytest.raises(UserError, match=r"tax\.py, line 2"):
        resolve_module_imports("desk.train", project)
    with pytest.raises(UserError, match="no such module below"):
        resolve_module_imports("desk.none", project)
