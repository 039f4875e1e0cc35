from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.api.names import SCHEDULER
from kfp_mindspore.msjob.api.spec import ReplicaSpec
from kfp_mindspore.msjob.decisions.topology import (
    VARIABLES,
    Endpoints,
    build_topology,
    get_scheduler_port,
    is_standalone,
    make_labels,
)
from kfp_mindspore.settings import TOPOLOGY_DEFAULTS

HERE = Endpoints("10.0.0.7", 4321)


def make_spec(replicas: int | None = None, *, port: Any = None, word: str = "train") -> ReplicaSpec:
    container: dict[str, Any] = {"name": "mindspore", "command": [word]}
    if port is not None:
        container["ports"] = [{"name": "web", "containerPort": 80}, {"name": "msjob-port", "containerPort": port}]
    return ReplicaSpec(replicas, "OnFailure", {"spec": {"containers": [{"name": "other"}, container]}})


def make_job(**specs: ReplicaSpec) -> MSJob:
    return MSJob({"name": "digits"}, dict(specs))


@pytest.mark.parametrize("specs", [{"Worker": make_spec()}, {"Worker": make_spec(1), "Scheduler": make_spec()}])
def test_one_worker_is_one_plain_process(specs: dict[str, ReplicaSpec]) -> None:
    job = make_job(**specs)
    assert is_standalone(job)
    topology = build_topology(job, HERE)
    (member,) = topology.members
    assert (member.name, member.replica_type, member.index) == ("digits-worker-0", "Worker", 0)
    assert member.environment == {}
    assert topology.scheduler_port is None


def test_workers_get_scheduler_of_their_own_template() -> None:
    worker = make_spec(2)
    job = make_job(Worker=worker)
    topology = build_topology(job, HERE)
    assert [(member.name, member.environment) for member in topology.members] == [
        (
            "digits-scheduler-0",
            {
                "MS_ROLE": "MS_SCHED",
                "MS_SCHED_HOST": "10.0.0.7",
                "MS_SCHED_PORT": "4321",
                "MS_WORKER_NUM": "2",
                **TOPOLOGY_DEFAULTS,
                "MS_NODE_ID": "scheduler-0",
            },
        ),
        (
            "digits-worker-0",
            {
                "MS_ROLE": "MS_WORKER",
                "MS_SCHED_HOST": "10.0.0.7",
                "MS_SCHED_PORT": "4321",
                "MS_WORKER_NUM": "2",
                **TOPOLOGY_DEFAULTS,
                "MS_NODE_ID": "0",
            },
        ),
        (
            "digits-worker-1",
            {
                "MS_ROLE": "MS_WORKER",
                "MS_SCHED_HOST": "10.0.0.7",
                "MS_SCHED_PORT": "4321",
                "MS_WORKER_NUM": "2",
                **TOPOLOGY_DEFAULTS,
                "MS_NODE_ID": "1",
            },
        ),
    ]
    assert topology.scheduler_port == 4321
    assert job.get_replica_spec(SCHEDULER) == worker


def test_scheduler_with_its_own_template_keeps_it() -> None:
    job = make_job(Worker=make_spec(2), Scheduler=make_spec(word="schedule"))
    assert job.get_replica_spec(SCHEDULER).container["command"] == ["schedule"]


def test_parameter_servers_make_cluster_of_one_worker_too() -> None:
    job = make_job(Worker=make_spec(), PS=make_spec(2))
    assert not is_standalone(job)
    members = build_topology(job, HERE).members
    assert [member.name for member in members] == [
        "digits-scheduler-0",
        "digits-ps-0",
        "digits-ps-1",
        "digits-worker-0",
    ]
    assert [member.environment["MS_ROLE"] for member in members] == [
        "MS_SCHED",
        "MS_PSERVER",
        "MS_PSERVER",
        "MS_WORKER",
    ]
    assert {member.environment["MS_SERVER_NUM"] for member in members} == {"2"}
    assert [member.environment["MS_NODE_ID"] for member in members] == ["scheduler-0", "ps-0", "ps-1", "0"]


def test_only_scheduler_binds_another_address() -> None:
    members = build_topology(make_job(Worker=make_spec(2)), Endpoints("10.0.0.7", 4321, bind_host="10.9.9.9")).members
    assert [member.environment["MS_SCHED_HOST"] for member in members] == ["10.9.9.9", "10.0.0.7", "10.0.0.7"]


@pytest.mark.parametrize(
    ("specs", "port"),
    [
        ({"Worker": make_spec(2)}, 2222),
        ({"Worker": make_spec(2, port=3333)}, 3333),
        ({"Worker": make_spec(2, port=3333), "Scheduler": make_spec(port=4444)}, 4444),
        ({"Worker": make_spec(2, port=3333), "Scheduler": make_spec()}, 2222),
    ],
)
def test_port_on_cluster(specs: dict[str, ReplicaSpec], port: int) -> None:
    assert get_scheduler_port(make_job(**specs)) == port


@pytest.mark.parametrize(
    ("kind", "index", "role"), [("Worker", 0, "master"), ("Worker", 1, None), ("Scheduler", 0, None), ("PS", 0, None)]
)
def test_labels(kind: str, index: int, role: str | None) -> None:
    expected = {
        "training.kubeflow.org/operator-name": "msjob-controller",
        "training.kubeflow.org/job-name": "digits",
        "training.kubeflow.org/replica-type": kind.lower(),
        "training.kubeflow.org/replica-index": str(index),
    }
    if role:
        expected["training.kubeflow.org/job-role"] = role
    assert make_labels("digits", kind, index) == expected


@settings(deadline=None)
@given(workers=st.integers(1, 20), servers=st.integers(0, 4), has_scheduler=st.booleans())
def test_every_layout(workers: int, servers: int, has_scheduler: bool) -> None:
    specs = {"Worker": make_spec(workers)}
    if servers:
        specs["PS"] = make_spec(servers)
    if has_scheduler:
        specs["Scheduler"] = make_spec()
    job = make_job(**specs)
    before = job.to_dict()
    members = build_topology(job, HERE).members
    assert job.to_dict() == before, "laying a job out does not change it"
    standalone = workers == 1 and not servers
    assert len(members) == (1 if standalone else 1 + servers + workers)
    assert len({member.name for member in members}) == len(members)
    ranked = [member for member in members if member.replica_type == "Worker"]
    assert [member.index for member in ranked] == list(range(workers))
    for member in members:
        assert set(member.environment) <= {*VARIABLES, *TOPOLOGY_DEFAULTS}
        assert member.labels == make_labels("digits", member.replica_type, member.index)
    if not standalone:
        assert len({member.environment["MS_NODE_ID"] for member in members}) == len(members)
        assert [int(member.environment["MS_NODE_ID"]) for member in ranked] == list(range(workers))


def test_members_of_longest_name_are_dns_labels() -> None:
    members = build_topology(build_msjob("a" * 51, command=["x"], workers=10), HERE).members
    assert max(len(member.name) for member in members) == 63
