"""The digits lifecycle by the command line: real data, a real job and a real server."""

from __future__ import annotations

import contextlib
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

import psutil
import pytest

# A run takes 15 s on an idle machine; on a busy one it must not fail.
RUN_SECONDS = 600
EXIT_SECONDS = 60
pytestmark = pytest.mark.timeout(3 * RUN_SECONDS)

STEPS = ["load-dataset", "train-msjob", "export-mindir", "evaluate-mindir", "deploy-kserve"]


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
    try:
        output, errors = process.communicate(timeout=RUN_SECONDS)
    finally:
        process.kill()
    return process.returncode, output, errors


def run_json(home: Path, *words: str, code: int = 0) -> dict[str, Any]:
    exit_code, output, errors = run(home, *words, "--json")
    assert exit_code == code, errors
    value: dict[str, Any] = json.loads(output.splitlines()[-1])
    return value


def list_processes(home: Path) -> list[str]:
    """Return the command lines of the processes whose environment contains a home directory."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(str(home) in value for value in process.environ().values()):
                lines.append(" ".join(process.cmdline()))
    return [line for line in lines if line]


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def get_readiness(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"{url}/v2/models/digits/ready", timeout=5) as response:
            return dict(json.loads(response.read() or b"{}"))
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("lifecycle")
    yield home
    assert wait_for(lambda: not list_processes(home), EXIT_SECONDS), list_processes(home)


@pytest.fixture(scope="module")
def first(home: Path) -> dict[str, Any]:
    return run_json(home, "run", "digits_lifecycle")


def test_lifecycle_succeeds(home: Path, first: dict[str, Any]) -> None:
    assert first["states"] == dict.fromkeys(STEPS, "succeeded")
    assert first["value"] >= 0.95
    assert first["samples"] >= 300
    assert first["label"] in set("0123456789")
    assert first["prediction"] in set("0123456789")
    assert first["max_abs_diff"] <= 1e-5
    assert first["url"].startswith("http://127.0.0.1:")
    assert list(first["seconds"]) == sorted(STEPS)
    assert 0 < first["overhead_seconds"] < first["wall_seconds"]
    # The start-up of a server is overhead, not a span of work; the smoke test is one.
    assert 0 < first["body_seconds"]["deploy-kserve"] < first["seconds"]["deploy-kserve"]
    report = Path(first["report"]).read_text()
    for part in ("Confusion matrix", "Prediction of the service", "Loss", "mindspore"):
        assert part in report
    assert report.count("<rect") == 64


def test_run_leaves_no_process(home: Path, first: dict[str, Any]) -> None:
    assert wait_for(lambda: not list_processes(home), EXIT_SECONDS), list_processes(home)
    assert get_readiness(first["url"]) is None
    assert not (home / "services").exists()


def test_rerun_is_cached_and_unmet_gate_keeps_deployed_service(home: Path, first: dict[str, Any]) -> None:
    again = run_json(home, "run", "digits_lifecycle", "--keep")
    try:
        assert [again["states"][step] for step in STEPS] == ["cached"] * 4 + ["succeeded"]
        assert again["value"] == first["value"]
        assert get_readiness(again["url"]) is not None
        before = list_processes(home)
        code, output, errors = run(home, "run", "digits_lifecycle", "--keep", "-p", "threshold=0.9999", "--json")
        refused = json.loads(output.splitlines()[-1])
        accuracy = first["value"]
        assert code == 3
        assert f"accuracy {accuracy:.3f} is {0.9999 - accuracy:.3f} below the threshold of 1.000" in errors
        assert "Traceback" not in errors
        assert refused["states"]["deploy-kserve"] == "succeeded"
        assert (refused["url"], refused["prediction"]) == (None, None)
        assert "Skipped: deploy-kserve. Deployed models are unchanged." in errors
        assert refused["state"] == "refused"
        assert "below the threshold" in Path(refused["report"]).read_text()
        # The deployed service is unchanged: the same processes, still ready.
        assert list_processes(home) == before
        assert get_readiness(again["url"]) is not None
    finally:
        code, _, errors = run(home, "service", "stop", "digits")
    assert code == 0, errors
    assert wait_for(lambda: not list_processes(home), EXIT_SECONDS), list_processes(home)
    assert get_readiness(again["url"]) is None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_run_terminated_in_training_leaves_no_process(home: Path, number: int) -> None:
    earlier = set(home.glob("runs/*"))
    process = start(home, "run", "digits_lifecycle", "-p", "epochs=5000", "-p", "batch_size=8")

    def list_new(pattern: str) -> list[Path]:
        return [path for run in set(home.glob("runs/*")) - earlier for path in run.rglob(pattern)]

    try:
        # From the second epoch on, checkpoints are being written.
        assert wait_for(lambda: any('"epoch": 2' in path.read_text() for path in list_new("events.jsonl")), RUN_SECONDS)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=EXIT_SECONDS)
    finally:
        process.kill()
    assert wait_for(lambda: not list_processes(home), EXIT_SECONDS), list_processes(home)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in errors
    # Bundles and checkpoints are complete or absent.
    assert not list_new("model.mindir")
    for checkpoint in list_new("checkpoint.json"):
        if ".tmp" not in str(checkpoint):
            json.loads(checkpoint.read_text())
