from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore import events


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_file_is_written_outside_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KFP_MINDSPORE_EVENTS", raising=False)
    monkeypatch.chdir(tmp_path)
    events.emit("progress", "training.fit", epoch=1)
    assert list(tmp_path.iterdir()) == []


def test_span_records_task_and_seconds_after_exception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("KFP_MINDSPORE_EVENTS", str(path))
    monkeypatch.setenv("KFP_MINDSPORE_STEP", "export-mindir")
    with pytest.raises(ZeroDivisionError), events.span("mindir.export"):
        raise ZeroDivisionError
    begin, end = read(path)
    assert (begin["kind"], end["kind"]) == ("begin", "end")
    assert begin["task"] == end["task"] == "export-mindir"
    assert isinstance(end["seconds"], float)


def test_concurrent_writers_do_not_interleave_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = "from kfp_mindspore import events\nfor i in range(500): events.emit('progress', 'x' * 200, i=i)"
    environment = {"KFP_MINDSPORE_EVENTS": str(path), "PYTHONPATH": ":".join(sys.path)}
    writers = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = read(path)
    assert len(lines) == 1500
    for pid in {line["pid"] for line in lines}:
        assert [line["i"] for line in lines if line["pid"] == pid] == list(range(500))
