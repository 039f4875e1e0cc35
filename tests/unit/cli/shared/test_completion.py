"""Completion of names, by click's machinery on the whole command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from kfp_mindspore.cli.main import cli


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "services/default/digits", "services/default/wine", "services/default/.digits-canary", "services/team/cats",
        "jobs/default/lenet", "jobs/default/.lock", "runs/demo-1", "runs/demo-2", "runs/no-run",
    ):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
    for run in ("demo-1", "demo-2"):
        (tmp_path / "runs" / run / "request.json").touch()
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    return tmp_path


def complete(line: str) -> list[str]:
    *words, incomplete = line.split(" ")
    return [item.value for item in ShellComplete(cli, {}, "kfp-mindspore", "").get_completions(words, incomplete)]


@pytest.mark.parametrize("command", ["describe", "promote", "rollback", "stop", "delete", "logs", "create"])
def test_services_are_completed(home: Path, command: str) -> None:
    assert complete(f"service {command} ") == ["digits", "wine"]


@pytest.mark.parametrize("command", ["get", "logs", "wait", "suspend", "resume", "scale", "delete"])
def test_jobs_are_completed(home: Path, command: str) -> None:
    assert complete(f"job {command} ") == ["lenet"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("service stop di", ["digits"]),
        ("service stop -n team ", ["cats"]),
        ("service logs --lines 3 w", ["wine"]),
        ("service stop --backend kubernetes ", []),
        ("job get --context kind ", []),
        ("runs open ", ["demo-1", "demo-2"]),
        ("runs rm demo-1 demo-", ["demo-2"]),
        ("run digits_l", ["digits_lifecycle"]),
        ("pipeline check -n a digits_l", ["digits_lifecycle"]),
        *((f"pipeline {name} digits_l", ["digits_lifecycle"]) for name in ("run", "compile", "upload", "schedule")),
    ],
)
def test_names_are_completed_by_words_before(home: Path, line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_files_are_completed_where_no_pipeline_matches(home: Path) -> None:
    (item,) = ShellComplete(cli, {}, "kfp-mindspore", "").get_completions(["run"], "my-project/")
    assert (item.type, item.value) == ("file", "my-project/")


def test_missing_home_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "missing"))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    assert [complete(line) for line in ("service stop ", "job get ", "runs open ")] == [[], [], []]


@pytest.mark.parametrize("line", ["service stop di", "job get le", "runs open de", "pipeline run digits_l"])
def test_completion_imports_no_heavy_library(home: Path, line: str) -> None:
    code = (
        "import sys\nfrom kfp_mindspore.cli.main import main\ntry:\n    main()\nfinally:\n"
        "    print({'kfp', 'mindspore', 'numpy', 'yaml', 'rich', 'kubernetes', 'aiohttp', 'psutil'} & set(sys.modules))"
    )
    words = ["kfp-mindspore", *line.split()]
    completion = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **completion, "_KFP_MINDSPORE_COMPLETE": "bash_complete"},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    completed, *_, modules = done.stdout.splitlines()
    assert completed.startswith(f"plain,{words[-1]}")
    assert modules == "set()"
