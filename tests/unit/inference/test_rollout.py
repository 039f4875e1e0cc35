"""Why a pod of a rollout does not become ready, and the status of a service, from documents of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.inference import Service, build_inference_service
from kfp_mindspore.inference.backends.kserve_status import build_status
from kfp_mindspore.inference.backends.rollout import get_pod_failure, get_unschedulable
from kfp_mindspore.inference.manifest import build_canary
from kfp_mindspore.inference.service import ServiceState
from kfp_mindspore.kube.pods import read_pod

ENDED = {"terminated": {"exitCode": 2, "reason": "Error"}}
RUNNING = {"running": {"startedAt": "2026-01-31T12:00:00Z"}}


def make_status(name: str, state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> Any:
    return {"name": name, "image": "server:1", "state": state, "lastState": last or {}, "restartCount": restarts}


def make_pod(*servers: Any, init: tuple[Any, ...] = (), **status: Any) -> dict[str, Any]:
    labels = {"serving.kserve.io/inferenceservice": "digits", "component": "predictor"}
    metadata = {"name": "p", "namespace": "team", "labels": labels, "annotations": {"kfp-mindspore/version": "2"}}
    containers = {"containerStatuses": list(servers), "initContainerStatuses": list(init)}
    return {"metadata": metadata, "status": {**containers, **status}}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (make_pod(), ""),
        (make_pod(make_status("kserve-container", RUNNING)), ""),
        (make_pod(make_status("kserve-container", {"waiting": {"reason": "PodInitializing"}})), ""),
        (make_pod(init=(make_status("storage-initializer", {"terminated": {"exitCode": 0}}),)), ""),
        (
            make_pod(init=(make_status("storage-initializer", {"terminated": {"exitCode": 1, "reason": "Error"}}),)),
            "pod p: container storage-initializer ended with exit code 1",
        ),
        (make_pod(make_status("kserve-container", ENDED)), "pod p: container kserve-container ended with exit code 2"),
        # A server has no reason to end, not even with 0.
        (
            make_pod(make_status("kserve-container", {"terminated": {"exitCode": 0, "reason": "Completed"}})),
            "pod p: container kserve-container ended with exit code 0",
        ),
        (
            make_pod(
                make_status(
                    "kserve-container", RUNNING, {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, restarts=1
                )
            ),
            "pod p: container kserve-container ended with exit code 137 (OOMKilled)",
        ),
        (
            make_pod(
                make_status("kserve-container", {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}})
            ),
            "pod p: container kserve-container: ImagePullBackOff: Back-off",
        ),
        (
            make_pod(make_status("kserve-container", {"waiting": {"reason": "InvalidImageName"}})),
            "pod p: container kserve-container: InvalidImageName: server:1",
        ),
        (make_pod(phase="Failed", reason="Evicted", message="low on memory"), "pod p: Evicted: low on memory"),
    ],
)
def test_reason_of_failing_pod(pod: dict[str, Any], reason: str) -> None:
    failure = get_pod_failure(read_pod(pod))
    assert (failure.reason if failure else "") == reason


def test_log_of_restarted_container_is_one_before() -> None:
    failure = get_pod_failure(read_pod(make_pod(make_status("kserve-container", RUNNING, ENDED, restarts=1))))
    assert failure is not None
    assert failure.restarted
    failure = get_pod_failure(read_pod(make_pod(make_status("kserve-container", ENDED, ENDED, restarts=1))))
    assert failure is not None
    assert not failure.restarted


def test_unschedulable_pod() -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert get_unschedulable(read_pod(make_pod(conditions=[refused]))) == "0/3 nodes"
    assert get_unschedulable(read_pod(make_pod(conditions=[{**refused, "reason": "SchedulingGated"}]))) == ""
    assert get_unschedulable(read_pod(make_pod())) == ""


def make_document(service: Service, version: int, **annotations: str) -> dict[str, Any]:
    document = build_inference_service(service)
    document["metadata"] |= {"creationTimestamp": "2026-01-31T12:00:00Z"}
    document["metadata"]["annotations"] |= {"kfp-mindspore/version": str(version), **annotations}
    return document


SERVICE = Service("digits", "s3://models/digits/", namespace="team", grpc=True, digest="sha256:1", run="r")
READY = [{"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    ("pods", "state", "message"),
    [
        ([], ServiceState.STARTING, ""),
        ([make_pod(make_status("kserve-container", RUNNING), conditions=READY)], ServiceState.READY, ""),
        (
            [make_pod(make_status("kserve-container", RUNNING, ENDED, restarts=3))],
            ServiceState.RESTARTING,
            "pod p: container kserve-container ended with exit code 2",
        ),
    ],
)
def test_state_of_service_is_that_of_its_version(pods: list[Any], state: ServiceState, message: str) -> None:
    document = make_document(SERVICE, 2)
    # A ready pod of the version before, and one of another namespace.
    others = [make_pod(conditions=READY), make_pod(conditions=READY)]
    others[0]["metadata"]["annotations"]["kfp-mindspore/version"] = "1"
    others[1]["metadata"]["namespace"] = "other"
    status = build_status(document, None, [*others, *pods])
    assert (status.state, status.message, status.version) == (state, message, 2)
    assert status.url == "http://digits-predictor.team.svc.cluster.local"
    assert status.grpc_url == "digits-predictor.team.svc.cluster.local:8081"
    assert (status.model, status.digest, status.run) == ("s3://models/digits/", "sha256:1", "r")


def test_stopped_service() -> None:
    document = make_document(SERVICE, 2, **{"serving.kserve.io/stop": "true"})
    assert build_status(document, None, []).state is ServiceState.STOPPED


def test_addresses_have_domain_of_cluster() -> None:
    document = make_document(SERVICE, 2)
    document["status"] = {"address": {"url": "http://digits-predictor.team.svc.example.org"}}
    canary = build_canary(SERVICE, 10, 3)
    found = build_status(document, canary, []).canary
    assert found is not None
    assert found.url == "http://digits-canary-predictor.team.svc.example.org"
    assert found.traffic_url == "http://digits-traffic.team.svc.example.org"
