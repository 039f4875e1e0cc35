"""RayJobs and RayServices under the real KubeRay."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.data import load_dataset
from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, DATASET_VARIABLE, OUTPUT_VARIABLE
from kfp_mindspore.steps.launch.ray_job import RayJobs
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.packages import PodPackages
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.ray_image import RAY_IMAGE
from tests.support.controllers.kserve_cluster import resolve_services
from tests.support.controllers.kuberay_cluster import run_kuberay
from tests.support.kube.operators import wait_for

pytestmark = [pytest.mark.mindspore, pytest.mark.timeout(1200)]

JOBS = Resource("batch", "v1", "jobs", "Job")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAY_SERVICES = Resource("ray.io", "v1", "rayservices", "RayService")
WORKERS = "ray.io/node-type=worker"
EXAMPLES = ROOT / "examples" / "kuberay"
SECONDS = 600.0


@pytest.fixture(scope="module")
def kuberay(own_cluster: NodeCluster) -> Iterator[None]:
    """Run KubeRay."""
    with run_kuberay(own_cluster):
        yield


class RayCase:
    """A namespace with a volume that Ray's pods mount as /mnt."""

    def __init__(self, cluster: NodeCluster, namespace: str, packages: PodPackages) -> None:
        self.api = Cluster(cluster.kubeconfig)
        self.namespace = namespace
        self.packages = packages
        self.volume = cluster.make_volume(namespace)

    def add_volume(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return a pod's `spec` with the packages and the volume."""
        found = self.packages.add_to(pod)
        found["volumes"].append({"name": "data", "hostPath": {"path": str(self.volume), "type": "Directory"}})
        found["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/mnt"})
        return found

    def build(self, epochs: int) -> MSJob:
        """Return a job of two workers that trains digits."""
        load_dataset("digits", self.volume / "data")
        job = build_msjob(
            "digits",
            command=["python", "-m", "kfp_mindspore.workloads.digits.train", "--epochs", str(epochs)],
            image=RAY_IMAGE,
            workers=2,
            namespace=self.namespace,
            env={DATASET_VARIABLE: "/mnt/data", OUTPUT_VARIABLE: "/mnt/out", CHECKPOINT_VARIABLE: "/mnt/ray"},
            restart_policy="OnFailure",
            backoff_limit=3,
        )
        template = job.ms_replica_specs["Worker"].template
        template["spec"] = self.add_volume(template["spec"])
        return job

    def list_pods(self, labels: str = "") -> dict[str, str]:
        """Return phases by pod name."""
        pods = self.api.list(PODS, self.namespace, labels=labels)
        return {pod["metadata"]["name"]: pod["status"].get("phase", "") for pod in pods}

    def read_epochs(self) -> list[int]:
        """Return the epochs in the order in which training reported them."""
        file = self.volume / "out" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [record["epoch"] for record in map(json.loads, lines) if "epoch" in record]

    def explain(self) -> str:
        """Return statuses from Ray objects, and pod logs."""
        lines = [
            f"{item['kind']} {item['metadata']['name']}: {json.dumps(item.get('status'))[:1500]}"
            for resource in (RAY_JOBS, RAY_SERVICES, RAY_CLUSTERS)
            for item in self.api.list(resource, self.namespace)
        ]
        for name, phase in self.list_pods().items():
            lines.append(f"{name}: {phase}")
            try:
                lines.append(self.api.read_log(name, self.namespace, last=40))
            except KfpMindSporeError as error:  # a pod that has not started
                lines.append(str(error))
        return "\n".join(lines)


@pytest.fixture
def case(own_cluster: NodeCluster, kuberay: None, pod_packages: PodPackages) -> Iterator[RayCase]:
    """Return a case in a new namespace."""
    with own_cluster.make_namespace("ray") as namespace:
        yield RayCase(own_cluster, namespace, pod_packages)


@contextlib.contextmanager
def follow(jobs: RayJobs) -> Iterator[list[BaseException]]:
    """Follow a job in a thread; yield what it has raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            jobs.follow()
        except KfpMindSporeError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield raised
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_job_resumes_after_worker_pod_is_killed(case: RayCase, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = RayJobs(case.api, case.build(epochs=12))
    jobs.submit()
    with follow(jobs) as raised:
        wait_for(lambda: bool(raised) or len(case.read_epochs()) >= 2, case.explain, SECONDS)
        assert not raised, f"{raised}\n{case.explain()}"
        victim = next(iter(case.list_pods(WORKERS)))
        case.api.delete(PODS, victim, case.namespace, grace_seconds=0)
    assert not raised, f"{raised}\n{case.explain()}"
    epochs = case.read_epochs()
    # Each epoch once: training went on where its checkpoint was.
    assert epochs == list(range(1, 13))
    Checkpoint.open(case.volume / "out" / "checkpoint")
    assert "RayJob digits: Complete" in capsys.readouterr().out
    # shutdownAfterJobFinishes
    wait_for(lambda: not case.list_pods(WORKERS), case.explain, SECONDS)


def test_cancelled_job_leaves_nothing(case: RayCase) -> None:
    jobs = RayJobs(case.api, case.build(epochs=1000))
    jobs.submit()
    with follow(jobs) as raised:
        wait_for(lambda: bool(raised) or bool(case.read_epochs()), case.explain, SECONDS)
        assert not raised, f"{raised}\n{case.explain()}"
        jobs.cancel()
    assert "was deleted before its end" in str(raised[0])
    wait_for(lambda: not case.list_pods(), case.explain, SECONDS)
    for resource in (RAY_JOBS, RAY_CLUSTERS, JOBS):
        assert case.api.list(resource, case.namespace) == []


def test_service_answers_v2(own_cluster: NodeCluster, case: RayCase, models: Path) -> None:
    shutil.copytree(models / "raw", case.volume / "digits")
    document = yaml.safe_load((EXAMPLES / "rayservice.yaml").read_text())
    pod = document["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {"image": RAY_IMAGE, "volumeMounts": []}
    pod |= case.add_volume({**pod, "volumes": []})
    document["metadata"]["namespace"] = case.namespace
    case.api.create(RAY_SERVICES, document, case.namespace)

    def is_ready() -> bool:
        status = case.api.get(RAY_SERVICES, "digits", case.namespace).get("status") or {}
        return any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or [])

    wait_for(is_ready, case.explain, SECONDS)
    image = [[[0.0] * 8] * 8]
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [image]}
    url = f"http://digits-serve-svc.{case.namespace}.svc.cluster.local:8000/v2/models/digits/infer"
    answers: list[dict[str, Any]] = []

    def is_answered() -> bool:
        request = urllib.request.Request(url, json.dumps({"inputs": [tensor]}).encode())
        # On a loaded machine KubeRay takes a pod whose probe was late out of the Service.
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as response:
            answers.append(json.loads(response.read()))
        return bool(answers)

    with resolve_services(own_cluster):
        wait_for(is_answered, case.explain, SECONDS)
    (answer,) = answers
    assert answer["model_name"] == "digits"
    outputs = {item["name"]: item for item in answer["outputs"]}
    assert all(item["shape"][0] == 1 for item in outputs.values()), outputs

    case.api.delete(RAY_SERVICES, "digits", case.namespace, propagation="Foreground")
    wait_for(lambda: not case.api.list(RAY_SERVICES, case.namespace), case.explain, SECONDS)
    assert case.list_pods() == {}
