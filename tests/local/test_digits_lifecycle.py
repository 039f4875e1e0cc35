"""The whole lifecycle on this machine: real data, a real job, a real server, as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lifecycle, pytest.mark.timeout(240)]

STEPS = ["load-dataset", "train-msjob", "export-mindir", "evaluate-mindir", "deploy-kserve", "smoke-test"]


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kfp_mindspore.cli.main", *words],
        env={**os.environ, "KFP_MINDSPORE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(home: Path, *words: str) -> tuple[int, str, str]:
    process = start(home, *words)
    output, errors = process.communicate(timeout=180)
    return process.returncode, output, errors


def run_json(home: Path, *words: str, code: int = 0) -> dict[str, Any]:
    exit_code, output, errors = run(home, *words, "--json")
    assert exit_code == code, errors
    value: dict[str, Any] = json.loads(output.splitlines()[-1])
    return value


def find_processes(home: Path) -> list[str]:
    """Return the command lines of the processes that belong to a home directory: all inherit its variable."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            if str(home).encode() in (directory / "environ").read_bytes():
                found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return [line for line in found if line]


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def ask(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"{url}/v2/models/digits/ready", timeout=5) as answer:
            return dict(json.loads(answer.read() or b"{}"))
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("lifecycle")
    yield home
    assert wait_for(lambda: not find_processes(home), 10), find_processes(home)


@pytest.fixture(scope="module")
def first(home: Path) -> dict[str, Any]:
    return run_json(home, "run", "digits_lifecycle")


def test_digits_go_from_training_to_a_served_prediction(home: Path, first: dict[str, Any]) -> None:
    assert first["states"] == dict.fromkeys(STEPS, "succeeded")
    assert first["accuracy"] >= 0.95
    assert first["test_images"] >= 300
    assert first["label"] in set("0123456789")
    assert first["prediction"] in set("0123456789")
    assert first["max_abs_diff"] <= 1e-5
    assert first["url"].startswith("http://127.0.0.1:")
    assert list(first["seconds"]) == sorted(STEPS)
    assert 0 < first["overhead_seconds"] < first["wall_seconds"]
    # Starting a server is waiting, not work.
    assert [step for step in STEPS if not first["body_seconds"][step]] == ["deploy-kserve"]
    report = Path(first["report"]).read_text()
    for part in ("Confusion matrix", "Prediction of the service", "Loss", "mindspore"):
        assert part in report
    assert report.count("<rect") == 64


def test_nothing_is_left_running(home: Path, first: dict[str, Any]) -> None:
    assert find_processes(home) == []
    assert ask(first["url"]) is None
    assert not (home / "services").exists()


def test_a_rerun_is_cached_and_answers_from_a_live_process(home: Path, first: dict[str, Any]) -> None:
    again = run_json(home, "run", "digits_lifecycle")
    assert [again["states"][step] for step in STEPS] == ["cached"] * 4 + ["succeeded"] * 2
    assert sum(again["seconds"][step] for step in STEPS[:4]) <= 1.0
    assert again["accuracy"] == first["accuracy"]
    assert again["seconds"]["smoke-test"] > 0
    servers = [
        next(Path(result["directory"]).glob("home/services/*/digits/**/*.log"), None) for result in (first, again)
    ]
    assert None not in servers
    assert servers[0] != servers[1]


def test_a_gate_that_is_not_met_deploys_nothing_and_says_by_how_much(home: Path, first: dict[str, Any]) -> None:
    kept = run_json(home, "run", "digits_lifecycle", "--keep")
    try:
        assert ask(kept["url"]) is not None
        before = find_processes(home)
        code, output, errors = run(home, "run", "digits_lifecycle", "--keep", "-p", "threshold=0.9999", "--json")
        refused = json.loads(output.splitlines()[-1])
        accuracy = first["accuracy"]
        assert code == 3
        assert f"accuracy {accuracy:.3f} is {0.9999 - accuracy:.3f} below the threshold of 1.000" in errors
        assert "Traceback" not in errors
        assert [refused["states"][step] for step in STEPS[4:]] == ["skipped"] * 2
        assert refused["state"] == "refused"
        assert "below the threshold" in Path(refused["report"]).read_text()
        # What is deployed is untouched: the same processes, still answering.
        assert find_processes(home) == before
        assert ask(kept["url"]) is not None
    finally:
        code, _, errors = run(home, "service", "stop", "digits")
    assert code == 0, errors
    assert wait_for(lambda: not find_processes(home), 10), find_processes(home)
    assert ask(kept["url"]) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_in_training_leaves_nothing(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, "run", "digits_lifecycle", "-p", "epochs=5000", "-p", "batch_size=8")
    try:
        # In the middle of the second epoch or later: the first checkpoint is written, further ones follow.
        assert wait_for(
            lambda: any('"epoch": 2' in path.read_text() for path in tmp_path.glob("runs/*/events.jsonl")), 60
        )
        begin = time.monotonic()
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert wait_for(lambda: not find_processes(tmp_path), 15), find_processes(tmp_path)
    assert time.monotonic() - begin < 30
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in errors
    # Neither a bundle nor a checkpoint is half there.
    assert not list(tmp_path.rglob("model.mindir"))
    for checkpoint in tmp_path.rglob("checkpoint.json"):
        if ".tmp" not in str(checkpoint):
            json.loads(checkpoint.read_text())


def test_two_workers_train_together(tmp_path: Path) -> None:
    result = run_json(tmp_path, "run", "digits_lifecycle", "-p", "workers=2", "-p", "epochs=3", "-p", "threshold=0.3")
    assert result["states"] == dict.fromkeys(STEPS, "succeeded")
    assert find_processes(tmp_path) == []
