import json

import pytest
from kfp import dsl

from kfp_mindspore import msjob
from kfp_mindspore.components.training.train_msjob import train_msjob
from kfp_mindspore.errors import NotFoundError, ProcessFailedError, ValidationError
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE
from kfp_mindspore.steps.options import JobOptions


class Client:
    """Stands for a cluster without jobs."""

    def __init__(self, namespace="default"):
        self.namespace = namespace

    def get_job(self, name):
        raise NotFoundError(name)


@pytest.fixture
def submitted(monkeypatch, lifecycle):
    """Collect the jobs that are submitted; each writes what a training job writes."""
    jobs = []

    def run(client, job, **_):
        document = job.to_dict()
        jobs.append(document)
        environment = {
            entry["name"]: entry["value"]
            for entry in document["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"]
        }
        if "KFP_MINDSPORE_DATASET_DIR" in environment:
            import shutil

            shutil.copytree(lifecycle.model, environment["KFP_MINDSPORE_OUTPUT_DIR"], dirs_exist_ok=True)

    monkeypatch.setattr(msjob, "MSJobClient", Client, raising=False)
    monkeypatch.setattr(msjob, "run_job", run, raising=False)
    return jobs


def _train(tmp_path, lifecycle=None, **arguments):
    model, metrics = dsl.Model(uri=str(tmp_path / "model"), metadata={}), dsl.Metrics(metadata={})
    train_msjob.python_func(
        model=model,
        metrics=metrics,
        dataset=dsl.Dataset(uri=str(lifecycle.dataset)) if lifecycle else None,
        **arguments,
    )
    return model, metrics


def test_job_is_what_was_asked_for_and_its_outputs_are_described(tmp_path, lifecycle, submitted) -> None:
    model, metrics = _train(
        tmp_path,
        lifecycle,
        command=["python", "train.py"],
        args=["--size", 4.0],
        hyperparameters={"epochs": "3.0"},
        workers=2,
        image="registry/train:1",
        env={"A": 1.0},
        backoff_limit=1,
        active_deadline_seconds=60,
        restart_policy="OnFailure",
        namespace="vision",
    )
    (job,) = submitted
    worker = job["spec"]["msReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert worker["replicas"] == 2
    assert worker["restartPolicy"] == "OnFailure"
    assert container["image"] == "registry/train:1"
    assert [*container["command"], *container.get("args", [])] == [
        *("python", "train.py", "--size", "4", "--epochs", "3")
    ]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["A"] == "1"
    assert environment["KFP_MINDSPORE_DATASET_DIR"] == str(lifecycle.dataset)
    assert environment["KFP_MINDSPORE_OUTPUT_DIR"] == model.path
    assert job["spec"]["runPolicy"]["backoffLimit"] == 1
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 60
    assert job["metadata"]["namespace"] == "vision"
    assert model.metadata["job"] == job["metadata"]["name"]
    assert model.metadata["workers"] == 2
    assert json.loads(model.metadata["network"])["factory"].endswith(":LeNet5")
    assert all(isinstance(value, (str, int, float)) for value in model.metadata.values())
    assert metrics.metadata["epoch"] == 3
    assert 0 < metrics.metadata["validation.accuracy"] <= 1


def test_what_setters_set_goes_before_the_parameters(tmp_path, lifecycle, submitted, monkeypatch) -> None:
    options = JobOptions(
        workers=3,
        backoff_limit=0,
        success_policy="AllWorkers",
        resources={"limits": {"cpu": "1"}},
        env={"B": "2"},
        labels={"team": "vision"},
        annotations={"why": "test"},
    )
    monkeypatch.setenv(JOB_OPTIONS_VARIABLE, options.to_json())
    model, _ = _train(tmp_path, lifecycle, command=["true"], workers=1, env={"A": "1", "B": "1"})
    (job,) = submitted
    worker = job["spec"]["msReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert worker["replicas"] == 3
    assert container["resources"]["limits"] == {"cpu": "1"}
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (environment["A"], environment["B"]) == ("1", "2")
    assert job["spec"]["runPolicy"]["backoffLimit"] == 0
    assert job["spec"]["successPolicy"] == "AllWorkers"
    assert job["metadata"]["labels"]["team"] == "vision"
    assert job["metadata"]["annotations"]["why"] == "test"
    assert model.metadata["workers"] == 3


def test_job_that_wrote_nothing_is_an_error(tmp_path, submitted) -> None:
    with pytest.raises(ProcessFailedError, match="succeeded, but wrote nothing"):
        _train(tmp_path, command=["true"])


def test_empty_command_is_named(tmp_path, submitted) -> None:
    with pytest.raises(ValidationError, match="command: must have at least one part"):
        _train(tmp_path, command=[])
    assert not submitted
