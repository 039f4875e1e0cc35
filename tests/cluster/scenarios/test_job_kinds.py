"""MSJobs as jobs of the MPI operator, Kubeflow Trainer and Volcano, trained with MindSpore on two workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import NotInstalledError
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob import KubernetesBackend, MSJob, MSJobClient, build_msjob
from kfp_mindspore.settings import DATASET_VARIABLE, OUTPUT_VARIABLE
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import PodPackages
from tests.cluster.mpi_image import MPI_IMAGE
from tests.support.controllers.gang_schedulers import run_volcano
from tests.support.controllers.trainer_cluster import run_mpi_operator, run_trainer
from tests.support.kube.operators import wait_for

EPOCHS = 2
SECONDS = 500.0


class KindCase:
    """A namespace, a volume and the job that trains digits in it."""

    def __init__(self, cluster: NodeCluster, namespace: str, packages: PodPackages) -> None:
        self.api = Cluster(cluster.kubeconfig)
        self.namespace = namespace
        self.packages = packages
        self.volume = cluster.make_volume(namespace)
        self.client = MSJobClient(KubernetesBackend(namespace, kubeconfig=cluster.kubeconfig))

    def build(self, image: str) -> MSJob:
        """Return a job of two workers."""
        load_dataset("digits", self.volume / "data")
        command = ["python", "-m", "kfp_mindspore.workloads.digits.train", "--epochs", str(EPOCHS)]
        env = {DATASET_VARIABLE: "/mnt/data", OUTPUT_VARIABLE: "/mnt/out"}
        job = build_msjob(
            "digits",
            command=command,
            image=image,
            workers=2,
            namespace=self.namespace,
            env=env,
            restart_policy="OnFailure",
        )
        template = job.ms_replica_specs["Worker"].template
        pod = self.packages.add_to(template["spec"])
        pod["volumes"].append({"name": "data", "hostPath": {"path": str(self.volume), "type": "Directory"}})
        pod["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/mnt"})
        template["spec"] = pod
        return job

    def wait(self, api_version: str, kind: str, condition: str) -> None:
        """Wait until the job of a kind has a condition."""
        resource = self.api.resolve_resource(api_version, kind)

        def has_condition() -> bool:
            status = self.api.get(resource, "digits", self.namespace).get("status") or {}
            found = {item.get("type") for item in status.get("conditions") or [] if item.get("status") == "True"}
            # Volcano's Job has a state of its own.
            found.add((status.get("state") or {}).get("phase"))
            assert not {"Failed", "Aborted"} & found, self.explain()
            return condition in found

        wait_for(has_condition, self.explain, SECONDS)

    def explain(self) -> str:
        """Return states and logs of all pods."""
        lines = []
        for pod in self.api.list(PODS, self.namespace):
            name = pod["metadata"]["name"]
            lines.append(f"{name}: {json.dumps(pod['status'].get('containerStatuses'))[:600]}")
            try:
                lines.append(self.api.read_log(name, self.namespace, last=30))
            except KfpMindSporeError as error:  # a pod that has not started
                lines.append(str(error))
        return "\n".join(lines)

    def check_result(self) -> None:
        """Check that two workers trained all epochs."""
        out = Path(self.volume, "out")
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert [record["epoch"] for record in records if "epoch" in record][-1] == EPOCHS
        Checkpoint.open(out / "checkpoint")


@pytest.fixture
def case(own_cluster: NodeCluster, pod_packages: PodPackages) -> Iterator[KindCase]:
    """Return a case in a new namespace."""
    with own_cluster.make_namespace("kinds") as namespace:
        yield KindCase(own_cluster, namespace, pod_packages)


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("run", "kind", "image", "object_", "condition"),
    [
        (run_mpi_operator, "MPIJob", MPI_IMAGE, ("kubeflow.org/v2beta1", "MPIJob"), "Succeeded"),
        (run_trainer, "TrainJob", PYTHON, ("trainer.kubeflow.org/v1alpha1", "TrainJob"), "Complete"),
        (run_volcano, "volcano", PYTHON, ("batch.volcano.sh/v1alpha1", "Job"), "Completed"),
    ],
)
def test_kind_trains_under_its_own_operator(
    own_cluster: NodeCluster,
    case: KindCase,
    run: Callable[[NodeCluster], Any],
    kind: str,
    image: str,
    object_: tuple[str, str],
    condition: str,
) -> None:
    job = case.build(image)
    with run(own_cluster):
        case.client.create_job(job, job_kind=kind)
        case.wait(*object_, condition)
    case.check_result()


def test_kind_that_is_not_installed_is_refused(case: KindCase) -> None:
    with pytest.raises(NotInstalledError, match="this cluster cannot run AscendJob"):
        case.client.create_job(case.build(PYTHON), job_kind="AscendJob")
    assert case.api.list(PODS, case.namespace) == []
