"""Sweeps on a node: trials are jobs of the cluster, whose epochs reach the engine by the jobs' status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.evaluation.curves import read_records
from kfp_mindspore.msjob import MSJob, MSJobClient
from kfp_mindspore.settings import METRICS_FILE
from kfp_mindspore.sweeps import sweep
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.kube.node_jobs import NodeJob, NodeJobs


class PackagesClient(MSJobClient):
    """Submits jobs to a cluster, with MindSpore, the working tree and a volume in their pods.

    Args:
        job: A job's volume.
        packages: MindSpore and the working tree.
    """

    def __init__(self, job: NodeJob, packages: PodPackages) -> None:
        super().__init__(job.client.backend)
        self._job, self._packages = job, packages

    def create_job(self, job: Any = None, *arguments: Any, **options: Any) -> None:
        """Submit a job that `train` has built."""
        assert isinstance(job, MSJob)
        for spec in job.ms_replica_specs.values():
            spec.template["spec"] = self._packages.add_to(spec.template["spec"])
        self._job.add_volume(job)
        super().create_job(job, *arguments, **options)


@pytest.mark.mindspore
def test_short_trials_have_their_objective(jobs: NodeJobs, pod_packages: PodPackages, tmp_path: Path) -> None:
    data = NodeJob(jobs, "sweep-data")
    load_dataset("digits", data.volume / "data")
    result = sweep(
        {
            "network": "kfp_mindspore.workloads.digits.network:LeNet5",
            "dataset": f"{data.mount}/data",
            "base_image": PYTHON,
            "trainer_parameters": {"epochs": 2, "metrics": ["accuracy"]},
        },
        {"learning_rate": [0.003, 0.001, 0.0001]},
        "accuracy",
        directory=tmp_path / "short",
        output=f"{data.mount}/out",
        client=PackagesClient(data, pod_packages),
        sampler="grid",
        trials=3,
        pruner="none",
    )
    assert [(trial.state, trial.reason) for trial in result.trials] == [("complete", "")] * 3
    assert [bool(trial.value) for trial in result.trials] == [True] * 3
    files = [data.volume / "out" / str(number) / METRICS_FILE for number in range(3)]
    last = [read_records(file)[-1] for file in files]
    assert [record["epoch"] for record in last] == [2] * 3
    for trial, record in zip(result.trials, last, strict=True):
        # The status has six digits.
        assert trial.value is not None
        assert trial.value >= record["validation"]["accuracy"] - 1e-5
    assert [job.name for job in jobs.client.list_jobs() if job.name.startswith("short-")] == []
