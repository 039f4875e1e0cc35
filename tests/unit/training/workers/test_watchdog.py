from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.training.workers import watchdog
from kfp_mindspore.training.workers.watchdog import Watchdog, build_watchdog

PROGRAM = """
import sys, threading, time
from kfp_mindspore.training.workers import watchdog

def compute_forever():
    with watchdog.watch():
        watchdog.begin_step()
        watchdog.end_step(41)
        print("ready", flush=True)
        time.sleep(600)

compute_forever()
"""


@pytest.mark.parametrize(
    ("environment", "is_active"),
    [
        ({}, False),
        ({"MS_ROLE": "MS_SCHED", "KFP_MINDSPORE_HEARTBEAT_FILE": "beat"}, False),
        ({"MS_ROLE": "MS_WORKER"}, True),
        ({"KFP_MINDSPORE_HEARTBEAT_FILE": "beat"}, True),
        ({"KFP_MINDSPORE_HANG_SECONDS": "5"}, True),
    ],
)
def test_only_workers_of_job_have_watchdog(environment: dict[str, str], is_active: bool) -> None:
    assert (build_watchdog(environment) is not None) == is_active


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf"])
def test_hang_seconds_are_checked(text: str) -> None:
    with pytest.raises(UserError, match="KFP_MINDSPORE_HANG_SECONDS: must be a number of seconds ≥ 0"):
        build_watchdog({"KFP_MINDSPORE_HANG_SECONDS": text})


@pytest.mark.parametrize(
    ("hang_seconds", "step", "seconds", "is_hung"),
    [
        (10, None, 29, False),
        (10, None, 31, True),
        (10, 1, 9, False),
        (10, 1, 11, True),
        (0, 1, 1e9, False),
    ],
)
def test_limits(hang_seconds: float, step: int | None, seconds: float, is_hung: bool) -> None:
    made = Watchdog(0, hang_seconds, None)
    if step is not None:
        made.end_step(step)
    assert made.is_hung(made.progressed + seconds) == is_hung


@pytest.mark.parametrize(("is_terminated", "ended"), [(False, "done"), (True, "terminated")])
def test_last_heartbeat_has_reason_of_end(tmp_path: Path, is_terminated: bool, ended: str) -> None:
    beat = tmp_path / "beat.json"
    with watchdog.watch({"KFP_MINDSPORE_HEARTBEAT_FILE": str(beat)}):
        assert json.loads(beat.read_text())["ended"] == ""
        if is_terminated:
            watchdog.mark_terminated()
    assert json.loads(beat.read_text())["ended"] == ended


def test_hung_process_writes_its_stacks_and_ends(tmp_path: Path) -> None:
    """The stacks are written on STACKS_SIGNAL too, without an end of the process."""
    beat = tmp_path / "beat.json"
    environment = {
        "MS_ROLE": "MS_WORKER",
        "MS_NODE_ID": "3",
        "KFP_MINDSPORE_HEARTBEAT_FILE": str(beat),
        "KFP_MINDSPORE_HANG_SECONDS": "3",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR2)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 76
    first, _, second = errors.partition("rank 3: no progress for ")
    assert "since step 41; its stacks:" in second
    assert "in compute_forever" in first
    assert "in compute_forever" in second
    written = json.loads(beat.read_text())
    assert {name: written[name] for name in ("rank", "step", "in_step")} == {"rank": 3, "step": 41, "in_step": False}
