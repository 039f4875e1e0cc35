"""Jobs with a queue: they have pods only while Kueue admits them."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.msjob.api.kueue import RESOURCE_FLAVORS
from kfp_mindspore.operator.options import OperatorOptions
from tests.support.kube.simulated_cluster import Cluster, make_job
from tests.support.kube.simulated_kueue import QUEUE_LABEL, KueueCluster, explain_missing

ALL = ["digits-scheduler-0", "digits-worker-0", "digits-worker-1"]
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


def make_template(job: dict[str, Any]) -> dict[str, Any]:
    template: dict[str, Any] = job["spec"]["msReplicaSpecs"]["Worker"]["template"]
    return template


def make_queued(workers: int = 2, **policy: Any) -> KueueCluster:
    cluster = KueueCluster(make_job(workers, **policy))
    cluster.settle()
    return cluster


def make_running(workers: int = 2, **policy: Any) -> KueueCluster:
    cluster = make_queued(workers, **policy)
    cluster.admit()
    cluster.start()
    assert cluster.has("Running")
    return cluster


def make_elastic(minimum: int = 1, workers: int = 4) -> KueueCluster:
    job = make_job(workers)
    job["spec"]["elasticPolicy"] = {"minReplicas": minimum, "graceSeconds": 30}
    cluster = KueueCluster(job)
    cluster.settle()
    return cluster


def finish_pods(cluster: KueueCluster) -> None:
    """End terminating pods, without starting others."""
    for name, pod in list(cluster.pods.items()):
        if pod["metadata"].get("deletionTimestamp"):
            cluster.vanish(name)


def test_workload_has_pod_sets_of_gang() -> None:
    job = make_job(2)
    resources = {"requests": {"cpu": "2"}, "limits": {"huawei.com/Ascend910": 8}}
    make_template(job)["spec"]["containers"][0]["resources"] = resources
    cluster = KueueCluster(job)
    cluster.settle()
    assert cluster.workload is not None
    metadata, spec = cluster.workload["metadata"], cluster.workload["spec"]
    assert metadata["name"] == "msjob-digits"
    assert [(item["kind"], item["uid"], item["controller"]) for item in metadata["ownerReferences"]] == [
        ("MSJob", "job-uid", True)
    ]
    assert spec["queueName"] == "team"
    assert [(item["name"], item["count"]) for item in spec["podSets"]] == [("scheduler", 1), ("worker", 2)]
    scheduler, worker = (item["template"]["spec"]["containers"][0] for item in spec["podSets"])
    assert worker["resources"] == resources
    assert "huawei.com/Ascend910" not in scheduler["resources"].get("limits", {}), "a scheduler has no device"
    assert "env" not in worker


def test_no_object_is_created_before_admission() -> None:
    cluster = make_queued()
    assert (cluster.pods, cluster.services) == ({}, {})
    assert cluster.status["waitingReason"] == "Queued"
    cluster.admit()
    cluster.start()
    assert sorted(cluster.pods) == ALL
    assert cluster.has("Running")
    assert "waiting" not in cluster.status


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Inadmissible", "LocalQueue team doesn't exist"),
        ("Inadmissible", "ClusterQueue all is inactive"),
        ("Pending", "couldn't assign flavors to pod set worker: insufficient quota for cpu in flavor x, 9 > 1"),
    ],
)
def test_kueues_message_is_shown(reason: str, message: str) -> None:
    cluster = make_queued()
    cluster.set_workload_condition("QuotaReserved", False, reason, message)
    cluster.settle()
    assert cluster.status["waiting"] == f'queue "team": {message}'


def test_pending_admission_checks_are_shown() -> None:
    cluster = make_queued()
    assert cluster.workload is not None
    check = {"name": "provision", "state": "Pending", "message": "no node yet"}
    cluster.workload["status"] = {"admissionChecks": [check], "admission": {"podSetAssignments": []}}
    cluster.set_workload_condition("QuotaReserved", True, "QuotaReserved", "Quota reserved")
    cluster.settle()
    assert cluster.status["waiting"] == 'queue "team": quota is reserved; admission checks: provision: no node yet'
    assert cluster.pods == {}


def test_flavors_and_admission_checks_choose_nodes() -> None:
    cluster = make_queued()
    toleration = {"key": "npu", "operator": "Exists", "effect": "NoSchedule"}
    flavor = {"spec": {"nodeLabels": {"npu": "910b"}, "tolerations": [toleration]}}
    cluster.cluster_wide["ResourceFlavor", "ascend"] = flavor
    update = {"name": "worker", "nodeSelector": {"rack": "7"}, "annotations": {"request": "a"}, "labels": {"b": "c"}}
    cluster.admit(flavor="ascend", updates=[update])
    cluster.settle()
    scheduler, worker, _ = (cluster.pods[name] for name in ALL)
    assert scheduler["spec"]["nodeSelector"] == {"npu": "910b"}
    assert worker["spec"]["nodeSelector"] == {"npu": "910b", "rack": "7"}
    assert worker["spec"]["tolerations"].count(toleration) == 1
    assert worker["metadata"]["annotations"]["request"] == "a"
    assert worker["metadata"]["labels"] | {"b": "c", "kueue.x-k8s.io/podset": "worker"} == worker["metadata"]["labels"]


def test_missing_flavor_is_named_and_waited_for() -> None:
    cluster = make_queued()
    cluster.admit(flavor="ascend")
    cluster.settle()
    assert cluster.pods == {}
    assert cluster.status["waiting"] == f'queue "team": {explain_missing(RESOURCE_FLAVORS, "ascend")}'
    cluster.cluster_wide["ResourceFlavor", "ascend"] = {"spec": {"nodeLabels": {"npu": "910b"}}}
    cluster.settle()
    assert sorted(cluster.pods) == ALL


def test_running_gang_needs_no_flavor() -> None:
    cluster = make_queued()
    cluster.cluster_wide["ResourceFlavor", "ascend"] = {"spec": {}}
    cluster.admit(flavor="ascend")
    cluster.start()
    cluster.cluster_wide.clear()
    cluster.settle()
    assert cluster.has("Running")
    assert "waiting" not in cluster.status


def test_contradictory_admission_check_fails_job() -> None:
    job = make_job(2)
    make_template(job)["spec"]["nodeSelector"] = {"rack": "1"}
    cluster = KueueCluster(job)
    cluster.settle()
    cluster.admit(updates=[{"name": "worker", "nodeSelector": {"rack": "7"}}])
    cluster.settle()
    failed = cluster.get_condition("Failed")
    assert failed["reason"] == "PodsRefused"
    assert "Kueue sets nodeSelector rack=7 for pod set worker, whose pods have 1" in failed["message"]
    assert cluster.describe_workload()["Finished"] == "True Failed"


@pytest.mark.parametrize(
    ("reason", "requeued"),
    [
        ("Preempted", "True"),
        ("NodeFailures", "True"),
        ("PodsReadyTimeout", "False"),
        ("ClusterQueueStopped", "False"),
        ("Deactivated", "False"),
    ],
)
def test_evicted_gang_saves_and_is_queued_again(reason: str, requeued: str) -> None:
    cluster = make_running()
    cluster.wait(90)
    cluster.evict(reason, "evicted by Kueue")
    cluster.settle()
    assert all(pod["metadata"]["deletionTimestamp"] for pod in cluster.pods.values())
    assert len(cluster.pods) == 3
    assert cluster.describe_workload()["QuotaReserved"] == "True QuotaReserved", "the quota is still in use"
    assert cluster.get_condition("Suspended")["reason"] == "JobQueued"
    assert cluster.status["waiting"] == 'queue "team": evicted by Kueue'
    finish_pods(cluster)
    cluster.settle()
    assert cluster.workload is not None
    assert "admission" not in cluster.workload["status"]
    assert cluster.workload["status"]["accumulatedPastExecutionTimeSeconds"] == 90
    assert cluster.describe_workload() == {
        "Evicted": f"True {reason}",
        "Requeued": f"{requeued} {reason}",
        "QuotaReserved": "False Pending",
        "Admitted": "False NoReservation",
        "PodsReady": "False WaitForStart",
    }
    assert cluster.pods == {}
    cluster.admit()
    cluster.start()
    assert cluster.has("Running")
    assert (cluster.status["restarts"], cluster.status["attempt"]) == (0, 1)
    assert "waiting" not in cluster.status
    assert cluster.describe_workload()["PodsReady"] == "True Started"


def test_operator_crash_during_eviction_changes_nothing() -> None:
    """After each number of actions, a new process brings the gang to the same end."""
    for first in range(6):
        cluster = make_running()
        cluster.evict()
        cluster.apply(cluster.decide(), cluster.version, first=first)
        cluster.settle()
        finish_pods(cluster)
        cluster.settle()
        cluster.admit()
        cluster.start()
        assert (cluster.has("Running"), cluster.status["restarts"], cluster.status["attempt"]) == (True, 0, 1)


def test_gang_that_has_succeeded_is_not_queued_again() -> None:
    cluster = make_running()
    cluster.exit("digits-worker-0", 0)
    cluster.evict()
    cluster.settle()
    assert cluster.has("Succeeded")
    assert cluster.describe_workload()["Finished"] == "True Succeeded"


def test_deactivated_workload_is_reported() -> None:
    cluster = make_running()
    cluster.evict("Deactivated", "The workload is deactivated by an admin")
    cluster.settle()
    finish_pods(cluster)
    assert cluster.workload is not None
    cluster.workload["spec"]["active"] = False
    cluster.settle()
    assert cluster.status["waiting"] == (
        'queue "team": the Workload is deactivated (The workload is deactivated by an admin)'
    )


@pytest.mark.parametrize(("code", "state"), [(0, "Succeeded"), (1, "Failed")])
def test_finished_job_frees_quota(code: int, state: str) -> None:
    cluster = make_running(backoffLimit=0)
    cluster.exit("digits-worker-0", code)
    cluster.settle()
    assert cluster.has(state)
    assert cluster.describe_workload()["Finished"] == f"True {state}"


def test_ready_pods_are_reported() -> None:
    cluster = make_queued()
    cluster.admit()
    cluster.settle()
    assert cluster.describe_workload()["PodsReady"] == "False WaitForStart"
    cluster.start()
    assert cluster.describe_workload()["PodsReady"] == "True Started"
    cluster.exit("digits-worker-1", 1)
    cluster.settle()
    assert cluster.describe_workload()["PodsReady"] == "False WaitForRecovery"
    cluster.wait(60)
    for _ in range(3):
        cluster.run_pods()
        cluster.settle()
    assert cluster.has("Running")
    assert cluster.describe_workload()["PodsReady"] == "True Recovered"
    assert cluster.status["restarts"] == 1


def test_suspended_job_holds_no_quota_once_its_pods_have_ended() -> None:
    cluster = make_running()
    cluster.change_spec(suspend=True)
    cluster.settle()
    assert cluster.workload is not None
    finish_pods(cluster)
    cluster.settle()
    assert cluster.workload is None
    assert cluster.get_condition("Suspended")["reason"] == "JobSuspended"
    cluster.change_spec(suspend=False)
    cluster.settle()
    assert cluster.pods == {}
    assert cluster.status["waitingReason"] == "Queued"
    cluster.admit()
    cluster.start()
    assert cluster.has("Running")
    assert cluster.status["restarts"] == 0


def test_deleted_workload_stops_gang_and_is_created_again() -> None:
    cluster = make_running()
    cluster.workload = None
    cluster.settle()
    assert all(pod["metadata"]["deletionTimestamp"] for pod in cluster.pods.values())
    assert cluster.workload is None, "its pods still use the nodes"
    finish_pods(cluster)
    cluster.settle()
    assert cluster.workload is not None
    cluster.admit()
    cluster.start()
    assert cluster.has("Running")
    assert cluster.status["restarts"] == 0


def test_deleted_workload_of_pending_job_is_created_again() -> None:
    cluster = make_queued()
    cluster.workload = None
    cluster.settle()
    assert cluster.workload is not None


def test_changed_size_is_queued_again() -> None:
    cluster = make_running()
    cluster.change_spec(workers=3)
    cluster.settle()
    finish_pods(cluster)
    cluster.settle()
    assert cluster.workload is not None
    assert cluster.workload["spec"]["podSets"][1]["count"] == 3
    assert cluster.pods == {}
    cluster.admit()
    cluster.start()
    assert len(cluster.pods) == 4


def test_queue_may_change_until_quota_is_reserved() -> None:
    cluster = make_queued()
    cluster.set_label(QUEUE_LABEL, "other")
    cluster.settle()
    assert cluster.workload is not None
    assert cluster.workload["spec"]["queueName"] == "other"
    cluster.admit()
    cluster.start()
    cluster.set_label(QUEUE_LABEL, "third")
    cluster.settle()
    assert cluster.has("Running")
    assert cluster.workload["spec"]["queueName"] == "other"
    cluster.evict()
    cluster.settle()
    finish_pods(cluster)
    cluster.settle()
    assert cluster.workload["spec"]["queueName"] == "third"


def test_job_without_label_needs_no_workload() -> None:
    cluster = KueueCluster(make_job(2), queue="")
    cluster.start()
    assert cluster.workload is None
    assert cluster.has("Running")


def test_removed_label_releases_job() -> None:
    cluster = make_queued()
    cluster.set_label(QUEUE_LABEL, None)
    cluster.start()
    assert cluster.workload is None
    assert cluster.has("Running")


def test_job_with_queue_waits_for_operator_with_kueue() -> None:
    cluster = KueueCluster(make_job(2), options=OperatorOptions())
    cluster.settle()
    assert (cluster.pods, cluster.workload) == ({}, None)
    assert cluster.status["waitingReason"] == "QueueIgnored"
    assert "kfp-mindspore operator install --kueue" in cluster.status["waiting"]
    assert [event.reason for event in cluster.events] == ["JobCreated", "Waiting"]


def test_operator_without_kueue_does_not_stop_running_gang() -> None:
    cluster = make_running()
    cluster.options = OperatorOptions()
    cluster.settle()
    assert sorted(cluster.pods) == ALL


@pytest.mark.parametrize(("owner", "reason"), [("", "NameTaken"), ("somebody", "NameTerminating")])
def test_workload_of_another_owner_is_reported(owner: str, reason: str) -> None:
    cluster = KueueCluster(make_job(2))
    references = [{"uid": owner, "controller": True}] if owner else []
    cluster.workload = {"metadata": {"name": "msjob-digits", "uid": "x", "ownerReferences": references}}
    cluster.settle()
    assert cluster.status["waitingReason"] == reason
    assert cluster.status["waiting"].startswith("Workload msjob-digits: exists and ")
    assert cluster.pods == {}


@pytest.mark.parametrize(
    ("label", "template", "kind", "group"),
    [
        ("urgent", "", "WorkloadPriorityClass", "kueue.x-k8s.io"),
        ("", "urgent", "PriorityClass", "scheduling.k8s.io"),
        ("urgent", "other", "WorkloadPriorityClass", "kueue.x-k8s.io"),
    ],
)
def test_priority_class(label: str, template: str, kind: str, group: str) -> None:
    job = make_job(2)
    if template:
        make_template(job)["spec"]["priorityClassName"] = template
    cluster = KueueCluster(job)
    if label:
        cluster.set_label(PRIORITY_LABEL, label)
    cluster.settle()
    assert cluster.workload is None
    assert cluster.status["waiting"].startswith('queue "team": cannot get ')
    assert cluster.status["waiting"].endswith(f'classes.{group} "urgent" not found')
    cluster.cluster_wide[kind, "urgent"] = {"value": 1000}
    cluster.settle()
    assert cluster.workload is not None
    spec = cluster.workload["spec"]
    assert spec["priorityClassRef"] == {"group": group, "kind": kind, "name": "urgent"}
    assert spec["priority"] == 1000
    del spec["priorityClassRef"]
    cluster.settle()
    assert cluster.workload["spec"] is spec, "the stored version of Kueue's API may have no such field"


@pytest.mark.parametrize("name", ["podset-required-topology", "podset-preferred-topology", "podset-slice-size"])
def test_topology_annotations_are_refused(name: str) -> None:
    job = make_job(2)
    make_template(job)["metadata"] = {"annotations": {f"kueue.x-k8s.io/{name}": "rack"}}
    cluster = KueueCluster(job)
    cluster.settle()
    failed = cluster.get_condition("Failed")
    assert failed["reason"] == "InvalidSpec"
    assert f"kueue.x-k8s.io/{name} is not supported; use spec.topologyKey" in failed["message"]


def test_elastic_job_starts_with_admitted_count() -> None:
    cluster = make_elastic()
    assert cluster.workload is not None
    assert cluster.workload["spec"]["podSets"][1].items() >= {"count": 4, "minCount": 1}.items()
    cluster.admit(workers=2)
    cluster.start()
    assert sorted(cluster.pods) == ALL
    assert cluster.status["targetWorkers"] == 2
    cluster.wait(3600)
    cluster.settle()
    assert sorted(cluster.pods) == ALL, "a probe would use more than the quota"
    cluster.evict()
    cluster.settle()
    finish_pods(cluster)
    cluster.settle()
    assert "targetWorkers" not in cluster.status
    cluster.admit(workers=4)
    cluster.start()
    assert len(cluster.pods) == 5
    assert cluster.status["restarts"] == 0


def test_elastic_job_grows_back_within_quota() -> None:
    cluster = make_elastic()
    cluster.admit(workers=3)
    cluster.settle()
    for name in list(cluster.pods):
        cluster.run_pod(name) if name != "digits-worker-2" else cluster.set_scheduled(name, False)
    cluster.wait(31)
    for _ in range(3):
        cluster.settle()
        cluster.run_pods()
    cluster.settle()
    assert cluster.status["targetWorkers"] == 2
    assert cluster.workload is not None
    assert "reclaimablePods" not in cluster.workload["status"]
    cluster.wait(301)
    cluster.settle()
    assert [name for name in cluster.pods if "probe" in name] == ["digits-probe-worker-2"]


def test_queued_job_has_no_spares() -> None:
    job = make_job(2)
    job["spec"]["warmSpares"] = 1
    cluster = KueueCluster(job)
    cluster.settle()
    cluster.admit()
    cluster.start()
    assert cluster.status["warmSpares"] == "0/1; a queue admits only the members of a gang"


def test_plain_cluster_needs_no_kueue() -> None:
    cluster = Cluster(make_job(2), OperatorOptions(kueue=True))
    cluster.start()
    assert cluster.has("Running")


def test_changed_requests_are_queued_again_but_other_changes_are_not() -> None:
    cluster = make_running()
    assert cluster.job is not None
    container = make_template(cluster.job)["spec"]["containers"][0]
    container["image"] = "train:2"
    cluster.change_spec()
    cluster.settle()
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in cluster.pods.values())
    container["resources"] = {"requests": {"cpu": "8"}}
    cluster.change_spec()
    cluster.settle()
    assert all(pod["metadata"].get("deletionTimestamp") for pod in cluster.pods.values())
