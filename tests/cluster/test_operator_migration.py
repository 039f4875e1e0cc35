"""From ms-operator to this operator: same definition's name, stored objects, running jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.kube.resources import PODS, SERVICES
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.infrastructure.api_server import ApiServer
from tests.support.kube.operators import Jobs, OperatorProcess, has, install_definition, is_deleting, make_job

PUBLISHED = Path(__file__).parents[3] / "shared" / "crds" / "msjobs.mindspore.gitee.com.json"
STAMP = "2025-01-31T12:00:00Z"


def _make_pods(job: dict[str, Any], namespace: str, workers: int) -> list[dict[str, Any]]:
    """Return pods as ms-operator makes them: its labels and names, and nothing of ours."""
    owner = {"apiVersion": job["apiVersion"], "kind": "MSJob", "name": job["metadata"]["name"]}
    owner |= {"uid": job["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    pods = []
    for kind, index in [("scheduler", 0), *(("worker", index) for index in range(workers))]:
        name = f"{job['metadata']['name']}-{kind}-{index}"
        labels = {
            "training.kubeflow.org/operator-name": "msjob-controller",
            "training.kubeflow.org/job-name": job["metadata"]["name"],
            "training.kubeflow.org/replica-type": kind,
            "training.kubeflow.org/replica-index": str(index),
        }
        container = {"name": "mindspore", "image": "kfp-mindspore.invalid/none"}
        metadata = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owner]}
        spec = {"restartPolicy": "Never", "containers": [container]}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return pods


def _condition(kind: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True",
        "reason": f"MSJob{kind}",
        "message": f"MSJob is {kind}",
        "lastUpdateTime": STAMP,
        "lastTransitionTime": STAMP,
    }


def test_jobs_of_ms_operator_are_adopted(start_api_server: Callable[..., ApiServer], tmp_path: Path) -> None:
    if not PUBLISHED.is_file():
        pytest.skip(f"ms-operator's definition is not at {PUBLISHED}; put msjobs.mindspore.gitee.com.json there")
    server = start_api_server()
    definition = json.loads(PUBLISHED.read_text())
    definition.pop("status", None)
    list(apply_objects([definition], kubeconfig=str(server.kubeconfig)))
    with server.make_namespace() as namespace:
        jobs = Jobs(server.kubeconfig, namespace)
        # Jobs of ms-operator: a finished one, a running one, and one that it has not started.
        for name in ("finished", "running", "waiting"):
            document = make_job(name, 2)
            del document["spec"]["successPolicy"]
            jobs.cluster.create(MSJOBS, document, namespace)
        over = {"conditions": [_condition("Created"), _condition("Succeeded")], "replicaStatuses": {}}
        jobs.patch_status("finished", {**over, "startTime": STAMP, "completionTime": STAMP})
        active = {"conditions": [_condition("Created"), _condition("Running")], "replicaStatuses": {}}
        jobs.patch_status("running", {**active, "startTime": STAMP})
        for pod in _make_pods(jobs.get("running"), namespace, 2):
            jobs.cluster.create(PODS, pod, namespace)
            jobs.set_running(pod["metadata"]["name"])
        before = {name: item["metadata"]["uid"] for name, item in jobs.pods("running").items()}

        # The definition is upgraded in place; every stored object is still there and readable.
        install_definition(server.kubeconfig)
        stored = {item["metadata"]["name"]: item for item in jobs.cluster.list(MSJOBS, namespace)}
        assert set(stored) == {"finished", "running", "waiting"}
        assert stored["running"]["spec"]["msReplicaSpecs"]["Worker"]["replicas"] == 2
        assert has(stored["finished"], "Succeeded")

        with OperatorProcess(server.kubeconfig, tmp_path / "log", "--namespace", namespace):
            jobs.launch("waiting", 3)
            # The running job keeps its pods.
            assert {name: item["metadata"]["uid"] for name, item in jobs.pods("running").items()} == before
            assert not any(map(is_deleting, jobs.pods("running").values()))
            assert has(jobs.get("running"), "Running")
            # The finished job keeps its times, and gets no pods.
            finished = jobs.get("finished")
            assert has(finished, "Succeeded")
            assert finished["status"]["completionTime"] == STAMP
            assert jobs.pods("finished") == {}
            # A failure of an adopted job is handled as any other.
            jobs.end("running-worker-1", 1)
            jobs.wait("running", "Restarting")
            jobs.wait_pods("running", lambda pods: all(map(is_deleting, pods.values())))
            jobs.reap("running")
            jobs.launch("running", 3)
            assert jobs.get("running")["status"]["restarts"] == 1
            assert jobs.services("running") == ["running-scheduler-0"]
            jobs.end("running-worker-0", 0)
            jobs.wait("running", "Succeeded")
            jobs.wait_gone("running-scheduler-0", SERVICES)
