"""Pods as kubelets report them, cut down."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from kfp_mindspore.msjob.api.waiting import Waiting
from kfp_mindspore.operator.decisions.observed import (
    EndpointSliceView,
    PodGroupView,
    ServiceView,
    view_endpoint_slice,
    view_pod_group,
    view_service,
)
from kfp_mindspore.operator.decisions.pod_view import view_pod

END = "2026-01-31T12:00:05Z"


def make_pod(status: dict[str, Any], *, deleting: bool = False, **metadata: Any) -> dict[str, Any]:
    stamp = {"deletionTimestamp": END} if deleting else {}
    return {"metadata": {"name": "digits-worker-0", "uid": "u", **stamp, **metadata}, "status": status}


def terminated(code: int, reason: str = "Error", message: str = "", name: str = "mindspore") -> dict[str, Any]:
    return {
        "name": name,
        "state": {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": END}},
    }


def disrupted(reason: str) -> dict[str, Any]:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": END}


ENDS = [
    # status, deleting → exit code, reason, message
    ({}, False, None, "", ""),
    ({"phase": "Running"}, False, None, "", ""),
    ({"phase": "Running"}, True, None, "", ""),
    ({"phase": "Succeeded", "containerStatuses": [terminated(0, "Completed")]}, False, 0, "Completed", ""),
    ({"phase": "Succeeded", "containerStatuses": [terminated(0, "Completed")]}, True, 0, "Completed", ""),
    ({"phase": "Succeeded"}, False, 0, "Completed", ""),
    ({"phase": "Failed", "containerStatuses": [terminated(1)]}, False, 1, "Error", ""),
    ({"phase": "Failed", "containerStatuses": [terminated(143)]}, True, 143, "Deleted", ""),
    ({"phase": "Failed", "containerStatuses": [terminated(137, "OOMKilled")]}, False, 137, "OOMKilled", ""),
    ({"phase": "Failed", "containerStatuses": [terminated(137, "OOMKilled")]}, True, 137, "OOMKilled", ""),
    # The training has ended; the sidecar still runs.
    ({"phase": "Running", "containerStatuses": [terminated(0, "Completed")]}, False, 0, "Completed", ""),
    ({"phase": "Running", "containerStatuses": [terminated(1, name="proxy")]}, False, None, "", ""),
    (
        {"phase": "Failed", "containerStatuses": [terminated(128, "StartError", "no such file")]},
        False,
        128,
        "StartError",
        "no such file",
    ),
    (
        {"phase": "Failed", "containerStatuses": [terminated(127, "ContainerCannotRun", "no such file")]},
        False,
        127,
        "StartError",
        "no such file",
    ),
    (
        {"phase": "Failed", "initContainerStatuses": [terminated(0, "Completed"), terminated(3, name="data")]},
        False,
        3,
        "InitFailed",
        "in its init container 'data'",
    ),
    (
        {
            "phase": "Pending",
            "containerStatuses": [
                {"name": "mindspore", "image": "A B", "state": {"waiting": {"reason": "InvalidImageName"}}}
            ],
        },
        False,
        128,
        "StartError",
        "InvalidImageName: A B",
    ),
    (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        False,
        137,
        "Evicted",
        "The node was low on resource: memory.",
    ),
    (
        {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"},
        False,
        137,
        "OutOfcpu",
        "Pod was rejected",
    ),
    ({"phase": "Failed", "reason": "Terminated", "message": "node shutdown"}, False, 137, "Evicted", "node shutdown"),
    ({"phase": "Failed"}, False, 137, "Error", ""),
]


@pytest.mark.parametrize(
    ("message", "reason", "expected"),
    [
        (
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are "
            "available: 1 Preemption is not helpful for scheduling.",
            "NoNodeFits",
            "Unschedulable: no node fits: Insufficient cpu",
        ),
        (
            "0/3 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector. "
            "preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not "
            "helpful for scheduling.",
            "Unschedulable",
            "Unschedulable: Insufficient memory, node(s) didn't match Pod's node affinity/selector",
        ),
        (
            "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes are "
            "available: 2 Preemption is not helpful for scheduling.",
            "UnboundVolume",
            "Unschedulable: no node fits: pod has unbound immediate PersistentVolumeClaims",
        ),
        ("no nodes available to schedule pods", "Unschedulable", "Unschedulable: no nodes available to schedule pods"),
    ],
)
def test_unschedulable_pod_waits(message: str, reason: str, expected: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    view = view_pod(make_pod({"phase": "Pending", "conditions": [condition]}, deleting=False))
    assert view.waiting == Waiting(reason, expected)
    assert view.is_unschedulable


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        (
            "CreateContainerConfigError",
            'secret "store" not found',
            'CreateContainerConfigError: secret "store" not found',
        ),
        ("CreateContainerConfigError", "", "CreateContainerConfigError: reg.io/a"),
        ("ErrImagePull", "failed to pull and unpack: 12:01:02", "ImagePullBackOff: reg.io/a"),
        ("CreateContainerError", "name is reserved for 3f2a", "CreateContainerError: reg.io/a"),
    ],
)
def test_container_that_cannot_start_waits(reason: str, message: str, expected: str) -> None:
    waiting = {"reason": reason, "message": message}
    status = {"name": "mindspore", "image": "reg.io/a", "state": {"waiting": waiting}}
    view = view_pod(make_pod({"phase": "Pending", "containerStatuses": [status]}, deleting=False))
    assert view.waiting is not None
    assert view.waiting.message == expected


@pytest.mark.parametrize(("status", "deleting", "code", "reason", "message"), ENDS)
def test_terminations(status: dict[str, Any], deleting: bool, code: int | None, reason: str, message: str) -> None:
    view = view_pod(make_pod(status, deleting=deleting))
    assert (view.exit_code, view.reason, view.message) == (code, reason, message)
    assert view.deleting is deleting


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("EvictionByEvictionAPI", "Evicted"),
        ("TerminationByKubelet", "Evicted"),
        ("DeletionByTaintManager", "NodeLost"),
        ("DeletionByPodGC", "NodeLost"),
        ("SomethingNewer", "Evicted"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_disruptions_before_and_after_termination(condition: str, reason: str, ended: bool) -> None:
    status: dict[str, Any] = {"phase": "Running", "conditions": [disrupted(condition)]}
    if ended:
        status = {**status, "phase": "Failed", "containerStatuses": [terminated(143)]}
    view = view_pod(make_pod(status, deleting=True))
    assert (view.exit_code, view.reason) == (143 if ended else None, reason)
    assert view.finish_time == datetime.datetime(2026, 1, 31, 12, 0, 5, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(("code", "reason"), [(0, "Completed"), (137, "OOMKilled"), (128, "StartError")])
def test_disruption_does_not_replace_oom_and_start_errors(code: int, reason: str) -> None:
    status = {"phase": "Failed", "conditions": [disrupted("TerminationByKubelet")]}
    view = view_pod(make_pod({**status, "containerStatuses": [terminated(code, reason)]}))
    assert view.reason == reason


def test_last_lines_are_read_from_termination_message() -> None:
    status = {"phase": "Failed", "containerStatuses": [terminated(1, message="step 1\nstep 2\nValueError\n")]}
    assert view_pod(make_pod(status)).log == ("step 1", "step 2", "ValueError")


def test_labels_annotations_and_owner() -> None:
    view = view_pod(
        make_pod(
            {},
            labels={"training.kubeflow.org/attempt": "4"},
            annotations={
                "mindspore.gitee.com/restarts": "3",
                "mindspore.gitee.com/workers": "2",
                "mindspore.gitee.com/scheduler-host": "10.0.0.1",
            },
            ownerReferences=[{"uid": "other"}, {"uid": "job", "controller": True}],
        )
    )
    assert (view.attempt, view.restarts, view.workers, view.host, view.owner) == (4, 3, 2, "10.0.0.1", "job")


@pytest.mark.parametrize("value", ["", "-1", "x", "²", "1.5"])
def test_invalid_annotations_count_as_missing(value: str) -> None:
    view = view_pod(make_pod({}, labels={"training.kubeflow.org/attempt": value}))
    assert view.attempt == 0


def test_services_endpoint_slices_and_pod_groups() -> None:
    metadata = {"name": "s", "uid": "u", "ownerReferences": [{"uid": "job", "controller": True}]}
    spec = {"clusterIP": "10.0.0.1", "ports": [{"port": 2222}]}
    assert view_service({"metadata": metadata, "spec": spec}) == ServiceView("s", "u", "job", False, "10.0.0.1", 2222)
    assert view_service({"metadata": metadata, "spec": {"clusterIP": "None"}}).cluster_ip == ""
    endpoint = {"addresses": ["10.244.0.5"], "targetRef": {"uid": "pod"}}
    endpoint_slice = {"metadata": metadata, "endpoints": [endpoint], "ports": [{"port": 2222}]}
    expected = EndpointSliceView("s", "u", "job", False, "pod", "10.244.0.5", 2222)
    assert view_endpoint_slice(endpoint_slice) == expected
    empty = {"metadata": metadata, "endpoints": None, "ports": None}
    assert view_endpoint_slice(empty) == EndpointSliceView("s", "u", "job")
    group = {"metadata": metadata, "spec": {"minMember": 3}, "status": {"phase": "Inqueue"}}
    assert view_pod_group(group) == PodGroupView("s", "u", "job", False, 3, "Inqueue")


@pytest.mark.parametrize(
    ("replica_type", "status", "addresses"),
    [
        ("scheduler", {"podIP": "10.244.0.5", "podIPs": [{"ip": "10.244.0.5"}, {"ip": "fd00::5"}]}, 2),
        ("scheduler", {"podIP": "10.244.0.5"}, 1),
        ("scheduler", {"podIP": "", "podIPs": []}, 0),
        ("scheduler", {}, 0),
        # A worker that gets its address is no news.
        ("worker", {"podIP": "10.244.0.5"}, 0),
    ],
)
def test_addresses(replica_type: str, status: dict[str, Any], addresses: int) -> None:
    view = view_pod(make_pod(status, labels={"training.kubeflow.org/replica-type": replica_type}))
    assert view.addresses == ("10.244.0.5", "fd00::5")[:addresses]


@pytest.mark.parametrize(
    ("containers", "statuses", "stopped"),
    [
        # The kubelet reports the container's end a moment before the phase.
        (["mindspore"], [terminated(0)], True),
        (["mindspore", "sidecar"], [terminated(0), {"name": "sidecar", "state": {"running": {}}}], False),
        (["mindspore", "sidecar"], [terminated(0)], False),
        (["mindspore", "sidecar"], [terminated(0), terminated(1, name="sidecar")], True),
        (["mindspore"], [], False),
    ],
)
def test_pod_is_stopped_once_its_containers_are(
    containers: list[str], statuses: list[dict[str, Any]], stopped: bool
) -> None:
    pod = make_pod({"phase": "Running", "containerStatuses": statuses})
    view = view_pod({**pod, "spec": {"containers": [{"name": name} for name in containers]}})
    assert view.is_finished is stopped
