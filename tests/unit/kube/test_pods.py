"""Pods in the form of the API server's responses (pods.json), shortened to identity and status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kfp_mindspore
from kfp_mindspore.kube.pods import PodState, read_pod

PODS = json.loads(Path(__file__).with_name("pods.json").read_text())


def summarize(pod: PodState) -> dict[str, Any]:
    """Return what is set, in short."""
    found = {
        "phase": pod.phase,
        "reason": pod.reason,
        "node": pod.node,
        "restarts": pod.restarts,
        "ready": pod.is_ready,
        "started": pod.has_started,
        "stopped": pod.is_stopped,
        "deleting": pod.is_deleting,
        "lost": pod.is_node_lost,
        "unschedulable": (pod.unschedulable or "").partition(".")[0],
        "scheduled_at": pod.scheduled_at,
        "disruption": pod.disruption.reason if pod.disruption else "",
        "waiting": [(item.name, item.waiting_reason) for item in pod.all_containers if item.waiting_reason],
        "ended": [
            (item.name, item.termination.exit_code, item.termination.reason)
            for item in pod.all_containers
            if item.termination
        ],
    }
    return {key: value for key, value in found.items() if value}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("new", {"phase": "Pending"}),
        ("unschedulable", {"phase": "Pending", "unschedulable": "0/1 nodes are available: 1 Insufficient cpu"}),
        (
            "image-pull",
            {
                "phase": "Pending",
                "node": "node-1",
                "scheduled_at": "2026-01-31T12:00:01Z",
                "waiting": [("mindspore", "ImagePullBackOff")],
            },
        ),
        (
            "restarted-out-of-memory",
            {"phase": "Running", "node": "node-1", "restarts": 2, "ready": True, "started": True},
        ),
        ("evicted", {"phase": "Failed", "reason": "Evicted", "node": "node-1", "disruption": "TerminationByKubelet"}),
        (
            "node-lost",
            {
                "phase": "Running",
                "node": "node-1",
                "started": True,
                "lost": True,
                "scheduled_at": "2026-01-31T12:00:01Z",
            },
        ),
        (
            "terminating",
            {
                "phase": "Running",
                "node": "node-1",
                "started": True,
                "deleting": True,
                "ended": [("mindspore", 143, "Error")],
            },
        ),
        (
            "init-container-failed",
            {
                "phase": "Failed",
                "node": "node-1",
                "waiting": [("mindspore", "PodInitializing")],
                "ended": [("data", 3, "Error")],
            },
        ),
        (
            "completed",
            {
                "phase": "Succeeded",
                "node": "node-1",
                "started": True,
                "stopped": True,
                "ended": [("mindspore", 0, "Completed")],
            },
        ),
        ("partially-reported", {"phase": "Running", "started": True, "ended": [("mindspore", 0, "")]}),
    ],
)
def test_state(name: str, expected: dict[str, Any]) -> None:
    assert summarize(read_pod(PODS[name])) == expected


def test_termination_before_last_restart() -> None:
    (container,) = read_pod(PODS["restarted-out-of-memory"]).containers
    assert container.termination is None
    assert container.last_termination is not None
    assert (container.last_termination.exit_code, container.last_termination.reason) == (137, "OOMKilled")
    assert container.start_time == "2026-01-31T12:00:06Z"


def test_termination_message_and_times_are_kept_as_reported() -> None:
    container = read_pod(PODS["terminating"]).get_container("mindspore")
    assert container is not None
    assert container.termination is not None
    assert container.termination.message == "saved step 3\n"
    assert (container.termination.start_time, container.termination.finish_time) == (
        "2026-01-31T12:00:02Z",
        "2026-01-31T12:00:06Z",
    )


def test_addresses_without_list_are_single_one() -> None:
    assert read_pod(PODS["image-pull"]).addresses == ("10.42.0.7",)
    assert read_pod({"metadata": {"name": "p"}, "status": {"podIP": "10.42.0.8"}}).addresses == ("10.42.0.8",)
    assert read_pod(PODS["new"]).addresses == ()


def test_no_other_module_reads_container_states() -> None:
    package = Path(kfp_mindspore.__file__).parent
    readers = [path for path in package.rglob("*.py") if "ontainerStatuses" in path.read_text()]
    assert readers == [package / "kube" / "pods.py"]
