"""MindSpore itself in pods: the lifecycle's training of digits as an MSJob, alone and on two workers."""

from __future__ import annotations

import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.checkpoint import Checkpoint
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.kube.node_jobs import LogReader, NodeJobs
from tests.support.kube.operators import wait_for
from tests.support.training.digits_job import TRAINING_SECONDS, DigitsJob

EPOCHS = 10
_TRAIN = f"python -m kfp_mindspore.workloads.digits.train --epochs {EPOCHS}"


@pytest.mark.mindspore
def test_digits_train_across_worker_failure(jobs: NodeJobs, pod_packages: PodPackages) -> None:
    alone = DigitsJob(jobs, "digits")
    export = "python -m kfp_mindspore.cli.main model export $0/out/checkpoint --dataset $0/data --output $0/out/model"
    alone.train(pod_packages, ["sh", "-c", f"{_TRAIN} && {export}", alone.mount], workers=1)
    with LogReader(alone) as log:
        log.wait_line("epoch 1", seconds=TRAINING_SECONDS)
        assert not alone.client.is_job_succeeded(alone.name)
    alone.wait("Succeeded", seconds=TRAINING_SECONDS)
    expected = alone.read_metrics()
    assert [record["epoch"] for record in expected] == list(range(1, EPOCHS + 1))
    assert expected[-1]["validation"]["accuracy"] > 0.9
    bundle = ModelBundle.open(alone.out / "model")
    assert [spec.shape for spec in bundle.signature.inputs] == [(-1, 1, 8, 8)]
    assert len(bundle.read_verified()) >= 32
    alone.delete()

    gang = DigitsJob(jobs, "digits-gang")
    gang.train(pod_packages, _TRAIN.split(), workers=2, backoff_limit=1)
    wait_for(lambda: len(gang.read_metrics()) >= 2, lambda: f"no epoch: {gang.list_pods()}", TRAINING_SECONDS)
    gang.kill("digits-gang-worker-1")
    done = gang.wait("Succeeded", seconds=TRAINING_SECONDS)
    assert done.status.restarts == 1
    assert done.status.failure.pod == "digits-gang-worker-1"
    # Two workers that were interrupted come to what one did that was not: no epoch is lost, none is done twice.
    metrics = gang.read_metrics()
    assert [record["epoch"] for record in metrics] == list(range(1, EPOCHS + 1))
    assert metrics[-1]["loss"] == pytest.approx(expected[-1]["loss"], rel=0.05)
    Checkpoint.open(gang.out / "checkpoint")
    assert "resum" in gang.client.get_job_logs(gang.name)[0]["digits-gang-worker-0"].lower()
    gang.delete()
