"""The cache of local runs, with real runs of a small pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfp_mindspore import files
from kfp_mindspore.local.reads import add_recorder, list_reads
from kfp_mindspore.runs import run_local
from kfp_mindspore.runs.local import step_inputs
from kfp_mindspore.runs.local.step_inputs import DigestCache, list_paths

pytestmark = pytest.mark.timeout(120)

PIPELINE = """
from kfp import dsl

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def compute(data: str, folder: str, output: str, options: dict) -> str:
    import pathlib
    import subprocess
    import sys
    import outside.network
    # A worker that ends without exit handlers.
    subprocess.run([sys.executable, "-c", "import outside.worker, os; os._exit(0)"], check=True)
    pathlib.Path(output).write_text("result")
    return open("settings.ini").read() + outside.network.VERSION

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def other(value: int) -> int:
    return value

@dsl.pipeline(name="two-steps")
def two(data: str, folder: str, output: str, uri: str = "", nested: str = ""):
    compute(data=data, folder=folder, output=output, options={"weights": [nested], "uri": uri})
    other(value=1)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a project and, on PYTHONPATH, a package outside of it."""
    for name, text in {
        "project/two.py": PIPELINE,
        "project/settings.ini": "a",
        "project/data.csv": "1,2\n",
        "project/images/cat/1.png": "x",
        "weights.bin": "w",
        "library/outside/__init__.py": "",
        "library/outside/network.py": "VERSION = '1'",
        "library/outside/worker.py": "LAYERS = 1",
        "library/outside/unused.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    return tmp_path


def run(place: Path, **arguments: str) -> dict[str, str]:
    given = {"data": "data.csv", "folder": str(place / "project/images"), "output": str(place / "result.txt")}
    source = f"{place}/project/two.py"
    result = run_local(
        source, {**given, "nested": f"file://{place}/weights.bin", **arguments}, home=place / "home", report=False
    )
    assert result.id.startswith("two-steps-")
    return {step.name: step.state for step in result.steps.values()} | {"notes": "; ".join(result.notes)}


CHANGES = {
    "file by a relative path": ("project/data.csv", "9,9"),
    "file of a directory": ("project/images/cat/1.png", "y"),
    "new file of a directory": ("project/images/dog.png", "y"),
    "file URI in a nested argument": ("weights.bin", "v"),
    "module outside the project": ("library/outside/network.py", "VERSION = '2'"),
    "module of a killed worker": ("library/outside/worker.py", "LAYERS = 2"),
    "file opened by the code": ("project/settings.ini", "b"),
}


def test_change_of_input_reruns_its_steps_only(place: Path) -> None:
    assert run(place) == {"compute": "succeeded", "other": "succeeded", "notes": ""}
    (place / "library/outside/unused.py").write_text("changed = True")
    (place / "project/data.csv").touch()
    cached = {"compute": "cached", "other": "cached", "notes": ""}
    assert run(place) == cached
    for title, (name, text) in CHANGES.items():
        (place / name).write_text(text)
        assert run(place) == {"compute": "succeeded", "other": "cached", "notes": ""}, title
    assert run(place) == cached


def test_content_of_uri_is_reported_as_not_compared(place: Path) -> None:
    assert run(place, uri="s3://bucket/data.csv")["notes"] == ""
    assert run(place, uri="s3://bucket/data.csv")["notes"] == (
        "compute: the content of s3://bucket/data.csv was not compared"
    )


def test_input_that_its_step_changes_is_not_cached(place: Path) -> None:
    (place / "result.txt").write_text("before")
    reason = f"compute: not cached: {place}/result.txt changed while the step ran"
    assert run(place) == {"compute": "succeeded", "other": "succeeded", "notes": reason}
    assert run(place) == {"compute": "succeeded", "other": "cached", "notes": ""}
    (place / "result.txt").write_text("edited")
    assert run(place)["compute"] == "succeeded"


def test_damaged_record_is_cache_miss(place: Path) -> None:
    run(place)
    for record in (place / "home/cache").glob("*.inputs.json"):
        record.write_text("{")
    assert run(place) == {"compute": "succeeded", "other": "succeeded", "notes": ""}


def test_digest_cache_detects_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data.csv"
    cache = DigestCache(tmp_path / "cache" / "digests.sqlite")
    assert cache.digest(file) == "missing"
    file.write_text("aaaa")
    first = cache.digest(file)
    old = time.time_ns() - 10**10
    # Same size, and a modification time set back: only the times of the inode differ.
    os.utime(file, ns=(old, old))
    assert cache.digest(file) == first
    file.write_text("bbbb")
    os.utime(file, ns=(old, old))
    second = cache.digest(file)
    assert second not in (first, "missing")
    monkeypatch.setattr(step_inputs, "_RACE_NANOSECONDS", 0)
    assert cache.digest(file) == second
    monkeypatch.setattr(files, "digest_file", lambda path: pytest.fail("read again"))
    assert cache.digest(file) == second
    monkeypatch.setattr(step_inputs, "MAXIMUM_FILES", 0)
    assert cache.digest(tmp_path) is None


def test_only_existing_paths_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    values = ["a.csv", ".", "/", "..", "", "x" * 300, "y" * 5000, "a\nb", "a\0b", "s3://a.csv", "absent", 3, None, True]
    assert list_paths(values, tmp_path / "home") == [tmp_path / "a.csv"]


def test_recorder_keeps_another_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("LOADED = True")
    (tmp_path / "module.py").write_text("import json")
    environment = add_recorder(
        {**os.environ, "PYTHONPATH": str(tmp_path), "KFP_MINDSPORE_READS": str(tmp_path), "KFP_MINDSPORE_STEP": "step"}
    )
    assert add_recorder(environment) == environment
    assert add_recorder({}) == {}
    code = "import module, sitecustomize; assert sitecustomize.LOADED; open('new', 'w').close(); open(b'new').close()"
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)
    reads = list_reads(tmp_path, "step")
    assert {tmp_path / "module.py", tmp_path / "sitecustomize.py", tmp_path / "new"} == set(reads)
    assert list_reads(tmp_path, "other") == []
