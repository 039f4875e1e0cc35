from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kfp_mindspore.msjob.backends.heartbeats import Heartbeats, get_hang_seconds


def beat(
    heartbeats: Heartbeats, name: str, step: int | None, *, in_step: bool = True, version: int = 0, ended: str = ""
) -> None:
    file = heartbeats.get_file(name)
    file.write_text(json.dumps({"rank": 0, "step": step, "time": 0.0, "in_step": in_step, "ended": ended}))
    os.utime(file, ns=(version, version))


@pytest.fixture
def heartbeats(tmp_path: Path) -> Heartbeats:
    made = Heartbeats(tmp_path / "beats")
    made.clear()
    return made


@pytest.mark.parametrize(
    ("step", "limit", "seconds", "is_stale"),
    [(7, 10, 9, False), (7, 10, 10, True), (None, 10, 29, False), (None, 10, 30, True), (7, 0, 1e9, False)],
)
def test_age(heartbeats: Heartbeats, step: int | None, limit: float, seconds: float, is_stale: bool) -> None:
    beat(heartbeats, "worker", step)
    limits = {"worker": limit, "not-started": 1.0}
    assert heartbeats.list_stale(limits, 100.0) == []
    assert heartbeats.list_stale(limits, 100.0 + seconds) == ["worker"] * is_stale


def test_worker_that_exports_after_its_training_is_not_hung(heartbeats: Heartbeats) -> None:
    beat(heartbeats, "worker", 7, ended="done")
    assert heartbeats.list_stale({"worker": 10}, 0.0) == heartbeats.list_stale({"worker": 10}, 1e9) == []


@pytest.mark.parametrize("version", [-(10**18), 10**18], ids=["back", "ahead"])
def test_clock_jump_is_no_hang(heartbeats: Heartbeats, version: int) -> None:
    beat(heartbeats, "worker", 7)
    assert heartbeats.list_stale({"worker": 10}, 0.0) == []
    beat(heartbeats, "worker", 8, version=version)
    assert heartbeats.list_stale({"worker": 10}, 9.0) == []
    assert heartbeats.list_stale({"worker": 10}, 18.0) == []
    assert heartbeats.list_stale({"worker": 10}, 19.5) == ["worker"]


@pytest.mark.parametrize(
    ("beats", "text"),
    [
        ({}, ""),
        ({"a": (5, True), "b": (5, False)}, "b is outside of a step after step 5"),
        ({"a": (5, True), "b": (4, True)}, "b is outside of a step after step 4"),
        ({"a": (5, True), "b": (5, True)}, "all after step 5"),
        ({"a": (None, False)}, "b has not started to train"),
        ({"a": (5, True), "b": (None, False)}, "b is outside of a step after step 0"),
    ],
)
def test_late_workers_are_named(heartbeats: Heartbeats, beats: dict[str, tuple[int | None, bool]], text: str) -> None:
    for name, (step, in_step) in beats.items():
        beat(heartbeats, name, step, in_step=in_step)
    assert heartbeats.describe(["a", "b"]) == text


@pytest.mark.parametrize(("text", "seconds"), [(None, 600.0), ("", 600.0), ("0", 0.0), ("2.5", 2.5), ("soon", 600.0)])
def test_limit(text: str | None, seconds: float) -> None:
    assert get_hang_seconds({} if text is None else {"KFP_MINDSPORE_HANG_SECONDS": text}) == seconds
