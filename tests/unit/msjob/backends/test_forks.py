"""Which members are forked; real ones are in tests/faults/test_gang_faults.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.local.process import ProcessSpec
from kfp_mindspore.msjob.backends import forks
from kfp_mindspore.msjob.backends.forks import WarmInterpreter

STARTED = {"PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8", "GLOG_v": "3", "PYTHONPATH": "/package"}
SCRIPT = "import mindspore\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that prepares for a worker and returns whether another member is forked."""
    monkeypatch.setattr(forks, "import_mindspore", lambda: None)
    monkeypatch.setattr(forks, "_MODULES", ())
    monkeypatch.setattr(forks, "fork_child", lambda *arguments, **options: "forked")
    monkeypatch.setattr(forks, "is_single_threaded", lambda: True)
    monkeypatch.setattr(forks.os, "environ", dict(STARTED))
    (tmp_path / "train.py").write_text(SCRIPT)

    def is_forked(worker: dict[str, str] | None = None, argv: tuple[str, ...] = ("train.py",), **changes: str) -> bool:
        environment = {**STARTED, "OMP_NUM_THREADS": "1", "MS_ROLE": "MS_WORKER", "MS_NODE_ID": "0", **(worker or {})}
        spec = ProcessSpec((sys.executable, *argv), tmp_path, environment)
        warm = WarmInterpreter()
        warm.prepare(spec)
        member = ProcessSpec(spec.argv, tmp_path, {**environment, **changes})
        return warm.fork(member, tmp_path / "log") == "forked"

    return is_forked


@pytest.mark.parametrize(
    ("changes", "is_forked"),
    [
        ({"MS_NODE_ID": "1", "MS_NODE_TIMEOUT": "30", "DATA": "x"}, True),
        ({"OMP_NUM_THREADS": "2"}, False),
        ({"MS_ROLE": "MS_SCHED", "OMP_NUM_THREADS": "2"}, True),
        ({"GLOG_v": "1"}, False),
        ({"MS_DEV_X": "1"}, False),
        ({"PYTHONOPTIMIZE": "1"}, False),
        ({"LD_LIBRARY_PATH": "/lib"}, False),
        ({"LANG": "C"}, False),
        ({"PYTHONPATH": "/project"}, True),
    ],
)
def test_variables_that_imports_read_are_equal(run: Any, changes: dict[str, str], is_forked: bool) -> None:
    assert run(**changes) == is_forked


def test_import_has_variables_of_worker(run: Any) -> None:
    assert run({"GLOG_v": "1", "MS_DEV_X": "1"})
    assert forks.os.environ["GLOG_v"] == forks.os.environ["MS_DEV_X"] == "1"
    assert "MS_ROLE" not in forks.os.environ


@pytest.mark.parametrize(
    ("argv", "is_forked"),
    [
        (("train.py", "-I"), True),
        (("-u", "-u", "train.py"), True),
        (("-m", "train"), True),
        (("-m", "package"), True),
        (("-m", "kfp_mindspore.training"), True),
        (("-I", "train.py"), False),
        (("-S", "train.py"), False),
        (("-c", "import mindspore"), False),
        (("other.py",), False),
        (("missing.py",), False),
    ],
)
def test_python_programs_that_use_mindspore_are_forked(
    run: Any, tmp_path: Path, argv: tuple[str, ...], is_forked: bool
) -> None:
    (tmp_path / "other.py").write_text("import torch\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(SCRIPT)
    assert run(argv=argv) == is_forked


@pytest.mark.parametrize(
    ("name", "is_forked"),
    [
        ("model.py", True),
        ("pytest/data.txt", True),
        ("pytest/__init__.py", False),
        ("pytest.py", False),
        ("sitecustomize.py", False),
    ],
)
def test_module_that_would_replace_imported_one_needs_new_process(
    run: Any, tmp_path: Path, name: str, is_forked: bool
) -> None:
    file = tmp_path / "project" / name
    file.parent.mkdir(parents=True)
    file.touch()
    assert run(PYTHONPATH="project") == is_forked


def test_switch(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forks.os.environ, "KFP_MINDSPORE_FORK", "0")
    assert not run()


def test_several_threads_need_new_process(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "is_single_threaded", lambda: False)
    assert not run()


def test_failed_import_is_printed(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forks, "_MODULES", ("no_such_module",))
    assert not run()
    assert "no_such_module" in capsys.readouterr().err


def test_import_of_mindspore_starts_no_thread() -> None:
    """A release that fails this cannot be forked: members would start as new processes."""
    code = f"""
import importlib
for name in {forks._MODULES}:
    importlib.import_module(name)
from kfp_mindspore.local.fork import is_single_threaded
print(is_single_threaded())
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"True\n"
