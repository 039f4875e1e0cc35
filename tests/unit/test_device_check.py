"""`make test-device` on a machine without a device, and its report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfp_mindspore.mindir.devices import count_devices
from tests.device import __main__ as check

ROOT = Path(__file__).parents[2]


def test_machine_without_device_is_skipped_with_reason(tmp_path: Path) -> None:
    if count_devices("GPU") or count_devices("Ascend"):
        pytest.skip("this machine has a device that MindSpore can use")
    words = [sys.executable, "-m", "tests.device", "--report", str(tmp_path / "build" / "device.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "build" / "device.json").read_text()) == report
    assert (report["device"], report["stages"]) == ("", {})
    assert report["skipped"].startswith("Ascend: ")
    assert "; GPU: " in report["skipped"]
    assert f"skipped: MindSpore can use no GPU and no NPU here: {report['skipped']}" in done.stderr


def test_stage_that_fails_or_comes_late_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = check.Place("CPU", tmp_path, time.monotonic() + 60)

    def fail(place: check.Place) -> dict[str, float]:
        assert place.device == "GPU", place.device
        return {}

    def end(place: check.Place) -> dict[str, float]:
        place.deadline = 0
        return {"answer": 42}

    monkeypatch.setattr(check, "STAGES", {"first": fail, "second": end, "third": fail})
    found = dict(check.run_stages(place))
    assert list(found) == ["first", "second", "third"]
    assert found["first"]["failed"].startswith("AssertionError: CPU")
    assert found["second"]["answer"] == 42
    assert found["third"] == {"skipped": "no time is left"}
