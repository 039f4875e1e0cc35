"""train_msjob in pods, killed at each stage and retried as Kubeflow Pipelines does, and terminated."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.api.names import JOB_LABEL
from tests.support.kube.operators import wait_for
from tests.support.kube.step_pods import STOP, TRAIN, Step, StepRunner
from tests.support.remote.object_store import BUCKET, GatedProxy, ObjectStore
from tests.support.training import epoch_training
from tests.support.training.epoch_training import CHECKPOINT_EPOCHS

EPOCHS = 8
# The command waits in this epoch; its last checkpoint is that of the epoch before.
HELD_EPOCH = 5
# The target is 10 s after the grace period of the pods; a busy machine has more time, but less than a lease (180 s).
TERMINATION_SECONDS = 60.0


class Training:
    """A step whose job counts epochs in a directory of the node."""

    def __init__(self, runner: StepRunner, store: ObjectStore, directory: Path) -> None:
        self.store, self.directory, self.runner = store, directory, runner
        source = Path(epoch_training.__file__).read_text()
        self.step: Step = runner.create(
            TRAIN,
            volumes={"count": ("/count", {"hostPath": {"path": str(directory), "type": "Directory"}})},
            command=["python", "-c", source, str(EPOCHS), "/count"],
        )

    def list_epochs(self) -> list[int]:
        """Return the epochs that were run, in their order."""
        file = self.directory / "epochs"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def list_pods(self, job: str) -> list[str]:
        """Return the names of the pods of a job."""
        found = self.runner.api.list(PODS, self.runner.namespace, labels=f"{JOB_LABEL}={job}")
        return [pod["metadata"]["name"] for pod in found]

    def wait_held(self) -> None:
        """Wait until the command waits and the store has its last checkpoint."""
        key = f"{self.step.key}/msjob-checkpoints/checkpoint.json"

        def is_stored() -> bool:
            return key in self.store.list(key) and len(json.loads(self.store.get(key))) == HELD_EPOCH - 1

        wait_for(lambda: HELD_EPOCH in self.list_epochs() and is_stored(), self.step.read_log)


@pytest.fixture
def training(request: pytest.FixtureRequest, training_steps: StepRunner, artifact_store: ObjectStore) -> Training:
    directory = training_steps.cluster.make_volume(f"{training_steps.namespace}-{request.node.originalname}")
    return Training(training_steps, artifact_store, directory)


def test_step_killed_at_each_stage_has_one_job_and_loses_no_epoch(training: Training, store_proxy: GatedProxy) -> None:
    step = training.step
    # Before the job exists: the step lists the store, then submits.
    gate = store_proxy.close_gate(rf"GET /{BUCKET}\?")
    step.start()
    gate.wait()
    assert step.list_jobs() == []
    step.delete()
    gate.open.set()
    # While the pods start.
    step.start()
    job = step.wait_job()
    name = job["metadata"]["name"]
    wait_for(lambda: bool(training.list_pods(name)), step.read_log)
    step.kill()
    # During the training, on the node of the worker.
    step.start()
    training.wait_held()
    training.runner.cluster.find_processes(training.runner.namespace, f"{name}-worker-0")[0].send(signal.SIGKILL)
    step.delete()
    # After the success of the job, before the step has read its output.
    gate = store_proxy.close_gate(rf"GET /{BUCKET}/{step.key}/model/metrics\.jsonl")
    step.start()
    (training.directory / "continue").touch()
    gate.wait()
    step.kill()
    gate.open.set()
    output = step.finish()
    (done,) = step.list_jobs()
    assert done["metadata"]["uid"] == job["metadata"]["uid"]
    assert done["status"]["restarts"] == 1
    assert training.list_epochs() == [*range(1, HELD_EPOCH + 1), *range(HELD_EPOCH, EPOCHS + 1)]
    records = [json.loads(line) for line in training.store.get(f"{step.key}/model/metrics.jsonl").splitlines()]
    assert [record["epoch"] for record in records] == list(range(1, EPOCHS + 1))
    assert training.store.list(f"{step.key}/msjob-checkpoints/") == []
    artifacts = output["artifacts"]
    assert artifacts["metrics"]["artifacts"][0]["metadata"] == records[-1]
    assert artifacts["model"]["artifacts"][0]["metadata"]["job"] == name


def test_drained_launcher_leaves_its_job_to_retry(training: Training) -> None:
    step = training.step
    step.start()
    job = step.wait_job()
    training.wait_held()
    step.drain()
    (training.directory / "continue").touch()
    step.finish()
    (done,) = step.list_jobs()
    assert (done["metadata"]["uid"], done["status"].get("restarts", 0)) == (job["metadata"]["uid"], 0)
    assert training.list_epochs() == list(range(1, EPOCHS + 1))


def test_terminated_run_leaves_no_job_and_no_pod(training: Training) -> None:
    step = training.step

    def terminate(wait: Callable[[str], None]) -> None:
        step.start()
        job = step.wait_job()["metadata"]["name"]
        wait(job)
        step.terminate()
        # The exit task of the run: a slow machine kills a step before its request.
        training.runner.create(STOP, run=step.run).finish()
        wait_for(
            lambda: not step.list_jobs() and not training.list_pods(job),
            lambda: f"left: {step.list_jobs()}, {training.list_pods(job)}; {step.read_log()}",
            TERMINATION_SECONDS,
        )

    terminate(lambda job: wait_for(lambda: bool(training.list_pods(job)), step.read_log))
    terminate(lambda _: training.wait_held())
    # A run that is retried continues with the checkpoint.
    (training.directory / "continue").touch()
    step.finish()
    epochs = training.list_epochs()
    assert sorted(set(epochs)) == list(range(1, EPOCHS + 1))
    assert len(epochs) <= EPOCHS + CHECKPOINT_EPOCHS
