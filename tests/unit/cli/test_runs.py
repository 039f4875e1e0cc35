"""`kfp-mindspore runs` on a home directory with runs in all states."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.local.lease import Lease


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create runs `a-0` (newest) to `a-3` of pipeline a, `b-4`, `killed-5` and the running `live-6`, a day apart."""
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path))
    for age, name in enumerate(["a-0", "a-1", "a-2", "a-3", "b-4", "killed-5", "live-6"]):
        directory = tmp_path / "runs" / name
        (directory / "artifacts").mkdir(parents=True)
        (directory / "artifacts" / "model").write_bytes(bytes(200_000))
        (directory / "request.json").write_text("{}")
        started = time.time() - (age + 0.5) * 86_400
        os.utime(directory / "request.json", (started, started))
        if age < 5:
            result = {"pipeline": name[0], "state": "succeeded", "wall_seconds": 12.34}
            (directory / "result.json").write_text(json.dumps(result))
            (directory / "report.html").touch()
    with Lease.hold(tmp_path / "runs" / "live-6" / "active"):
        yield tmp_path


def list_names(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "runs").iterdir())


def test_list_shows_newest_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "list"]) == 0
    heading, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert heading == ["RUN", "STATE", "STARTED", "SECONDS", "SIZE"]
    assert [row[:2] for row in rows] == [
        *([f"a-{index}", "succeeded"] for index in range(4)), ["b-4", "succeeded"], ["killed-5", "killed"],
        ["live-6", "running"],
    ]  # fmt: skip
    assert rows[0][4:] == ["12.3", "0.2", "MB"]
    assert run(["runs", "list", "--limit", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 older runs: --limit 7"
    assert run(["runs", "list", "--limit", "1", "--json"]) == 0
    (value,) = json.loads(capsys.readouterr().out)["items"]
    assert value["report"] == str(home / "runs" / "a-0" / "report.html")


@pytest.mark.parametrize(
    ("words", "removed"),
    [
        (["b-4", "a-1", "b-4"], ["a-1", "b-4"]),
        (["--keep-last", "2"], ["a-2", "a-3"]),
        (["--keep-last", "0"], ["a-0", "a-1", "a-2", "a-3", "b-4", "killed-5"]),
        (["--older-than", "3"], ["a-3", "b-4", "killed-5"]),
        (["--older-than", "1", "--keep-last", "3"], ["a-3"]),
        (["--older-than", "100"], []),
    ],
)
def test_rm_removes_selected_finished_runs(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], removed: list[str]
) -> None:
    before = list_names(home)
    assert run(["runs", "rm", *words, "--dry-run"]) == 0
    assert list_names(home) == before
    assert sorted(line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if ":" in line) == removed
    assert run(["runs", "rm", *words, "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["removed"]) == removed
    assert sorted({*before} - {*list_names(home)}) == removed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rm"], "expected either run IDs, or --older-than and --keep-last"),
        (["rm", "a-0", "--keep-last", "1"], "expected either run IDs, or --older-than and --keep-last"),
        (["rm", "a-0", "nope"], "nope: no such run"),
        (["rm", "live-6"], "run live-6: is running"),
        (["open", "killed-5"], "run killed-5: has no report, it is killed"),
        (["resume", "nope"], "nope: no such run"),
        (["resume", "live-6"], "run live-6: is running"),
        (["resume", "a-0"], "run a-0: nothing to resume, it has succeeded"),
        (["compare", "nope", "a-0"], "nope: no such run"),
        (["compare", "a-0"], "run a-0: has no metrics.jsonl, so no curves"),
        (["open", "nope"], "nope: no such run\nThere are: a-0, a-1, a-2, a-3, b-4 and 2 more: kfp-mindspore runs list"),
    ],
)
def test_mistake_removes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    before = list_names(home)
    assert run(["runs", *words]) == 2
    assert message in capsys.readouterr().err
    assert list_names(home) == before


def test_open_shows_newest_report(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(click, "launch", opened.append)
    report = home / "runs" / "a-0" / "report.html"
    assert run(["runs", "open"]) == 0
    assert opened == [report.as_uri()]
    assert run(["runs", "open", "a-3", "--print"]) == 0
    assert capsys.readouterr().out == f"{report}\n{home / 'runs' / 'a-3' / 'report.html'}\n"
    assert len(opened) == 1


def test_compare_plots_curves_of_runs_together(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "cached" / "metrics.jsonl"
    cached.parent.mkdir()
    for file, loss in ((cached, 0.5), (home / "runs" / "live-6" / "artifacts" / "metrics.jsonl", 0.25)):
        records = [{"epoch": epoch, "loss": loss / epoch, "validation": {"accuracy": 0.9}} for epoch in (1, 2)]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = home / "runs" / "a-1" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "metrics_file": str(cached)}))
    monkeypatch.chdir(tmp_path)

    assert run(["runs", "compare", "a-1", "live-6", "--print"]) == 0

    assert capsys.readouterr().out == "curves.html\n"
    page = Path("curves.html").read_text()
    assert all(text in page for text in ("a-1, last 0.25", "live-6, last 0.125", ">accuracy<"))
