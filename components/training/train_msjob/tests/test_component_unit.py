import json
import shutil
import sys

import pytest
from kfp import dsl

from ..component import train_msjob

pytest_plugins = ["kfp_mindspore.testing"]

COPY = "import os, shutil, sys; shutil.copytree(sys.argv[1], os.environ['KFP_MINDSPORE_OUTPUT_DIR'], dirs_exist_ok=1)"


def _train(tmp_path, dataset=None, **arguments):
    """Run the component's function with real local jobs; return the model, the metrics and the job's manifest."""
    from kfp_mindspore.msjob import MSJobClient

    model, metrics = dsl.Model(uri=str(tmp_path / "model"), metadata={}), dsl.Metrics(metadata={})
    train_msjob.python_func(
        model=model,
        metrics=metrics,
        curves=dsl.HTML(uri=str(tmp_path / "curves")),
        dataset=dsl.Dataset(uri=str(dataset)) if dataset else None,
        **arguments,
    )
    client = MSJobClient(namespace=model.metadata["namespace"])
    return model, metrics, client.get_job(model.metadata["job"]).to_dict()


def _get_environment(container):
    return {entry["name"]: entry["value"] for entry in container["env"]}


@pytest.mark.timeout(120)
def test_arguments_become_job_and_outputs_are_described(local_home, lifecycle, tmp_path) -> None:
    """Arguments become a job and outputs are described."""
    model, metrics, job = _train(
        tmp_path,
        lifecycle.dataset,
        command=[sys.executable, "-c", COPY],
        args=[str(lifecycle.model), "--size", 4.0],
        hyperparameters={"epochs": "3.0"},
        workers=2,
        image="registry/train:1",
        env={"A": 1.0},
        backoff_limit=1,
        active_deadline_seconds=60,
        restart_policy="OnFailure",
        namespace="vision",
    )
    worker = job["spec"]["msReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert worker["replicas"] == 2
    assert worker["restartPolicy"] == "OnFailure"
    assert container["image"] == "registry/train:1"
    assert [*container["command"], *container.get("args", [])][3:] == [
        *(str(lifecycle.model), "--size", "4", "--epochs", "3")
    ]
    environment = _get_environment(container)
    assert environment["A"] == "1"
    assert environment["KFP_MINDSPORE_DATASET_DIR"] == str(lifecycle.dataset)
    assert environment["KFP_MINDSPORE_OUTPUT_DIR"] == model.path
    assert job["spec"]["runPolicy"]["backoffLimit"] == 1
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 60
    assert job["metadata"]["namespace"] == "vision"
    assert model.metadata["workers"] == 2
    assert model.metadata["hyperparameters"] == '{"epochs": 3}'
    assert json.loads(model.metadata["network"])["factory"].endswith(":LeNet5")
    assert all(isinstance(value, (str, int, float)) for value in model.metadata.values())
    assert metrics.metadata["epoch"] == 3
    assert 0 < metrics.metadata["validation.accuracy"] <= 1
    page = (tmp_path / "curves").read_text()
    assert model.metadata["job"] in page
    assert all(f"<h2>{title}</h2>" in page for title in ("Loss", "accuracy"))


@pytest.mark.timeout(120)
def test_task_setters_take_precedence_over_parameters(local_home, tmp_path, monkeypatch) -> None:
    """Task setters take precedence over parameters."""
    from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
    from kfp_mindspore.steps.launch.options import format_task_options

    options = {
        "workers": 3,
        "backoff_limit": 0,
        "success_policy": "AllWorkers",
        "resources": {"limits": {"cpu": "1"}},
        "env": {"B": "2"},
        "labels": {"team": "vision"},
        "annotations": {"why": "test"},
        "empty_dirs": {"/dev/shm": "8Gi"},
    }
    monkeypatch.setenv(JOB_OPTIONS_VARIABLE, format_task_options(options))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "out").touch()
    command = [sys.executable, "-c", COPY, str(tmp_path / "source")]
    model, _, job = _train(tmp_path, command=command, workers=1, env={"A": "1", "B": "1"})
    worker = job["spec"]["msReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert worker["replicas"] == 3
    assert container["resources"]["limits"] == {"cpu": "1"}
    environment = _get_environment(container)
    assert (environment["A"], environment["B"]) == ("1", "2")
    assert job["spec"]["runPolicy"]["backoffLimit"] == 0
    assert job["spec"]["successPolicy"] == "AllWorkers"
    assert job["metadata"]["labels"]["team"] == "vision"
    assert job["metadata"]["annotations"]["why"] == "test"
    assert model.metadata["workers"] == 3
    volume = {"name": "empty-dir-0", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    assert worker["template"]["spec"]["volumes"] == [volume]
    assert container["volumeMounts"] == [{"name": "empty-dir-0", "mountPath": "/dev/shm"}]


def test_empty_output_directory_is_error(local_home, tmp_path) -> None:
    """Empty output directory is an error."""
    from kfp_mindspore.errors import ProcessFailedError

    with pytest.raises(ProcessFailedError, match="succeeded, but its output directory is empty"):
        _train(tmp_path, command=[shutil.which("true")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": []}, "command: must have at least one part"),
        ({"workers": 0}, "workers: must be an integer ≥ 1, got 0"),
        ({"restart_policy": "Sometimes"}, "restart_policy: must be one of"),
        ({"backoff_limit": -1}, "backoff_limit: must be an integer ≥ 0, got -1"),
        ({"job_name": "Train_1"}, "metadata.name: must be"),
        ({"namespace": "Vision"}, "namespace: must be"),
    ],
)
def test_invalid_argument_is_refused(local_home, tmp_path, arguments, message) -> None:
    """Invalid argument is refused."""
    from kfp_mindspore.errors import ValidationError

    with pytest.raises(ValidationError, match=message):
        _train(tmp_path, **{"command": ["true"], **arguments})
    assert not list(local_home.glob("jobs/*/*"))
