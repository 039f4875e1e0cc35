"""Elastic jobs: the gang shrinks when members get no node, and grows when probes get one."""

from __future__ import annotations

import pytest

from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.actions import RequeueAt
from kfp_mindspore.operator.decisions.elastic import build_probe
from kfp_mindspore.operator.decisions.pods import list_members
from kfp_mindspore.operator.options import OperatorOptions
from tests.support.kube.simulated_cluster import Cluster, make_job

GRACE = 30


def make_cluster(workers: int = 4, *, options: OperatorOptions | None = None, **policy: int) -> Cluster:
    job = make_job(workers)
    job["spec"]["elasticPolicy"] = {"minReplicas": 2, **policy}
    return Cluster(job, options)


def start_without(cluster: Cluster, *unscheduled: str) -> Cluster:
    """Let the gang start but for these members, which get no node for longer than the grace time."""
    cluster.settle()
    for name in list(cluster.pods):
        if name.removeprefix("digits-") in unscheduled:
            cluster.set_scheduled(name, False)
        else:
            cluster.run_pod(name)
    cluster.settle()
    cluster.wait(GRACE)
    cluster.settle()
    return cluster


def list_workers(cluster: Cluster) -> list[str]:
    return sorted(name for name in cluster.pods if name.startswith("digits-worker"))


def list_probes(cluster: Cluster) -> list[str]:
    return sorted(name for name in cluster.pods if "probe" in name)


@pytest.mark.parametrize(
    ("unscheduled", "workers"),
    [
        (["worker-3"], 3),
        (["worker-1"], 3),
        (["worker-1", "worker-2"], 2),
        # The scheduler gets the node of a worker.
        (["scheduler-0"], 3),
        # Fewer than minReplicas: the gang waits.
        (["worker-1", "worker-2", "worker-3"], 4),
        (["scheduler-0", "worker-2", "worker-3"], 4),
    ],
)
def test_members_without_node_shrink_gang_after_grace_time(unscheduled: list[str], workers: int) -> None:
    cluster = start_without(make_cluster(), *unscheduled)
    if workers == 4:
        assert not cluster.has("Restarting")
        assert cluster.status["waiting"].endswith("Unschedulable: Insufficient cpu")
        return
    condition = cluster.get_condition("Restarting")
    assert (condition["status"], condition["reason"]) == ("True", "JobScaledDown")
    names = ", ".join(f"digits-{name}" for name in unscheduled)
    assert condition["message"] == (
        f"{names} got no node within 30 s: the gang of 4 workers starts again with {workers}"
    )
    cluster.run_pods()
    cluster.start()
    assert list_workers(cluster) == [f"digits-worker-{index}" for index in range(workers)]
    assert cluster.has("Running")
    assert (cluster.status["targetWorkers"], cluster.status["workers"]) == (workers, f"{workers}/4")
    assert (cluster.status["restarts"], cluster.status["attempt"]) == (0, 1)
    env = {item["name"]: item.get("value") for item in cluster.pods["digits-worker-0"]["spec"]["containers"][0]["env"]}
    assert (env["MS_WORKER_NUM"], env["KFP_MINDSPORE_REQUESTED_WORKERS"]) == (str(workers), "4")


def test_nothing_changes_before_grace_time() -> None:
    cluster = make_cluster()
    cluster.settle()
    cluster.set_scheduled("digits-worker-3", False)
    outcome = cluster.reconcile()
    due = [action.time for action in outcome.actions if isinstance(action, RequeueAt)]
    assert [(time - cluster.now).total_seconds() for time in due] == [GRACE]
    assert not cluster.has("Restarting")


def test_slow_image_is_no_missing_worker() -> None:
    cluster = make_cluster()
    cluster.settle()
    cluster.set_scheduled("digits-worker-3", True)
    cluster.wait(10 * GRACE)
    cluster.settle()
    assert not cluster.has("Restarting")


def test_jobs_without_elastic_policy_wait() -> None:
    cluster = start_without(Cluster(make_job(4)), "worker-3")
    assert not cluster.has("Restarting")


def test_failures_of_smaller_gang_restart_it_as_small() -> None:
    cluster = start_without(make_cluster(maxRestarts=1, minReplicas=1), "worker-1", "worker-2", "worker-3")
    cluster.run_pods()
    cluster.start()
    # One worker needs no scheduler.
    assert sorted(cluster.pods) == ["digits-worker-0"]
    cluster.exit("digits-worker-0", 1)
    cluster.settle()
    assert cluster.get_condition("Restarting")["message"].endswith("restart 1 of 1")
    cluster.run_pods()
    cluster.start()
    assert sorted(cluster.pods) == ["digits-worker-0"]
    cluster.exit("digits-worker-0", 1)
    cluster.settle()
    assert cluster.get_condition("Failed")["reason"] == "BackoffLimitExceeded"


def grow(cluster: Cluster) -> None:
    """Bring a smaller gang to the time of its probes."""
    cluster.run_pods()
    cluster.start()
    assert list_probes(cluster) == []
    cluster.wait(10 * GRACE)
    cluster.settle()


