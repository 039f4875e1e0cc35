"""The RayJob that a step submits, adopts, follows and deletes, on a small API server."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.steps.handover.step_pod import RUN_LABEL
from kfp_mindspore.steps.launch.job import StepJobs
from kfp_mindspore.steps.launch.ray_job import RayJobs, run_rayjob
from tests.support.kube.fake_api_server import FakeApiServer

POD = "digits-x7k-train-1"
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "digits-x7k", "uid": "uid-workflow"}
ROOT = "s3://bucket/run/train/uuid"
PATH = "/apis/ray.io/v1/namespaces/team/rayjobs"
SUCCEEDED = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with FakeApiServer().serve() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config", namespace="team")))
        monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
        monkeypatch.setenv("KFP_POD_NAME", POD)
        server.kinds["/apis/ray.io/v1"] = [{"name": "rayjobs", "kind": "RayJob", "namespaced": True}]
        metadata = {"name": POD, "namespace": "team", "labels": {RUN_LABEL: "0123"}, "ownerReferences": [WORKFLOW]}
        containers = [{"name": "main", "image": "registry/step:1"}]
        server.put(PODS.get_path("team"), {"metadata": metadata, "spec": {"containers": containers}})
        yield server


def run(server: FakeApiServer, status: dict[str, Any], workers: int = 2, wrapper: tuple[str, ...] = ()) -> None:
    """Run the step on a cluster whose operator gives the RayJob a status."""
    stopped = threading.Event()

    def operate() -> None:
        while not stopped.wait(0.01):
            found = server.find(PATH, "lenet")
            if found is not None and not found.get("status"):
                server.put(PATH, {**found, "status": status})

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        command, options = ["python", "train.py"], JobOptions(workers=workers)
        run_rayjob(StepJobs(ROOT, "team"), "lenet", command, options, PodPatch(), wrapper=wrapper)
    finally:
        stopped.set()
        operator.join()


def test_rayjob_belongs_to_run_and_has_image_of_step(server: FakeApiServer) -> None:
    run(server, SUCCEEDED)
    found = server.find(PATH, "lenet")
    assert found is not None
    assert found["metadata"]["ownerReferences"] == [WORKFLOW]
    assert found["metadata"]["labels"][RUN_LABEL] == "0123"
    (group,) = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["template"]["spec"]["containers"][0]["image"]) == (2, "registry/step:1")


@pytest.mark.parametrize("shared", [True, False])
def test_driver_or_workers_hand_over_artifacts(server: FakeApiServer, shared: bool) -> None:
    options = ("--download", "s3://b/my data", "/data", *["--shared"] * shared)
    wrapper = ("python", "-m", "kfp_mindspore.podside.artifacts", *options, "--")
    run(server, SUCCEEDED, wrapper=wrapper)
    found = server.find(PATH, "lenet")
    assert found is not None
    driver, name = ["python", "-m", "kfp_mindspore.ray.job"], "--name=lenet"
    expected = [*wrapper, *driver, name] if shared else [*driver, *options, name]
    assert shlex.split(found["spec"]["entrypoint"])[: len(expected)] == expected


def test_retry_adopts_and_changed_job_replaces(server: FakeApiServer) -> None:
    run(server, SUCCEEDED)
    run(server, SUCCEEDED)
    assert server.count("POST", "rayjobs") == 1
    run(server, SUCCEEDED, workers=3)
    assert (server.count("POST", "rayjobs"), server.count("DELETE", "rayjobs")) == (2, 1)


def test_failed_job_has_rays_reason_and_is_replaced(server: FakeApiServer) -> None:
    with pytest.raises(ProcessFailedError, match=r"RayJob lenet: failed \(AppFailed\): exit code 2"):
        run(server, {"jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "exit code 2"})
    run(server, SUCCEEDED)
    assert server.count("POST", "rayjobs") == 2


def test_log_of_submitter_is_printed(server: FakeApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"batch.kubernetes.io/job-name": "lenet"}
    metadata = {"name": "lenet-abc", "namespace": "team", "labels": labels}
    containers = [{"name": "ray-job-submitter"}]
    server.put(
        PODS.get_path("team"),
        {"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": "Running"}},
    )
    server.write("lenet-abc", "epoch 1 of 2", end=True)
    run(server, SUCCEEDED)
    assert "epoch 1 of 2" in capsys.readouterr().out


def test_cancelled_job_is_deleted(server: FakeApiServer) -> None:
    jobs = StepJobs(ROOT, "team")
    client = RayJobs(Cluster(), jobs.build("lenet", ["python", "train.py"], JobOptions()))
    client.submit()
    client.cancel()
    client.cancel()
    assert server.find(PATH, "lenet") is None
