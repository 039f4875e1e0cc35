"""Why a Kueue queue cannot start a job, by LocalQueues and ClusterQueues on a small API server."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.msjob import KubernetesBackend, MSJobClient, build_msjob
from kfp_mindspore.msjob.api.kueue import CLUSTER_QUEUES, LOCAL_QUEUES
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.msjob.types import MSJob
from tests.support.kube.fake_api_server import FakeApiServer, respond_once
from tests.support.kube.queues import put_queue

MESSAGE = "queue 'research': ClusterQueue shared can never start the job: "
ELASTIC = {"minReplicas": 1}
Prepare = Callable[[FakeApiServer], Any]


@pytest.fixture
def client(api: FakeApiServer, tmp_path: Path) -> MSJobClient:
    return MSJobClient(KubernetesBackend(kubeconfig=api.write_kubeconfig(tmp_path / "config")), namespace="team")


def build(workers: int = 1, *, queue: str = "research", elastic: bool = False, **resources: str) -> MSJob:
    job = build_msjob(
        "lenet", command=["python"], image="a", namespace="team", workers=workers, queue=queue, resources=resources
    )
    document = job.to_dict()
    return MSJob.from_dict({**document, "spec": {**document["spec"], "elasticPolicy": ELASTIC}}) if elastic else job


def respond(status: int, collection: str) -> Prepare:
    return lambda api: api.faults.append(respond_once(status, path=collection, reason="Forbidden", times=9))


@pytest.mark.parametrize(
    ("queue", "prepare", "sentence"),
    [
        ({}, None, ""),
        (
            {"name": "resarch"},
            None,
            "queue 'research': namespace team has no such LocalQueue; did you mean 'resarch'?",
        ),
        (
            {"namespace": "other"},
            None,
            "queue 'research': namespace team has no such LocalQueue",
        ),
        (
            {"stop_policy": "Hold"},
            None,
            "queue 'research': LocalQueue research starts no job: its stopPolicy is Hold, LocalQueue is stopped",
        ),
        (
            {"stopPolicy": "HoldAndDrain"},
            None,
            "queue 'research': ClusterQueue shared starts no job: its stopPolicy is HoldAndDrain, "
            "Can't admit new workloads: is stopped.",
        ),
        (
            {"stopPolicy": "Hold"},
            respond(403, CLUSTER_QUEUES.plural),
            "queue 'research': LocalQueue research starts no job: Can't submit new workloads to clusterQueue",
        ),
        (
            {},
            lambda api: api.faults.append(respond_once(404, path=LOCAL_QUEUES.plural)),
            "queue 'research': the cluster does not know localqueues.kueue.x-k8s.io; install Kueue",
        ),
        ({}, respond(403, LOCAL_QUEUES.plural), ""),
        ({}, respond(500, LOCAL_QUEUES.plural), ""),
        ({}, lambda api: api.remove(CLUSTER_QUEUES.get_path(), "shared"), ""),
    ],
    ids=[
        *("active", "mistyped", "of another namespace", "held", "cluster queue drained"),
        *("cluster queue unreadable", "no Kueue", "unreadable", "failing server", "cluster queue deleted"),
    ],
)
def test_queue_that_starts_no_job_is_explained(
    api: FakeApiServer, client: MSJobClient, queue: dict[str, Any], prepare: Prepare | None, sentence: str
) -> None:
    put_queue(api, **queue)
    if prepare is not None:
        prepare(api)
    assert client.backend.explain_queue(build()) == sentence


@pytest.mark.parametrize(
    ("queue", "job", "missing"),
    [
        ({}, {"cpu": "4"}, ""),
        ({}, {"cpu": "4500m"}, "it requests 4500m cpu, the quota is 4"),
        # The scheduler requests what a worker does.
        ({}, {"workers": 2, "cpu": "2"}, "it requests 6 cpu, the quota is 4"),
        ({}, {"workers": 4, "elastic": True, "cpu": "2"}, ""),
        (
            {},
            {"cpu": "5", "nvidia.com/gpu": "1"},
            "it requests 5 cpu, the quota is 4, it requests 1 nvidia.com/gpu, the quota is 0",
        ),
        ({"flavors": [{"cpu": "4"}, {"cpu": "4"}]}, {"cpu": "8"}, ""),
        ({"flavors": [{"cpu": "9", "pods": "2"}]}, {"workers": 2, "cpu": "1"}, "it requests 3 pods, the quota is 2"),
        ({"cohortName": "all"}, {"cpu": "5"}, ""),
        ({"cohort": "all"}, {"cpu": "5"}, ""),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_job_above_whole_quota_is_explained(
    api: FakeApiServer, client: MSJobClient, queue: dict[str, Any], job: dict[str, Any], missing: str
) -> None:
    put_queue(api, **queue)
    assert client.backend.explain_queue(build(**job)) == (missing and MESSAGE + missing)


def test_other_kinds_are_not_compared_with_quota(api: FakeApiServer, client: MSJobClient) -> None:
    put_queue(api)
    assert client.backend.explain_queue(build(cpu="9"), "MPIJob") == ""


def test_job_without_queue_reads_none(api: FakeApiServer, client: MSJobClient) -> None:
    assert client.backend.explain_queue(build(queue="")) == ""
    assert api.requests == []


def test_submission_warns_of_its_queue(api: FakeApiServer, client: MSJobClient) -> None:
    with pytest.warns(UserWarning, match="namespace team has no such LocalQueue"):
        client.create_job(build(queue=""), queue_name="research", queue_priority="urgent")
    stored = api.find(MSJOBS.get_path("team"), "lenet")
    assert stored is not None
    assert stored["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "research",
        "kueue.x-k8s.io/priority-class": "urgent",
    }


def test_dry_run_reads_no_queue(api: FakeApiServer, client: MSJobClient) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.create_job(build(), dry_run=True)
    assert api.count("GET", LOCAL_QUEUES.plural) == 0