def test_probes_that_all_get_node_grow_gang_at_once() -> None:
    cluster = start_without(make_cluster(), "worker-2", "worker-3")
    grow(cluster)
    assert list_probes(cluster) == ["digits-probe-worker-2", "digits-probe-worker-3"]
    for name in list_probes(cluster):
        cluster.set_scheduled(name, True)
    # One pass: the operator's own deletions are no events that another one would follow.
    cluster.reconcile()
    condition = cluster.get_condition("Restarting")
    assert condition["reason"] == "JobScaledUp"
    assert condition["message"] == "there are nodes for 2 more: the gang of 2 workers starts again with 4"
    # SIGTERM with the template's own grace period: fit writes a checkpoint.
    assert all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods.values())
    cluster.run_pods()
    cluster.start()
    assert len(list_workers(cluster)) == 4
    assert list_probes(cluster) == []
    assert "targetWorkers" not in cluster.status
    assert cluster.status["restarts"] == 0


def test_probe_without_node_is_waited_for_grace_time() -> None:
    cluster = start_without(make_cluster(), "worker-2", "worker-3")
    grow(cluster)
    cluster.set_scheduled("digits-probe-worker-3", True)
    cluster.set_scheduled("digits-probe-worker-2", False)
    cluster.settle()
    assert cluster.has("Running")
    cluster.wait(GRACE)
    cluster.settle()
    assert cluster.has("Restarting")
    cluster.run_pods()
    cluster.start()
    assert len(list_workers(cluster)) == 3
    assert cluster.status["targetWorkers"] == 3


def test_one_worker_grows_only_with_node_for_scheduler() -> None:
    cluster = start_without(make_cluster(2, minReplicas=1), "worker-1")
    grow(cluster)
    assert sorted(cluster.pods) == ["digits-probe-scheduler-0", "digits-probe-worker-1", "digits-worker-0"]
    cluster.set_scheduled("digits-probe-worker-1", True)
    cluster.set_scheduled("digits-probe-scheduler-0", False)
    cluster.wait(10 * GRACE)
    cluster.settle()
    assert cluster.has("Running")
    cluster.set_scheduled("digits-probe-scheduler-0", True)
    cluster.settle()
    cluster.run_pods()
    cluster.start()
    assert sorted(cluster.pods) == ["digits-scheduler-0", "digits-worker-0", "digits-worker-1"]


def test_probes_end_with_job() -> None:
    job = make_cluster()
    assert job.job is not None
    job.job["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
    cluster = start_without(job, "worker-3")
    grow(cluster)
    cluster.exit("digits-worker-0", 0)
    cluster.settle()
    assert cluster.has("Succeeded")
    deleted = [name for name, pod in cluster.pods.items() if "deletionTimestamp" in pod["metadata"]]
    assert deleted == ["digits-probe-worker-3"]


@pytest.mark.parametrize(("workers", "expected"), [(2, 2), (3, 3), (6, 6)])
def test_new_number_of_replicas_restarts_gang(workers: int, expected: int) -> None:
    cluster = make_cluster().start()
    cluster.change_spec(workers=workers)
    cluster.settle()
    cluster.run_pods()
    cluster.start()
    assert len(list_workers(cluster)) == expected


def test_probe_has_constraints_of_worker_and_does_nothing() -> None:
    options = OperatorOptions(gang_scheduler="volcano")
    document = make_job(2)
    spec = document["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]
    spec |= {"nodeSelector": {"npu": "910"}, "initContainers": [{"name": "fetch", "image": "x"}]}
    spec["volumes"] = [{"name": "data", "emptyDir": {}}]
    spec["containers"][0] |= {
        "resources": {"limits": {"huawei.com/Ascend910": "1"}},
        "env": [{"name": "A", "value": "1"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "livenessProbe": {"exec": {"command": ["false"]}},
    }
    document["spec"]["topologyKey"] = "zone"
    job = MSJob.from_dict(document)
    scheduler, *_, worker = list_members(job, "10.96.0.7", 2222)
    probe = build_probe(job, worker, attempt=3, restarts=0, options=options)
    metadata, spec = probe["metadata"], probe["spec"]
    assert metadata["name"] == "digits-probe-worker-1"
    assert metadata["labels"]["training.kubeflow.org/replica-type"] == "probe"
    assert metadata["labels"]["training.kubeflow.org/attempt"] == "3"
    assert (spec["nodeSelector"], spec["schedulerName"], spec["restartPolicy"]) == ({"npu": "910"}, "volcano", "Never")
    assert spec["affinity"]["podAffinity"]
    assert "initContainers" not in spec
    (container,) = spec["containers"]
    assert set(container) == {"name", "image", "resources", "command", "securityContext"}
    assert container["command"] == ["true"]
    probe = build_probe(job, scheduler, attempt=3, restarts=0, options=options)
    assert probe["metadata"]["name"] == "digits-probe-scheduler-0"
    # A scheduler with the workers' template needs no devices.
    assert probe["spec"]["containers"][0]["resources"] == {"limits": {}}


@pytest.mark.parametrize(("policy", "minimum"), [({}, 3), ({"minReplicas": 4}, 5), ({"minReplicas": 1}, 2)])
def test_gang_scheduler_admits_minimum(policy: dict[str, int], minimum: int) -> None:
    cluster = make_cluster(options=OperatorOptions(gang_scheduler="scheduler-plugins"), **policy)
    cluster.settle()
    assert cluster.pod_group is not None
    assert cluster.pod_group["spec"]["minMember"] == minimum
