"""The launcher of a step and existing jobs of its name, with real jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from kfp_mindspore.errors import AlreadyExistsError, ProcessFailedError
from kfp_mindspore.msjob import MSJobClient, build_msjob
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.steps.launch.train import train_model

WRITE = "import os, pathlib; pathlib.Path(os.environ['KFP_MINDSPORE_OUTPUT_DIR'], 'out').write_text('{}')"
ARTIFACTS = ((dsl.Model, "model"), (dsl.Metrics, "metrics"), (dsl.HTML, "curves"))
SLEEP = "import time; time.sleep(600)"


def _train(tmp_path: Path, text: str = "first", **arguments: Any) -> str:
    command = [sys.executable, "-c", WRITE.format(text)]
    return _run(tmp_path, command, **arguments)


def _run(tmp_path: Path, command: list[str], **arguments: Any) -> str:
    model, metrics, curves = (kind(uri=str(tmp_path / name)) for kind, name in ARTIFACTS)
    return train_model(model, metrics, curves, command, JobOptions(), **arguments).job_name


@pytest.fixture
def client(local_home: Path) -> MSJobClient:
    return MSJobClient()


def test_retried_step_reuses_job_name(client: MSJobClient, tmp_path: Path) -> None:
    first = _train(tmp_path)
    assert _train(tmp_path, "second") == first
    assert (tmp_path / "model" / "out").read_text() == "second"
    assert [job.name for job in client.list_jobs()] == [first]


def test_running_job_of_earlier_attempt_is_replaced(client: MSJobClient, tmp_path: Path) -> None:
    name = _train(tmp_path)
    client.delete_job(name)
    client.create_job(build_msjob(name, command=[sys.executable, "-c", SLEEP]))
    assert _train(tmp_path, "second") == name
    assert client.is_job_succeeded(name)


def test_running_job_with_given_name_is_kept(client: MSJobClient, tmp_path: Path) -> None:
    client.create_job(build_msjob("mine", command=[sys.executable, "-c", SLEEP]))
    try:
        with pytest.raises(AlreadyExistsError, match="mine"):
            _train(tmp_path, job_name="mine")
        assert not client.is_job_failed("mine")
        assert not client.is_job_succeeded("mine")
    finally:
        client.delete_job("mine")


def test_finished_job_with_given_name_is_replaced(client: MSJobClient, tmp_path: Path) -> None:
    _train(tmp_path, job_name="mine")
    _train(tmp_path, "second", job_name="mine")
    assert (tmp_path / "model" / "out").read_text() == "second"


def test_checkpoints_of_failed_job_are_kept_for_retry(client: MSJobClient, tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "mark = pathlib.Path(os.environ['KFP_MINDSPORE_CHECKPOINT_DIR'], 'mark')\n"
        "if not mark.exists(): mark.touch(); sys.exit('out of luck')\n"
        "pathlib.Path(os.environ['KFP_MINDSPORE_OUTPUT_DIR'], 'out').touch()\n"
    )
    command = [sys.executable, "-c", script]
    with pytest.raises(ProcessFailedError, match="exit code 1"):
        _run(tmp_path, command)
    _run(tmp_path, command)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("model")) == ["model"]


def test_given_checkpoint_directory_is_kept(client: MSJobClient, tmp_path: Path) -> None:
    _train(tmp_path, checkpoint_dir=str(tmp_path / "kept"))
    assert (tmp_path / "kept").is_dir()
