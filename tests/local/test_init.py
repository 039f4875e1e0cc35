"""The project of `init`: runs from any directory and with another network."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
STEPS = ["load-dataset", "train-msjob", "export-mindir", "evaluate-mindir", "deploy-kserve"]


def run(home: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kfp_mindspore.cli.main", *words],
        cwd=directory,
        env={**os.environ, "KFP_MINDSPORE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def run_pipeline(home: Path, directory: Path, *words: str) -> dict[str, Any]:
    done = run(home, directory, "run", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def read_example() -> dict[str, str]:
    """Return the documented change by project file."""
    section = (ROOT / "docs/your-own-model.md").read_text().partition("### Example\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"[Ii]n `(\w+\.py)`.*?```python\n(.*?)```", section, re.DOTALL))


def change(project: Path, changes: Mapping[str, Mapping[str, str]]) -> int:
    """Replace text in the project's files and return the number of new lines."""
    lines = 0
    for name, replacements in changes.items():
        before = after = (project / name).read_text()
        for old, new in replacements.items():
            assert old in after
            after = after.replace(old, new)
        (project / name).write_text(after)
        lines += sum(
            line.startswith("+ ") and bool(line[2:].strip())
            for line in difflib.ndiff(before.splitlines(), after.splitlines())
        )
    return lines


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("init") / "home"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    parent = tmp_path_factory.mktemp("projects")
    done = run(home, parent, "init", "my-project")
    assert done.returncode == 0, done.stderr
    return parent / "my-project"


@pytest.fixture
def project(written: Path, tmp_path: Path) -> Path:
    """Return a copy of the project that a test can change."""
    return Path(shutil.copytree(written, tmp_path / "my-project", ignore=shutil.ignore_patterns("__pycache__")))


def test_documented_four_lines_replace_network(project: Path, home: Path, tmp_path: Path) -> None:
    # Modules of the caller's directory must not shadow those of the project.
    caller = tmp_path / "caller"
    caller.mkdir()
    for name in ("network.py", "train.py"):
        (caller / name).write_text("raise AssertionError('another project')")
    changes = {}
    for name, new in read_example().items():
        old = (project / name).read_text()
        if name != "network.py":
            # The last assignment to the same name: in train.py the one in the branch `else`.
            start = old.rindex(new.partition("=")[0])
            old = old[start : old.index("\n", start) + 1]
        changes[name] = {old: new}
    assert set(changes) == {"network.py", "train.py", "pipeline.py"}
    assert change(project, changes) == 4
    result = run_pipeline(home, caller, str(project / "pipeline.py"), "-p", "epochs=15")
    assert result["states"] == dict.fromkeys(STEPS, "succeeded")
    assert result["value"] >= 0.9
    assert result["samples"] == 360
    assert result["prediction"] in "0123456789"
    assert result["max_abs_diff"] <= 1e-5
    assert Path(result["report"]).is_file()
    assert not list((home / "services").glob("*/*")), "services stop with the run"


def test_invalid_network_fails_run_with_its_error(project: Path, home: Path) -> None:
    change(project, {"network.py": {"nn.Dense(inputs, hidden)": "nn.Dense(inputs + 1, hidden)"}})
    done = run(home, project, "run", "pipeline.py", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["states"]["train-msjob"] == "failed"
    assert {result["states"][step] for step in STEPS[2:]} <= {"pending", "skipped"}
    assert "step train-msjob failed" in done.stderr
    layer, batch = "Network: layer hidden (SequentialCell)", "features (32, 30) float32 and label (32,) int32"
    assert f"{layer} cannot be computed for a batch of {batch}" in done.stderr
    assert f"{project}/network.py:42: computed = linear + self.hidden(flat)" in done.stderr


def test_script_without_fit_is_exported_and_deployed(tmp_path: Path) -> None:
    section = (ROOT / "docs/your-own-model.md").read_text().partition("## A script without fit\n")[2]
    script, commands = (
        re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)[0] for language in ("python", "bash")
    )
    assert run(tmp_path, tmp_path, "init", "project").returncode == 0
    project = tmp_path / "project"
    (project / "loop.py").write_text(script)

    # The last command serves until it is interrupted.
    for line in commands.splitlines()[:-1]:
        line = line.replace("kfp-mindspore", f"{sys.executable} -m kfp_mindspore.cli.main")
        line = line.replace(" python ", f" {sys.executable} ")
        done = subprocess.run(
            ["bash", "-c", line], cwd=project, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert run(tmp_path, project, "model", "verify", "model", "--outputs").returncode == 0

    pipeline = (project / "pipeline.py").read_text()
    pipeline = re.sub(r'command=\["python", "-m", "train"\],\n.*\n', 'command=["python", "loop.py"],\n', pipeline)
    arguments = 'network="loop:Network", network_arguments={"classes": 3}'
    pipeline = pipeline.replace('dataset=data).outputs["bundle"]', f'dataset=data, {arguments}).outputs["bundle"]')
    (project / "pipeline.py").write_text(pipeline)
    value = run_pipeline(tmp_path, project, "pipeline.py", "-p", "dataset=wine")
    assert value["states"] == dict.fromkeys(STEPS, "succeeded")
    assert value["value"] >= 0.9
