"""A run whose processes are all killed while it trains, resumed from its cache and checkpoints."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfp_mindspore.cli.init import TEMPLATES
from kfp_mindspore.cli.init import write_project as write_template
from kfp_mindspore.training.history import read_history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EPOCHS = 12
PIPELINE = """
from kfp import dsl

from kfp_mindspore.components import load_dataset, train_msjob


@dsl.pipeline(name="long-training")
def long_training(epochs: int = 1):
    data = load_dataset(name="digits")
    train_msjob(
        dataset=data.outputs["dataset"],
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": epochs},
    )
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def start(home: Path, directory: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kfp_mindspore.cli.main", *words],
        cwd=directory,
        env={**os.environ, "KFP_MINDSPORE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(home: Path, directory: Path, *words: str) -> dict[str, Any]:
    process = start(home, directory, *words, "--json")
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, output + errors
    value: dict[str, Any] = json.loads(output.splitlines()[-1])
    return value


def kill_at_first_checkpoint(process: subprocess.Popen[str], home: Path) -> Path:
    """Kill a run and all its descendants once its training has a checkpoint; return the run's directory."""
    deadline = time.monotonic() + 300
    while not (found := list(home.glob("runs/*/checkpoints/train-msjob-*/0*/checkpoint.json"))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        member.kill()
    process.communicate()
    return found[0].parents[3]


def read_resumed_log(process: subprocess.Popen[str], directory: Path) -> str:
    """Interrupt a resumed run once its training has finished an epoch; return the training's log."""
    deadline = time.monotonic() + 120
    earlier, log = directory / "attempts" / "1" / "logs", directory / "logs" / "train-msjob.log"
    while not re.search(
        r"^ *epoch \d+/.*\n", text := log.read_text() if earlier.is_dir() and log.is_file() else "", re.MULTILINE
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return text


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the epochs' metrics of the attempt that wrote the final checkpoint."""
    (final,) = directory.glob("artifacts/*/train-msjob/model/checkpoint")
    names = ("epoch", "step", "loss", "validation")
    return [{name: record[name] for name in names} for record in read_history(final.parent / "metrics.jsonl")]


def write_project(directory: Path) -> Path:
    directory.mkdir()
    (directory / "pipeline.py").write_text(PIPELINE)
    return directory


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the epochs' metrics of a run that is not interrupted."""
    root = tmp_path_factory.mktemp("whole")
    value = run(root / "home", write_project(root / "project"), "run", "pipeline.py", "-p", f"epochs={EPOCHS}")
    return read_metrics(Path(value["directory"]))


@pytest.mark.parametrize("options", [(), ("--no-cache", "--keep")])
def test_killed_run_resumes_at_its_checkpoint(
    tmp_path: Path, home: Path, expected: list[dict[str, Any]], options: tuple[str, ...]
) -> None:
    project = write_project(tmp_path / "project")
    process = start(home, project, "run", "pipeline.py", "-p", f"epochs={EPOCHS}", *options)
    directory = kill_at_first_checkpoint(process, home)
    if options:
        value = run(home, tmp_path, "run", "project/pipeline.py", "--resume")
    else:
        value = run(home, tmp_path, "runs", "resume", directory.name)
    assert (value["run_id"], value["state"]) == (directory.name, "succeeded")
    assert value["states"] == {"load-dataset": "cached", "train-msjob": "succeeded"}
    assert value["arguments"] == {"epochs": EPOCHS}
    log = (directory / "logs" / "train-msjob.log").read_text()
    assert f"resuming from {directory / 'checkpoints'}" in log
    assert not (directory / "checkpoints").exists()
    assert (directory / "attempts" / "1" / "run.log").is_file()
    assert [record["epoch"] for record in read_metrics(directory)] == [*range(1, EPOCHS + 1)]
    assert read_metrics(directory) == expected


# Of small networks on small tables an epoch takes milliseconds: enough epochs that a kill comes before the last one.
LONG = {
    "classification": 500, "regression": 500, "sequence": 200, "text-classification": 50, "two-inputs": 500, "vit": 20,
}  # fmt: skip
MODULES = {"mindcv": "mindcv", "wide-deep": "movielens"}


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_killed_training_of_template_continues_after_its_checkpoint(tmp_path: Path, home: Path, template: str) -> None:
    if template in MODULES and importlib.util.find_spec(MODULES[template]) is None:
        pytest.skip(f"needs {MODULES[template]}")
    write_template(tmp_path / "project", template)
    pipeline = tmp_path / "project" / "pipeline.py"
    if template == "vit":
        # An epoch of 20,000 images takes many seconds.
        pipeline.write_text(pipeline.read_text().replace("limit=20000", "limit=1000"))
    if template == "detection":
        text = pipeline.read_text()
        assert 'preprocessing="imagenet",' in text
        pipeline.write_text(text.replace('preprocessing="imagenet",', 'preprocessing="imagenet",\n        limit=200,'))
    epochs = LONG.get(template, 5)
    words = ["run", str(pipeline), "-p", f"epochs={epochs}"]
    if template == "mindcv":
        # Resnet18 takes half a minute to compile.
        words += ["-p", "network=squeezenet1_1"]
    directory = kill_at_first_checkpoint(start(home, tmp_path, *words), home)
    (checkpoint,) = directory.glob("checkpoints/*")
    resumed = start(home, tmp_path, "runs", "resume", directory.name)
    log = read_resumed_log(resumed, directory)
    found = re.search(rf"^ *resuming from {checkpoint}/(\d+)-\S+: epoch (\d+) of {epochs}", log, re.MULTILINE)
    assert found is not None, log
    first = re.search(rf"^ *epoch (\d+)/{epochs}", log, re.MULTILINE)
    assert first is not None
    assert int(first[1]) == int(found[2]) + 1 > 1
    assert [folder.name for folder in directory.glob("checkpoints/*")] == [checkpoint.name]
