"""From ms-operator's published definition to ours, in place: what is stored stays readable and can be changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import DEFINITIONS
from kfp_mindspore.msjob import KubernetesBackend, MSJobClient
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.api.names import MSJOBS
from tests.cluster.infrastructure.api_server import ApiServer
from tests.support.kube.msjob_cases import VALID, VALID_HERE, build_job, build_template, put

PUBLISHED = Path(__file__).parents[3] / "shared" / "crds" / "msjobs.mindspore.gitee.com.json"
SECONDS = 300.0
WRONG: dict[str, dict[str, Any]] = {
    "unknown-type": {"spec.msReplicaSpecs.Evaluator": {"template": build_template()}},
    "no-worker": {"spec.msReplicaSpecs": {"Scheduler": {"template": build_template()}}},
    "two-schedulers": {"spec.msReplicaSpecs.Scheduler": {"replicas": 2, "template": build_template()}},
    "twice": {"spec.msReplicaSpecs.worker": {"template": build_template()}},
}


@pytest.fixture
def published() -> Any:
    if not PUBLISHED.is_file():
        pytest.skip(f"ms-operator's published definition is not at {PUBLISHED.name} beside the repository")
    definition = json.loads(PUBLISHED.read_text())
    definition["metadata"] = {"name": definition["metadata"]["name"]}
    definition.pop("status", None)
    return definition


def replace_definition(cluster: Cluster, definition: dict[str, Any]) -> None:
    """Put a definition in the place of another and wait until jobs are served by it."""
    try:
        stored = cluster.get(DEFINITIONS, definition["metadata"]["name"])
    except NotFoundError:
        cluster.create(DEFINITIONS, definition)
    else:
        patch = {"spec": {**definition["spec"], "conversion": stored["spec"].get("conversion")}}
        cluster.patch(DEFINITIONS, definition["metadata"]["name"], "", patch)
    for found in cluster.watch(DEFINITIONS, timeout=SECONDS):
        conditions = (found[definition["metadata"]["name"]].get("status") or {}).get("conditions") or []
        if any(item["type"] == "Established" and item["status"] == "True" for item in conditions):
            return
    raise AssertionError("the definition is not established")


def test_stored_jobs_survive_upgrade(start_api_server: Callable[..., ApiServer], published: dict[str, Any]) -> None:
    server = start_api_server()
    cluster = Cluster(server.kubeconfig)
    replace_definition(cluster, published)
    old = {name: cluster.create(MSJOBS, document, "default") for name, document in VALID.items()}
    # ms-operator writes its status as a subresource, with kubeflow's fields.
    condition = {"type": "Running", "status": "True", "reason": "MSJobRunning", "message": "It runs."}
    status = {"status": {"conditions": [condition], "replicaStatuses": {"Worker": {"active": 1}}}}
    name = VALID["one-worker"]["metadata"]["name"]
    cluster.patch(MSJOBS, name, "default", status, subresource="status")
    # New fields are not known yet: `kubectl apply` refuses them.
    with pytest.raises(ValidationError, match="unknown field"):
        cluster.create(MSJOBS, VALID_HERE["suspended"], "default")

    replace_definition(cluster, build_crd())
    wait_for_field(cluster, "suspend")
    client = MSJobClient(KubernetesBackend("default", kubeconfig=server.kubeconfig))
    kept = {job.name: job for job in client.list_jobs()}
    assert set(kept) == {document["metadata"]["name"] for document in VALID.values()}
    for document in old.values():
        job = kept[document["metadata"]["name"]]
        assert job.metadata["uid"] == document["metadata"]["uid"]
        for key, replica in document["spec"]["msReplicaSpecs"].items():
            spec = client.backend.get(job.name, "default").ms_replica_specs
            (kind,) = [kind for kind in spec if kind.lower() == key.lower()]
            assert spec[kind].template == replica["template"]
    assert client.is_job_running(name)
    # Each can be suspended and deleted under the new rules, its defaults filled in.
    for job in kept.values():
        client.update_job({"spec": {"runPolicy": {"suspend": True}}}, job.name)
        assert client.get_job(job.name).effective_run_policy.suspend is True
        cluster.delete(MSJOBS, job.name, "default")
    assert client.list_jobs() == []
    stored = cluster.get(DEFINITIONS, "msjobs.mindspore.gitee.com")
    assert stored["status"]["storedVersions"] == ["v1"]


@pytest.fixture
def upgraded(start_api_server: Callable[..., ApiServer], published: dict[str, Any]) -> Cluster:
    """A cluster with jobs that ms-operator's definition let in and ours would not."""
    cluster = Cluster(start_api_server().kubeconfig)
    replace_definition(cluster, published)
    for name, change in WRONG.items():
        job = put(build_job(name), "metadata.finalizers", ["example.com/hold"])
        for path, value in change.items():
            job = put(job, path, value)
        cluster.create(MSJOBS, job, "default")
        status = {"conditions": [{"type": "Running", "status": "True"}], "replicaStatuses": {}}
        cluster.patch(MSJOBS, name, "default", {"status": status}, subresource="status")
    replace_definition(cluster, build_crd())
    wait_for_field(cluster, "suspend")
    return cluster


def test_jobs_refused_by_new_definition_can_be_updated_and_deleted(upgraded: Cluster) -> None:
    for name in WRONG:
        for status in ({"state": "Failed"}, {"workers": "0/1"}):
            told = upgraded.patch(MSJOBS, name, "default", {"status": status}, subresource="status")
            assert told["status"].items() >= status.items()
        upgraded.patch(MSJOBS, name, "default", {"metadata": {"labels": {"team": "vision"}}})
        upgraded.patch(MSJOBS, name, "default", {"spec": {"runPolicy": {"suspend": True}}})
        worse = {"Master": {"template": build_template()}}
        with pytest.raises(ValidationError, match="unknown replica type"):
            upgraded.patch(MSJOBS, name, "default", {"spec": {"msReplicaSpecs": worse}})
        upgraded.delete(MSJOBS, name, "default")
        upgraded.patch(MSJOBS, name, "default", {"metadata": {"finalizers": None}})
        with pytest.raises(NotFoundError):
            upgraded.get(MSJOBS, name, "default")


def wait_for_field(cluster: Cluster, field: str) -> None:
    """Wait until the API server validates jobs by the definition with a field, which it loads after a moment."""
    job = put(build_job("probe"), f"spec.runPolicy.{field}", True)
    deadline = time.monotonic() + SECONDS
    while not is_taken(cluster, job):
        assert time.monotonic() < deadline, f"{field} is still unknown"
        time.sleep(0.05)


def is_taken(cluster: Cluster, job: dict[str, Any]) -> bool:
    try:
        cluster.create(MSJOBS, job, "default", dry_run=True)
    except ValidationError:
        return False
    return True
