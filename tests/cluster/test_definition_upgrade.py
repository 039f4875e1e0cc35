"""From another definition to ours, in place: what is stored stays readable and can be changed, or is refused.

Others are ms-operator's published one, those of released versions (tests/fixtures) and that of a newer version.
"""

from __future__ import annotations

import copy
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import NotFoundError, ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import DEFINITIONS, ENDPOINT_SLICES, PODS, SERVICES, Resource
from kfp_mindspore.msjob import KubernetesBackend, MSJobClient
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.api.names import MSJOBS, VERSION_LABEL
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.infrastructure.api_server import ApiServer
from tests.fixtures import DEFINITION, FOLDER, list_versions, matches
from tests.support.kube.msjob_cases import VALID, VALID_HERE, build_job, build_template, put
from tests.support.kube.operators import Jobs, OperatorProcess, has, is_deleting

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


class Stored:
    """The objects of a released version, restored to an API server.

    Args:
        server: The API server, whose definition becomes that version's.
        version: The version.
    """

    def __init__(self, server: ApiServer, version: str) -> None:
        definition = json.loads(gzip.decompress((FOLDER / version / DEFINITION).read_bytes()))
        list(apply_objects([definition], kubeconfig=str(server.kubeconfig)))
        self.jobs = Jobs(server.kubeconfig, "default")
        self.folder = FOLDER / version / "cluster"
        self.documents = {item["metadata"]["name"]: item for item in self.read("jobs")}
        created = [self.restore(MSJOBS, item, {}) for item in self.documents.values()]
        self.uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in created}
        # The garbage collector deletes pods of an unknown node.
        node = Resource("", "v1", "nodes", "Node", namespaced=False)
        self.jobs.cluster.create(node, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nowhere"}})
        kinds = {resource.kind: resource for resource in (PODS, SERVICES, ENDPOINT_SLICES)}
        for item in self.read("running"):
            self.restore(kinds[item["kind"]], item, self.uids)

    def read(self, name: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads((self.folder / f"{name}.json").read_text())["items"]
        return items

    def restore(self, resource: Resource, item: dict[str, Any], owners: dict[str, str]) -> dict[str, Any]:
        """Create an object and its status as they were, and return it."""
        old = item["metadata"]
        metadata = {key: old[key] for key in ("name", "labels", "annotations", "finalizers") if key in old}
        metadata["ownerReferences"] = [
            {**owner, "uid": owners[owner["name"]]} for owner in old.get("ownerReferences", [])
        ]
        document = {key: value for key, value in item.items() if key != "status"}
        created = self.jobs.cluster.create(resource, {**document, "metadata": metadata}, "default")
        if status := item.get("status"):
            self.jobs.cluster.patch(resource, old["name"], "default", {"status": status}, subresource="status")
        return created


@pytest.mark.parametrize("version", list_versions())
def test_jobs_of_released_version_go_on(
    start_api_server: Callable[..., ApiServer], version: str, tmp_path: Path
) -> None:
    server = start_api_server()
    stored = Stored(server, version)
    jobs = stored.jobs
    pods = {name: pod["metadata"]["uid"] for name, pod in jobs.pods("running").items()}
    assert len(pods) == 3
    assert run(["operator", "install", "--definition-only", "--kubeconfig", str(server.kubeconfig)]) == 0
    found = {item["metadata"]["name"]: item for item in jobs.cluster.list(MSJOBS, "default")}
    assert found.keys() == stored.documents.keys()
    for name, document in stored.documents.items():
        assert found[name]["metadata"]["uid"] == stored.uids[name]
        for part in ("spec", "status"):
            assert matches(found[name][part], document[part]), (name, found[name][part], document[part])
    with OperatorProcess(server.kubeconfig, tmp_path / "log", "--namespace", "default"):
        jobs.launch("created", 3)
        # The counted restart is not counted again, and the smaller gang stays so.
        jobs.launch("restarting", 3)
        assert jobs.get("restarting")["status"]["restarts"] == 1
        jobs.launch("scaled", 3)
        assert jobs.get("scaled")["status"]["workers"] == "2/3"
        jobs.patch("suspended", {"spec": {"runPolicy": {"suspend": False}}})
        jobs.launch("suspended", 3)
        for name in ("succeeded", "failed"):
            assert jobs.get(name)["status"]["conditions"] == stored.documents[name]["status"]["conditions"]
            assert jobs.pods(name) == {}
        assert jobs.get("queued")["status"]["waiting"] == stored.documents["queued"]["status"]["waiting"]
        running = jobs.pods("running")
        assert {name: pod["metadata"]["uid"] for name, pod in running.items()} == pods
        assert not any(map(is_deleting, running.values()))
        assert has(jobs.get("running"), "Running")
        assert jobs.get("running")["status"]["restarts"] == 0
        jobs.end("running-worker-0", 0)
        jobs.wait("running", "Succeeded")


def test_downgrade_that_would_drop_stored_fields_is_refused(
    start_api_server: Callable[..., ApiServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_api_server()
    newer = copy.deepcopy(build_crd())
    newer["metadata"]["labels"][VERSION_LABEL] = "9.0.0"
    schema = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["colour"] = {"type": "string"}
    list(apply_objects([newer], kubeconfig=str(server.kubeconfig)))
    cluster = Cluster(server.kubeconfig)
    job = put(build_job("bright"), "spec.colour", "red")
    deadline = time.monotonic() + SECONDS
    while not is_taken(cluster, job):
        assert time.monotonic() < deadline, "the new field is still unknown"
        time.sleep(0.05)
    cluster.create(MSJOBS, job, "default")
    command = ["operator", "install", "--definition-only", "--kubeconfig", str(server.kubeconfig)]
    assert run(command) == 2
    assert "would lose: spec.colour (default/bright)" in capsys.readouterr().err
    assert cluster.get(MSJOBS, "bright", "default")["spec"]["colour"] == "red"
    cluster.delete(MSJOBS, "bright", "default")
    assert run(command) == 0
    assert "removed, which no job has: spec.colour" in capsys.readouterr().out
    name = newer["metadata"]["name"]
    assert cluster.get(DEFINITIONS, name)["metadata"]["labels"][VERSION_LABEL] != "9.0.0"


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
