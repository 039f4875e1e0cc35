"""Situations, and what is decided in each."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from kfp_mindspore.msjob.api.names import ATTEMPT_LABEL, LEASE_ANNOTATION, MSJOBS
from kfp_mindspore.msjob.api.status import TrainingProgress
from kfp_mindspore.operator.decisions.actions import Create, Delete, EmitEvent, RequeueAt
from kfp_mindspore.operator.decisions.observed import EndpointSliceView, Observed, PodView, Refusal, ServiceView
from kfp_mindspore.operator.decisions.reconcile import Outcome, reconcile
from kfp_mindspore.operator.options import OperatorOptions
from tests.support.kube.simulated_cluster import START, Cluster, make_job, significant

MEMBERS = {"digits-scheduler-0", "digits-worker-0", "digits-worker-1"}
SERVICE_DELETED = ["delete EndpointSlice digits-scheduler-0", "delete Service digits-scheduler-0"]


def list_actions(cluster: Cluster) -> list[str]:
    """Reconcile, and return the creations and deletions in short."""
    words = []
    for action in cluster.reconcile().actions:
        if isinstance(action, Create):
            words.append(f"create {action.resource.kind} {action.name}")
        elif isinstance(action, Delete):
            grace = "" if action.grace_seconds is None else f" {action.grace_seconds} s"
            words.append(f"delete {action.resource.kind} {action.name}{grace}")
    return sorted(words)


def reasons(cluster: Cluster) -> list[str]:
    return [event.reason for event in cluster.events]


def test_job_runs_after_at_most_three_status_writes() -> None:
    cluster = Cluster(make_job(2))
    assert list_actions(cluster) == ["create Service digits-scheduler-0"]
    assert cluster.has("Created")
    assert cluster.status["startTime"] == "2026-01-31T12:00:00Z"
    assert list_actions(cluster) == [f"create Pod {name}" for name in sorted(MEMBERS)]
    for name in sorted(MEMBERS):
        assert not cluster.has("Running")
        assert list_actions(cluster) == []
        cluster.pods[name]["status"]["phase"] = "Running"
    assert list_actions(cluster) == []
    assert cluster.has("Running")
    assert cluster.status["state"] == "Running"
    assert cluster.status["workers"] == "2/2"
    assert cluster.status["replicaStatuses"]["Scheduler"]["active"] == 1
    worker = cluster.status["replicaStatuses"]["Worker"]
    assert worker["selector"] == "training.kubeflow.org/job-name=digits,training.kubeflow.org/replica-type=worker"
    assert cluster.status_writes <= 3
    assert reasons(cluster) == ["JobCreated", "JobRunning"]


def test_single_worker_needs_no_service() -> None:
    cluster = Cluster(make_job(1))
    assert list_actions(cluster) == ["create Pod digits-worker-0"]


def test_pods_wait_for_service_address() -> None:
    job = make_job(2)
    service = ServiceView("digits-scheduler-0", "s", "job-uid", port=2222)
    outcome = reconcile(Observed(job, services=(service,)), START)
    assert not [action for action in outcome.actions if not isinstance(action, EmitEvent)]


@pytest.mark.parametrize(
    ("policy", "name", "end", "condition", "reason", "restarts"),
    [
        ("OnFailure", "worker-1", (1, ""), "Restarting", "JobRestarting", 1),
        ("OnFailure", "worker-0", (137, "OOMKilled"), "Restarting", "JobRestarting", 1),
        ("OnFailure", "scheduler-0", (139, ""), "Restarting", "JobRestarting", 1),
        ("Always", "worker-0", (1, ""), "Restarting", "JobRestarting", 1),
        ("ExitCode", "worker-1", (143, ""), "Restarting", "JobRestarting", 1),
        ("ExitCode", "worker-1", (76, ""), "Restarting", "JobRestarting", 1),
        ("ExitCode", "worker-1", (1, ""), "Failed", "JobFailed", 0),
        ("Never", "worker-1", (143, ""), "Failed", "JobFailed", 0),
        ("OnFailure", "worker-0", (128, "StartError"), "Failed", "StartError", 0),
    ],
)
def test_failed_member(
    policy: str, name: str, end: tuple[int, str], condition: str, reason: str, restarts: int
) -> None:
    cluster = Cluster(make_job(2, restart_policy=policy)).start()
    failed = f"digits-{name}"
    cluster.exit(failed, end[0], reason=end[1], message="step 12\nValueError: nan")
    running = MEMBERS - {failed}
    expected = {f"delete Pod {peer} 1 s" for peer in (MEMBERS if condition == "Restarting" else running)}
    if condition == "Failed":
        expected |= set(SERVICE_DELETED)
    elif name == "scheduler-0":
        expected.add(SERVICE_DELETED[0])
    assert set(list_actions(cluster)) == expected
    assert cluster.has(condition)
    assert not cluster.has("Running")
    assert cluster.get_condition(condition)["reason"] == reason
    assert cluster.status["restarts"] == restarts
    assert cluster.status["failure"]["pod"] == failed
    assert cluster.status["failure"]["exitCode"] == end[0]
    assert reasons(cluster)[-1] == reason
    if reason != "StartError":
        assert cluster.status["failure"]["log"] == ["step 12", "ValueError: nan"]
        sentence = cluster.get_condition(condition)["message"]
        assert sentence.startswith(f"{failed} ended with exit code {end[0]}")
        assert sentence.endswith("its last line: ValueError: nan") == (end[1] != "OOMKilled")


def test_next_gang_waits_for_pods_of_previous_attempt() -> None:
    cluster = Cluster(make_job(2)).start()
    cluster.exit("digits-worker-1", 1)
    list_actions(cluster)
    for name in sorted(MEMBERS, reverse=True):
        assert list_actions(cluster) == []
        cluster.vanish(name)
    assert list_actions(cluster) == ["delete EndpointSlice digits-scheduler-0"]
    assert list_actions(cluster) == [f"create Pod {name}" for name in sorted(MEMBERS)]
    assert {pod["metadata"]["labels"][ATTEMPT_LABEL] for pod in cluster.pods.values()} == {"1"}
    cluster.run_pods()
    cluster.settle()
    assert cluster.has("Running")
    assert not cluster.has("Restarting")


def test_restart_delays_increase_up_to_backoff_limit() -> None:
    cluster = Cluster(make_job(1, backoffLimit=3)).start()
    pauses = []
    for _ in range(3):
        cluster.exit("digits-worker-0", 1)
        cluster.reconcile()
        cluster.run_pods()
        outcome = cluster.reconcile()
        times = [action.time for action in outcome.actions if isinstance(action, RequeueAt)]
        pauses.append((times[0] - cluster.now).total_seconds() if times else 0)
        cluster.wait(60)
        cluster.start()
    assert pauses == [0, 1, 2]
    cluster.exit("digits-worker-0", 1)
    cluster.settle()
    assert cluster.get_condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert cluster.status["restarts"] == 3
    assert "restarted 3 of 3 times" in cluster.get_condition("Failed")["message"]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("EvictionByEvictionAPI", "Evicted"),
        ("DeletionByTaintManager", "NodeLost"),
    ],
)
def test_disruption_restarts_uncounted_with_pods_grace_period(reason: str, word: str) -> None:
    cluster = Cluster(make_job(2, backoffLimit=0)).start()
    cluster.disrupt("digits-worker-1", reason)
    assert list_actions(cluster) == ["delete Pod digits-scheduler-0", "delete Pod digits-worker-0"]
    assert cluster.get_condition("Restarting")["reason"] == "JobDisrupted"
    assert (cluster.status["restarts"], cluster.status["attempt"]) == (0, 1)
    assert cluster.status["failure"]["reason"] == word
    cluster.run_pods()
    cluster.start()
    assert cluster.has("Running")


def test_lost_node_restarts_gang_elsewhere_uncounted() -> None:
    """Its kubelet cannot confirm the deletion: the operator removes the pod, but not one that a kubelet terminates."""
    cluster = Cluster(make_job(2, backoffLimit=0)).start()
    cluster.lose_node("digits-worker-1")
    assert list_actions(cluster) == [], "it may come back within its toleration"
    cluster.disrupt("digits-worker-1", "DeletionByTaintManager")
    cluster.settle()
    assert set(cluster.pods) == {"digits-scheduler-0", "digits-worker-0"}
    assert all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods.values())
    assert (cluster.status["restarts"], cluster.status["attempt"]) == (0, 1)
    assert cluster.status["failure"]["reason"] == "NodeLost"
    cluster.run_pods()
    cluster.start()
    assert cluster.has("Running")


def test_peers_of_lost_node_may_end_first() -> None:
    cluster = Cluster(make_job(2, backoffLimit=0)).start()
    cluster.lose_node("digits-worker-1")
    cluster.exit("digits-worker-0", 75)
    cluster.settle()
    assert cluster.get_condition("Restarting")["reason"] == "JobDisrupted"
    assert cluster.status["failure"] == {
        "pod": "digits-worker-1",
        "exitCode": 137,
        "reason": "NodeLost",
        "message": "digits-worker-1 ended with exit code 137 (its node no longer reports)",
        "log": [],
        "attempt": 0,
    }
    assert "digits-worker-1" not in cluster.pods


def test_deleted_pod_counts_as_restart() -> None:
    cluster = Cluster(make_job(2)).start()
    cluster.delete_pod("digits-scheduler-0")
    assert len(list_actions(cluster)) == 2
    assert cluster.status["restarts"] == 1
    cluster.run_pods()
    cluster.start()
    cluster.vanish("digits-worker-0")
    list_actions(cluster)
    assert cluster.status["restarts"] == 2
    assert "its pod was deleted" in cluster.get_condition("Restarting")["message"]


def test_pod_missing_before_all_ran_is_created_again() -> None:
    cluster = Cluster(make_job(2))
    cluster.settle()
    cluster.vanish("digits-worker-1")
    assert list_actions(cluster) == ["create Pod digits-worker-1"]
    assert cluster.status["attempt"] == 0


def test_out_of_memory_names_limit_and_not_last_line() -> None:
    job = make_job(1, restart_policy="Never")
    template = job["spec"]["msReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "300Mi"}}
    cluster = Cluster(job).start()
    cluster.exit("digits-worker-0", 137, reason="OOMKilled", message="epoch 1/2")
    list_actions(cluster)
    (event,) = (event for event in cluster.events if event.reason == "JobFailed")
    assert event.message == "digits-worker-0 ended with exit code 137 (OOMKilled); its memory limit is 300Mi"


@pytest.mark.parametrize(
    ("code", "reason"), [(137, "OOMKilled"), (1, "Error"), (76, "Error"), (143, "Evicted"), (128, "StartError")]
)
def test_exit_of_peer_is_never_first_failure(code: int, reason: str) -> None:
    cluster = Cluster(make_job(3, restart_policy="ExitCode")).start()
    cluster.exit("digits-worker-0", 75)
    cluster.exit("digits-worker-2", code, reason=reason, at=cluster.now + datetime.timedelta(seconds=2))
    cluster.settle()
    failure = cluster.status["failure"]
    assert (failure["pod"], failure["exitCode"], failure["reason"]) == ("digits-worker-2", code, reason)
    assert cluster.get_condition("Failed" if reason == "StartError" or code == 1 else "Restarting")


def test_gang_restarts_when_lost_member_does_not_report() -> None:
    cluster = Cluster(make_job(2, restart_policy="ExitCode")).start()
    cluster.exit("digits-worker-0", 75)
    cluster.settle()
    assert "failure" not in cluster.status
    message = "digits-worker-0 ended with exit code 75 (a peer is lost); restart 1 of 3"
    assert cluster.get_condition("Restarting")["message"] == message


def test_first_failure_decides() -> None:
    cluster = Cluster(make_job(2, restart_policy="ExitCode")).start()
    first = cluster.now
    cluster.wait(30)
    cluster.exit("digits-worker-0", 1, message="lost its peer")
    cluster.exit("digits-worker-1", 137, reason="OOMKilled", at=first)
    list_actions(cluster)
    assert cluster.has("Restarting")
    assert cluster.status["failure"]["pod"] == "digits-worker-1"
    assert cluster.status["failure"]["reason"] == "OOMKilled"


@pytest.mark.parametrize(
    ("success", "first", "then"), [("", "digits-worker-0", ""), ("AllWorkers", "digits-worker-1", "digits-worker-0")]
)
def test_success(success: str, first: str, then: str) -> None:
    cluster = Cluster(make_job(2, success_policy=success)).start()
    cluster.exit(first, 0)
    cluster.settle()
    assert cluster.has("Succeeded") is not bool(then)
    if then:
        cluster.exit(then, 0)
        cluster.settle()
    assert cluster.has("Succeeded")
    assert cluster.status["replicaStatuses"]["Worker"]["succeeded"] == 2
    assert cluster.status["completionTime"]
    assert cluster.status["workers"] == ("2/2")


@pytest.mark.parametrize(
    ("policy", "deleted", "kept"),
    [
        ("Running", [*SERVICE_DELETED, "delete Pod digits-scheduler-0", "delete Pod digits-worker-1"], 1),
        ("All", [*SERVICE_DELETED, *(f"delete Pod {name}" for name in sorted(MEMBERS))], 0),
        ("None", [], 3),
    ],
)
def test_clean_pod_policy(policy: str, deleted: list[str], kept: int) -> None:
    cluster = Cluster(make_job(2, cleanPodPolicy=policy)).start()
    cluster.exit("digits-worker-0", 0)
    assert list_actions(cluster) == sorted(deleted)
    cluster.run_pods()
    assert list_actions(cluster) == []
    assert len(cluster.pods) == kept


@pytest.mark.parametrize("policy", ["Running", "None"])
def test_endpoint_of_terminated_scheduler_is_deleted(policy: str) -> None:
    cluster = Cluster(make_job(2, cleanPodPolicy=policy)).start()
    if policy == "None":
        cluster.exit("digits-worker-0", 0)
        cluster.settle()
        assert (cluster.has("Succeeded"), len(cluster.endpoint_addresses)) == (True, 1), "the other worker may go on"
    cluster.exit("digits-scheduler-0", 0)
    assert list_actions(cluster) == ["delete EndpointSlice digits-scheduler-0"], (
        "its address may be somebody else's soon"
    )
    assert list_actions(cluster) == []
    cluster.exit("digits-worker-1", 0)
    cluster.settle()
    assert cluster.endpoint_addresses == []
    assert cluster.status["replicaStatuses"]["Scheduler"]["succeeded"] == 1
    assert cluster.status["replicaStatuses"]["Worker"]["succeeded"] == (2 if policy == "None" else 1)


def test_finished_jobs_stay_finished() -> None:
    cluster = Cluster(make_job(2)).start()
    cluster.exit("digits-worker-0", 0)
    cluster.settle()
    status, events = copy.deepcopy(cluster.status), len(cluster.events)
    cluster.change_spec(suspend=True, workers=3, activeDeadlineSeconds=1)
    cluster.wait(1000)
    cluster.run_pods()
    cluster.settle()
    assert cluster.status == status
    assert len(cluster.events) == events


def test_ttl_deletes_job_by_uid() -> None:
    cluster = Cluster(make_job(1, ttlSecondsAfterFinished=60)).start()
    cluster.exit("digits-worker-0", 0)
    outcome = cluster.reconcile()
    assert [
        (action.time - cluster.now).total_seconds() for action in outcome.actions if isinstance(action, RequeueAt)
    ] == [60]
    cluster.wait(59)
    assert not significant(cluster.reconcile())
    cluster.wait(1)
    assert Delete(MSJOBS, "digits", "job-uid") in cluster.decide().actions


def test_deadline_fires_without_events() -> None:
    cluster = Cluster(make_job(2, activeDeadlineSeconds=100)).start()
    times = [action.time for action in cluster.decide().actions if isinstance(action, RequeueAt)]
    assert [(time - START).total_seconds() for time in times] == [100]
    cluster.wait(99)
    assert list_actions(cluster) == []
    cluster.wait(1)
    assert "delete Pod digits-worker-0" in list_actions(cluster), "with its own grace: it may save"
    assert cluster.get_condition("Failed")["reason"] == "DeadlineExceeded"
    assert cluster.get_condition("Failed")["message"] == "MSJob digits ran longer than 100 s"


def test_lease_expires_without_events() -> None:
    job = make_job(2, cleanPodPolicy="None")
    job["metadata"]["annotations"] = {LEASE_ANNOTATION: "2026-01-31T12:01:00Z"}
    cluster = Cluster(job).start()
    assert [action for action in cluster.decide().actions if isinstance(action, RequeueAt)] == [
        RequeueAt(START + datetime.timedelta(seconds=60))
    ]
    cluster.wait(59)
    assert list_actions(cluster) == []
    assert cluster.job is not None
    cluster.job["metadata"]["annotations"][LEASE_ANNOTATION] = "2026-01-31T12:01:30.500000+00:00"
    cluster.wait(1)
    assert list_actions(cluster) == [], "renewed"
    cluster.wait(31)
    deleted = [*SERVICE_DELETED, *(f"delete Pod {name}" for name in MEMBERS)]
    assert list_actions(cluster) == sorted(deleted), "with their own grace periods, whatever the cleanPodPolicy"
    assert cluster.get_condition("Failed")["reason"] == "LeaseExpired"
    assert "2026-01-31T12:01:30.500000Z" in cluster.get_condition("Failed")["message"]


def test_lease_expires_after_outage_only_when_its_client_had_time_to_renew_it() -> None:
    job = make_job(1)
    job["metadata"]["annotations"] = {LEASE_ANNOTATION: "2026-01-31T12:01:00Z"}
    cluster = Cluster(job).start()
    cluster.connected_at = None
    cluster.wait(300)
    assert list_actions(cluster) == []
    cluster.connected_at = cluster.now
    cluster.wait(39)
    assert list_actions(cluster) == []
    cluster.wait(1)
    assert list_actions(cluster)
    assert cluster.get_condition("Failed")["reason"] == "LeaseExpired"


@pytest.mark.parametrize(
    ("lease", "finished", "state", "reason"),
    [
        ("2026-01-31T12:00:01Z", False, "Suspended", None),
        ("2026-01-31T12:00:00Z", False, "Failed", "LeaseExpired"),
        ("2026-01-31T12:00:00+01:00", False, "Failed", "LeaseExpired"),
        ("2020-01-31T12:00:00Z", True, "Succeeded", "JobSucceeded"),
        ("soon", False, "Suspended", "InvalidLease"),
        ("", False, "Suspended", "InvalidLease"),
        ("2020-01-31T12:00:00", False, "Suspended", "InvalidLease"),
        ("0001-01-01T00:00:00+23:00", False, "Suspended", "InvalidLease"),
    ],
)
def test_lease_of_suspended_finished_and_invalid(lease: str, finished: bool, state: str, reason: str | None) -> None:
    if finished:
        cluster = Cluster(make_job(1)).start()
        cluster.exit("digits-worker-0", 0)
        cluster.settle()
    else:
        cluster = Cluster(make_job(1, suspend=True))
    assert cluster.job is not None
    cluster.job["metadata"]["annotations"] = {LEASE_ANNOTATION: lease}
    for _ in range(3):
        cluster.reconcile()
    assert cluster.status["state"] == state
    assert reasons(cluster).count(reason or "") == (1 if reason else 0)
    assert reason is not None or "InvalidLease" not in reasons(cluster)


@pytest.mark.parametrize(("is_permanent", "state"), [(True, "Failed"), (False, "Created")])
def test_permanent_refusal_fails_job(is_permanent: bool, state: str) -> None:
    cluster = Cluster(make_job(2))
    cluster.settle()
    cluster.vanish("digits-worker-1")
    message = "cannot create pods 'digits-worker-1' in namespace team: refused"
    outcome = cluster.decide(
        dataclasses.replace(cluster.observe(), refusal=Refusal(message, "Forbidden", is_permanent))
    )
    cluster.apply(outcome, cluster.version)
    assert cluster.status["state"] == state
    assert cluster.get_condition(state)["reason"] == ("PodsRefused" if is_permanent else "JobCreated")
    assert cluster.status.get("waiting") == (None if is_permanent else message)
    assert cluster.status.get("waitingReason") == (None if is_permanent else "Forbidden")
    assert cluster.events[-1] == EmitEvent("Warning", "PodsRefused" if is_permanent else "Waiting", message)
    left = [name for name, pod in cluster.pods.items() if not pod["metadata"].get("deletionTimestamp")]
    assert len(left) == (0 if is_permanent else 3)


def test_suspend_deletes_pods_and_resume_creates_them() -> None:
    cluster = Cluster(make_job(2, activeDeadlineSeconds=100)).start()
    cluster.exit("digits-worker-1", 1)
    cluster.settle()
    cluster.run_pods()
    cluster.start()
    cluster.wait(90)
    cluster.change_spec(suspend=True)
    assert list_actions(cluster) == sorted([*SERVICE_DELETED, *(f"delete Pod {name}" for name in MEMBERS)])
    assert cluster.has("Suspended")
    assert not cluster.has("Running")
    assert "startTime" not in cluster.status
    assert cluster.status["restarts"] == 1
    cluster.wait(1000)
    cluster.change_spec(suspend=False)
    assert list_actions(cluster) == [], "the pods of before are still ending"
    assert not cluster.has("Suspended")
    cluster.run_pods()
    cluster.start()
    assert cluster.has("Running")
    assert cluster.status["startTime"] == "2026-01-31T12:18:10Z"
    assert (cluster.status["restarts"], cluster.status["attempt"]) == (1, 2)
    assert reasons(cluster)[-3:] == ["JobSuspended", "JobResumed", "JobRunning"]


def test_job_created_suspended_gets_no_pods() -> None:
    cluster = Cluster(make_job(2, suspend=True))
    assert list_actions(cluster) == []
    assert cluster.status["state"] == "Suspended"
    assert cluster.status["attempt"] == 0
    cluster.change_spec(suspend=False)
    assert cluster.start().has("Running")


def test_scaling_restarts_gang_uncounted() -> None:
    cluster = Cluster(make_job(2, backoffLimit=0)).start()
    cluster.change_spec(workers=3)
    assert len(list_actions(cluster)) == 3
    assert cluster.get_condition("Restarting")["reason"] == "JobScaled"
    cluster.run_pods()
    cluster.start()
    assert cluster.status["workers"] == "3/3"
    assert cluster.status["restarts"] == 0
    assert cluster.status["observedGeneration"] == 2


def test_service_replaced_before_all_run_restarts_gang() -> None:
    cluster = Cluster(make_job(2))
    cluster.settle()
    cluster.services.clear()
    list_actions(cluster)
    assert cluster.services["digits-scheduler-0"]["spec"]["clusterIP"] != "10.96.0.1"
    list_actions(cluster)
    assert "Service was replaced" in cluster.get_condition("Restarting")["message"]


def test_endpoint_is_created_once_scheduler_has_address() -> None:
    cluster = Cluster(make_job(2))
    cluster.settle()
    cluster.pods["digits-scheduler-0"]["status"]["podIPs"] = [{"ip": "fd00::7"}, {"ip": "10.244.1.7"}]
    assert list_actions(cluster) == ["create EndpointSlice digits-scheduler-0"], "before any process runs"
    assert cluster.endpoint_addresses == ["10.244.1.7"], "of the family of the Service's own address"
    assert list_actions(cluster) == []


def test_next_gang_waits_for_deletion_of_endpoint() -> None:
    cluster = Cluster(make_job(2)).start()
    before, late = cluster.endpoint_addresses, copy.deepcopy(cluster.endpoint_slices["digits-scheduler-0"])
    cluster.exit("digits-worker-1", 1)
    assert not any("EndpointSlice" in word for word in list_actions(cluster)), "the gang may be saving"
    cluster.vanish("digits-scheduler-0")
    assert list_actions(cluster) == ["delete EndpointSlice digits-scheduler-0"], "while its peers are still ending"
    for name in MEMBERS - {"digits-scheduler-0"}:
        cluster.vanish(name)
    cluster.endpoint_slices = {"digits-scheduler-0": late}
    assert list_actions(cluster) == ["delete EndpointSlice digits-scheduler-0"], (
        "one that came late: no pod before it is gone"
    )
    assert list_actions(cluster) == [f"create Pod {name}" for name in sorted(MEMBERS)]
    cluster.start()
    assert len(cluster.endpoint_addresses) == 1
    assert cluster.endpoint_addresses != before


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda item: item["endpoints"][0].update(addresses=["10.244.9.9"]), "another address"),
        (lambda item: item["endpoints"][0]["targetRef"].update(uid="another"), "another pod"),
        (lambda item: item.update(endpoints=[]), "nobody"),
        (lambda item: item["ports"][0].update(port=1), "another port"),
        (lambda item: item.update(ports=None), "no port"),
    ],
)
def test_stale_endpoint_is_replaced(change: Callable[[Any], None], found: str) -> None:
    cluster = Cluster(make_job(2)).start()
    before = copy.deepcopy(cluster.endpoint_slices["digits-scheduler-0"])
    change(cluster.endpoint_slices["digits-scheduler-0"])
    assert list_actions(cluster) == ["delete EndpointSlice digits-scheduler-0"], f"it leads to {found}"
    assert list_actions(cluster) == ["create EndpointSlice digits-scheduler-0"]
    after = cluster.endpoint_slices["digits-scheduler-0"]
    assert [after[key] for key in ("endpoints", "ports")] == [before[key] for key in ("endpoints", "ports")]
    assert cluster.has("Running")


@pytest.mark.parametrize(
    ("manager", "ours"), [("kueue.x-k8s.io/multikueue", False), (OperatorOptions().manager, True), ("", True)]
)
def test_managed_by(manager: str, ours: bool) -> None:
    outcome = reconcile(Observed(make_job(2, managedBy=manager)), START)
    assert bool(outcome.actions) is ours
    assert (outcome.status is None) is not ours


def test_deleting_jobs_are_ignored() -> None:
    job = make_job(2)
    job["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    assert reconcile(Observed(job), START) == Outcome((), None)
    assert reconcile(Observed(None), START) == Outcome((), None)


def test_invalid_job_fails_with_its_errors() -> None:
    job = make_job(2)
    job["spec"]["msReplicaSpecs"]["Worker"]["replicas"] = 0
    job["spec"]["runPolicy"] = {"cleanPodPolicy": 3, "ttlSecondsAfterFinished": "soon"}
    cluster = Cluster(job)
    outcome = cluster.reconcile()
    assert [type(action) for action in outcome.actions] == [EmitEvent]
    failed = cluster.get_condition("Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "spec.msReplicaSpecs.Worker.replicas: must be ≥ 1, got 0" in failed["message"]
    assert cluster.events == [EmitEvent("Warning", "InvalidSpec", failed["message"])]
    assert cluster.reconcile().actions == ()


@pytest.mark.parametrize(
    ("owner", "reason", "message"),
    [("", "NameTaken", "does not belong"), ("somebody", "NameTerminating", "has another owner")],
)
def test_foreign_objects_of_jobs_names_are_reported(owner: str, reason: str, message: str) -> None:
    job = make_job(2)
    pods = (PodView("digits-worker-0", "x", owner="somebody"),)
    services = (ServiceView("digits-scheduler-0", "y", owner=owner),)
    slices = (EndpointSliceView("digits-scheduler-0", "z", owner="somebody"),)
    outcome = reconcile(Observed(job, pods, services, slices), START)
    assert outcome.status is not None
    taken = "pod digits-worker-0, Service digits-scheduler-0, EndpointSlice digits-scheduler-0"
    assert outcome.status["waiting"].startswith(f"{taken}: exists and {message}")
    assert outcome.status["waitingReason"] == reason
    assert not [action for action in outcome.actions if not isinstance(action, (EmitEvent, RequeueAt))]
    again = reconcile(Observed({**job, "status": outcome.status}, pods, services, slices), START)
    assert [type(action) for action in again.actions] == [RequeueAt], "one event"


def test_image_pull_errors_emit_one_event() -> None:
    cluster = Cluster(make_job(1))
    cluster.settle()
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        cluster.pods["digits-worker-0"]["status"]["containerStatuses"] = [
            {
                "name": "mindspore",
                "image": "no/such:1",
                "state": {"waiting": {"reason": reason, "message": "backing off"}},
            }
        ]
        cluster.settle()
    assert cluster.status["waiting"] == "digits-worker-0: ImagePullBackOff: no/such:1"
    assert cluster.status["waitingReason"] == "ImagePullBackOff"
    assert reasons(cluster) == ["JobCreated", "Waiting"]
    cluster.pods["digits-worker-0"]["status"] = {"phase": "Running"}
    cluster.settle()
    assert not {"waiting", "waitingReason"} & set(cluster.status)


def test_image_pull_errors_of_several_pods_emit_one_event() -> None:
    cluster = Cluster(make_job(2))
    cluster.settle()
    for name in ("digits-worker-1", "digits-worker-0", "digits-scheduler-0"):
        cluster.pods[name]["status"]["containerStatuses"] = [
            {"name": "mindspore", "image": "no/such:1", "state": {"waiting": {"reason": "ErrImagePull"}}}
        ]
        cluster.settle()
    assert cluster.status["waiting"] == "digits-worker-1: ImagePullBackOff: no/such:1"
    assert reasons(cluster) == ["JobCreated", "Waiting"]
    del cluster.pods["digits-worker-1"]["status"]["containerStatuses"]
    cluster.settle()
    assert cluster.status["waiting"] == "digits-scheduler-0: ImagePullBackOff: no/such:1"


@pytest.mark.parametrize("status", [{}, {"conditions": 3}, {"failure": 3}])
def test_counts_are_recovered_from_pods(status: dict[str, Any]) -> None:
    cluster = Cluster(make_job(2)).start()
    for _ in range(2):
        cluster.exit("digits-worker-1", 1)
        cluster.settle()
        cluster.run_pods()
        cluster.wait(60)
        cluster.start()
    assert cluster.job is not None
    cluster.job["status"] = status
    cluster.settle()
    assert (cluster.status["restarts"], cluster.status["attempt"]) == (2, 2)
    assert cluster.has("Running")


def test_pods_of_earlier_job_of_name_are_ignored() -> None:
    old = PodView("digits-worker-0", "x", owner="uid-of-before", phase="Failed", deleting=True, restarts=2, exit_code=1)
    outcome = reconcile(Observed(make_job(1), (old,)), START)
    assert outcome.status is not None
    assert outcome.status["restarts"] == 0
    assert not [action for action in outcome.actions if isinstance(action, (Create, Delete))]


def test_conflicting_variables_are_replaced_with_event() -> None:
    job = make_job(2)
    job["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "MS_NODE_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MS_WORKER_NUM", "value": "2"},
        {"name": "MS_SCHED_PORT", "value": "9999"},
        {"name": "GLOG_v", "value": "3"},
    ]
    cluster = Cluster(job)
    cluster.settle()
    assert [event.message for event in cluster.events if event.reason == "EnvReplaced"] == [
        "spec.msReplicaSpecs.Worker: env MS_NODE_ID (valueFrom) is replaced, since the operator gives each member its "
        "own; remove it from the template",
        "spec.msReplicaSpecs.Worker: env MS_SCHED_PORT ('9999') is replaced, since the operator gives each member its "
        "own; remove it from the template",
    ]


def test_progress_survives_restarts_and_end() -> None:
    cluster = Cluster(make_job(2)).start()
    cluster.progress = TrainingProgress(45, step=9, steps=20)
    cluster.settle()
    assert cluster.status["progress"] == {"percentage": 45, "step": 9, "steps": 20, "metrics": []}
    # The next operator has not read the log yet.
    cluster.progress = None
    cluster.exit("digits-worker-1", 1)
    cluster.settle()
    assert cluster.status["progress"]["percentage"] == 45
    cluster.run_pods()
    cluster.settle()
    cluster.start()
    cluster.progress = TrainingProgress(100, step=20, steps=20)
    cluster.exit("digits-worker-0", 0)
    cluster.settle()
    assert cluster.has("Succeeded")
    # A read that began before the job's end returns after it.
    cluster.progress = TrainingProgress(95, step=19, steps=20)
    cluster.settle()
    assert cluster.status["progress"]["percentage"] == 100
