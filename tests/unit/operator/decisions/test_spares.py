"""Warm spares on a cluster: created once a gang runs, they become members at its next restart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kfp_mindspore.msjob.api.names import ATTEMPT_LABEL, REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL
from kfp_mindspore.operator.decisions.actions import Create
from kfp_mindspore.operator.options import OperatorOptions
from tests.support.kube.simulated_cluster import Cluster, make_job, significant


def make_cluster(spares: int = 3, *, options: OperatorOptions | None = None, **container: Any) -> Cluster:
    job = make_job(2, backoffLimit=5)
    job["spec"]["warmSpares"] = spares
    job["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0].update(container)
    return Cluster(job, options)


def start_with_spares(spares: int = 3) -> Cluster:
    cluster = make_cluster(spares).start()
    cluster.wait(20)
    return cluster.start()


def list_spares(cluster: Cluster) -> list[str]:
    return sorted(name for name in cluster.pods if "spare" in name)


def restart(cluster: Cluster) -> None:
    cluster.exit("digits-worker-1", 137)
    cluster.settle()
    cluster.run_pods()
    cluster.settle()


def get_container(pod: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    return container


def test_spares_are_created_after_start_of_gang() -> None:
    cluster = make_cluster(2).start()
    assert list_spares(cluster) == []
    cluster.wait(20)
    cluster.settle()
    assert list_spares(cluster) == ["digits-spare-0-0", "digits-spare-0-1"]
    assert cluster.status["warmSpares"] == "0/2"
    cluster.start()
    assert cluster.status["warmSpares"] == "2/2"
    assert cluster.status["workers"] == "2/2"
    assert cluster.status["replicaStatuses"]["Worker"]["active"] == 2


def test_spare_runs_template_behind_its_own_module() -> None:
    cluster = make_cluster(
        1, command=["python3"], args=["-u", "train.py", "$(LR)", "-u"], env=[{"name": "LR", "value": "1"}]
    )
    cluster.start().wait(20)
    cluster.settle()
    pod = cluster.pods["digits-spare-0-0"]
    container = get_container(pod)
    file = "/var/run/kfp-mindspore/assignment"
    assert container["command"] == ["python3", "-u", "-m", "kfp_mindspore.podside.spare", "--assignment", file]
    assert container["args"] == ["train.py", "$(LR)", "-u"]
    names = {item["name"] for item in container["env"]}
    assert {"LR", "MS_NODE_TIMEOUT"} <= names
    assert not names & {"MS_ROLE", "MS_SCHED_HOST", "MS_WORKER_NUM", "MS_NODE_ID"}
    (volume,) = pod["spec"]["volumes"]
    assert container["volumeMounts"] == [
        {"name": volume["name"], "mountPath": "/var/run/kfp-mindspore", "readOnly": True}
    ]


def test_spares_become_all_members_at_restart() -> None:
    cluster = start_with_spares(3)
    uids = {cluster.pods[name]["metadata"]["uid"] for name in list_spares(cluster)}
    restart(cluster)
    assert cluster.has("Running"), "no pod has to start"
    assert (cluster.status["attempt"], cluster.status["restarts"]) == (1, 1)
    assert {pod["metadata"]["uid"] for pod in cluster.pods.values()} == uids
    members = {}
    for pod in cluster.pods.values():
        labels = pod["metadata"]["labels"]
        assert labels[ATTEMPT_LABEL] == "1"
        members[f"{labels[REPLICA_TYPE_LABEL]}-{labels[REPLICA_INDEX_LABEL]}"] = pod
    assert set(members) == {"scheduler-0", "worker-0", "worker-1"}
    found = {
        name: json.loads(pod["metadata"]["annotations"]["mindspore.gitee.com/assignment"])
        for name, pod in members.items()
    }
    address = members["scheduler-0"]["status"]["podIP"]
    assert found["scheduler-0"]["MS_SCHED_HOST"] == address, "the scheduler binds its own address"
    assert cluster.endpoint_addresses == [address]
    host = cluster.services["digits-scheduler-0"]["spec"]["clusterIP"]
    assert found["worker-1"] == {
        "MS_ROLE": "MS_WORKER",
        "MS_SCHED_HOST": host,
        "MS_SCHED_PORT": "2222",
        "MS_WORKER_NUM": "2",
        "MS_NODE_ID": "1",
    }
    assert found["worker-0"]["KFP_MINDSPORE_PROGRESS"] == "-"
    # They are replaced once the gang runs, and restart as any member does.
    cluster.wait(20)
    cluster.start()
    assert cluster.status["warmSpares"] == "3/3"
    cluster.exit(members["worker-0"]["metadata"]["name"], 1)
    cluster.settle()
    assert cluster.status["failure"]["pod"] == "digits-worker-0"
    assert (cluster.status["attempt"], cluster.status["restarts"]) == (2, 2)


def test_workers_get_spares_before_scheduler() -> None:
    cluster = start_with_spares(2)
    restart(cluster)
    assert sorted(cluster.pods) == ["digits-scheduler-0", "digits-spare-0-0", "digits-spare-0-1"]


def test_spares_hold_no_node_that_gang_needs() -> None:
    cluster = make_cluster(2).start()
    cluster.wait(20)
    cluster.settle()
    cluster.set_scheduled("digits-spare-0-0", False)
    cluster.run_pod("digits-spare-0-1")
    cluster.settle()
    assert cluster.has("Running")
    assert cluster.status["warmSpares"] == "1/2; digits-spare-0-0: Unschedulable: Insufficient cpu"
    # A restart of one member in a gang with two cold ones.
    cluster.exit("digits-worker-0", 1)
    cluster.settle()
    assert cluster.pods["digits-spare-0-0"]["metadata"]["deletionTimestamp"]
    cluster.run_pods()
    cluster.settle()
    assert sorted(cluster.pods) == ["digits-scheduler-0", "digits-spare-0-1", "digits-worker-1"]


def test_unschedulable_member_gets_node_of_spare() -> None:
    cluster = make_cluster(3)
    assert cluster.job is not None
    replicas = cluster.job["spec"]["msReplicaSpecs"]
    # With a template of its own, no spare fits.
    replicas["Scheduler"] = {**replicas["Worker"], "replicas": 1}
    cluster.start().wait(20)
    cluster.start()
    cluster.exit("digits-worker-1", 137)
    cluster.settle()
    for name in [name for name, pod in cluster.pods.items() if pod["metadata"].get("deletionTimestamp")]:
        cluster.vanish(name)
    cluster.settle()
    assert sorted(cluster.pods) == ["digits-scheduler-0", *(f"digits-spare-0-{number}" for number in range(3))]
    cluster.set_scheduled("digits-scheduler-0", False)
    cluster.settle()
    deleted = [name for name, pod in cluster.pods.items() if pod["metadata"].get("deletionTimestamp")]
    assert deleted == ["digits-spare-0-2"], "the one that has become no member"


def test_failed_spare_is_reported_once_and_not_replaced() -> None:
    cluster = start_with_spares(1)
    cluster.exit("digits-spare-0-0", 1, message="No module named kfp_mindspore")
    cluster.settle()
    text = "0/1; digits-spare-0-0: No module named kfp_mindspore"
    assert cluster.status["warmSpares"] == text
    assert [event.message for event in cluster.events if event.reason == "NoWarmSpares"] == [text]
    assert cluster.has("Running")
    cluster.wait(1000)
    cluster.settle()
    assert list_spares(cluster) == ["digits-spare-0-0"]


@pytest.mark.parametrize(
    ("options", "container", "problem"),
    [
        ({"gang_scheduler": "volcano"}, {}, "the gang scheduler volcano admits"),
        ({}, {"command": ["bash", "train.sh"]}, "the Worker's command must be"),
        ({}, {"command": None}, "the Worker's command must be"),
        ({}, {"livenessProbe": {"exec": {"command": ["true"]}}}, "the Worker's container has livenessProbe"),
        ({}, {"args": ["--rank=$(MS_NODE_ID)"]}, r"the Worker's template refers to $(MS_NODE_ID)"),
    ],
)
def test_jobs_without_spares_say_why(options: dict[str, Any], container: dict[str, Any], problem: str) -> None:
    cluster = make_cluster(2, options=OperatorOptions(**options), **container)
    cluster.settle()
    if cluster.pod_group is not None:
        cluster.pod_group["status"] = {"phase": "Inqueue"}
    cluster.start().wait(20)
    cluster.settle()
    assert cluster.has("Running")
    assert cluster.status["warmSpares"].startswith(f"0/2; {problem}")
    assert list_spares(cluster) == []


def test_spares_end_with_job() -> None:
    cluster = start_with_spares(2)
    cluster.exit("digits-worker-0", 0)
    cluster.settle()
    cluster.run_pods()
    cluster.settle()
    assert list_spares(cluster) == []
    assert "warmSpares" not in cluster.status


def test_refused_spares_do_not_affect_job() -> None:
    cluster = make_cluster(2).start()
    cluster.wait(20)
    creates = [action for action in significant(cluster.decide()) if isinstance(action, Create)]
    assert [action.is_optional for action in creates] == [True, True]
