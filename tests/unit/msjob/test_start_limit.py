"""Limits of the time that a job waits for its pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.msjob import KubernetesBackend, MSJobClient, build_msjob
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.msjob.api.waiting import Waiting, get_start_limit
from kfp_mindspore.msjob.start_limit import StartLimit
from tests.support.kube.fake_api_server import FakeApiServer

PATH = MSJOBS.get_path("team")
PULL = Waiting("ImagePullBackOff", "lenet-worker-0: ImagePullBackOff: no/such:1")
QUEUED = Waiting("Queued", 'queue "research": insufficient unused quota for cpu in flavor default')
BUSY = Waiting("Unschedulable", "lenet-worker-0: Unschedulable: Insufficient cpu")


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        ("ImagePullBackOff", 60),
        ("CreateContainerConfigError", 60),
        ("CreateContainerError", 60),
        ("Forbidden", 60),
        ("QuotaTooSmall", 60),
        ("NameTaken", 60),
        ("NoNodeFits", 600),
        ("UnboundVolume", 600),
        ("NoOperator", 600),
        ("QuotaExceeded", None),
        ("Rejected", None),
        ("NameTerminating", None),
        ("Queued", None),
        ("QueueIgnored", 60),
        ("Unschedulable", None),
        ("", None),
        ("OfLaterVersion", None),
    ],
)
def test_reasons_that_do_not_pass_by_themselves_have_limit(reason: str, seconds: float | None) -> None:
    assert get_start_limit(reason) == seconds


@pytest.fixture
def client(api: FakeApiServer, tmp_path: Path) -> MSJobClient:
    return MSJobClient(KubernetesBackend(kubeconfig=api.write_kubeconfig(tmp_path / "config")), namespace="team")


def put_job(api: FakeApiServer, waiting: Waiting | None) -> None:
    document = build_msjob("lenet", command=["python"], image="a", namespace="team").to_dict()
    document["metadata"]["uid"] = "uid-job"
    fields = {"waiting": waiting.message, "waitingReason": waiting.reason} if waiting else {}
    api.put(PATH, {**document, "status": {"state": "Created", **fields}})


@pytest.mark.parametrize(
    ("now", "seconds", "is_deleted"),
    [(PULL, 0.01, True), (BUSY, 0.01, True), (QUEUED, 0.01, False), (None, 0.01, False)],
    ids=["same", "other", "queued", "started"],
)
def test_job_that_does_not_start_is_deleted(
    api: FakeApiServer, client: MSJobClient, now: Waiting | None, seconds: float, is_deleted: bool
) -> None:
    put_job(api, now)
    with StartLimit(client, "lenet", "team", seconds) as limit:
        limit.start(PULL)
        for timer in limit._timers:
            timer.join(60)
    error = f"job lenet did not start within 0.01 s and was deleted: {now.message}" if now and is_deleted else ""
    assert limit.error == error
    assert api.count("DELETE", f"{PATH}/lenet") == int(is_deleted)


def test_job_without_operator_is_deleted(api: FakeApiServer, client: MSJobClient) -> None:
    document = build_msjob("lenet", command=["python"], image="a", namespace="team").to_dict()
    document["metadata"] |= {"uid": "uid-job", "creationTimestamp": "2026-01-01T00:00:00Z"}
    api.put(PATH, document)
    with StartLimit(client, "lenet", "team", 0.01) as limit:
        limit.start(Waiting("NoOperator", "no operator has reconciled job lenet for 11 s."))
        for timer in limit._timers:
            timer.join(60)
    assert "was deleted: no operator has reconciled job lenet" in limit.error
    assert api.count("DELETE", f"{PATH}/lenet") == 1


def test_queued_job_has_no_limit(client: MSJobClient) -> None:
    with StartLimit(client, "lenet", "team", 0.01) as limit:
        limit.start(QUEUED)
        assert limit._timers == []


def test_end_of_block_ends_limit(api: FakeApiServer, client: MSJobClient) -> None:
    put_job(api, PULL)
    with StartLimit(client, "lenet", "team", 3600) as limit:
        limit.start(PULL)
    for timer in limit._timers:
        timer.join(60)
        assert not timer.is_alive()
    assert limit.error == ""
