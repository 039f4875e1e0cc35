"""The operator against a real API server without nodes: the tests write the status of pods."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from kfp_mindspore.kube.errors import ApiRequest
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, NAMESPACES, PODS, SERVICES, Resource
from kfp_mindspore.msjob.api.manifest import format_time
from kfp_mindspore.msjob.api.names import JOB_LABEL, LEASE_ANNOTATION, MSJOBS
from tests.cluster.infrastructure.api_server import ControlPlane
from tests.support.kube.operators import (
    Jobs,
    OperatorProcess,
    find,
    has,
    install_definition,
    is_deleting,
    make_job,
    wait_for,
)

ATTEMPT = "training.kubeflow.org/attempt"
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


@pytest.fixture(scope="module")
def operator(api_server: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """Return an operator with a namespace of its own."""
    install_definition(api_server.kubeconfig)
    log = tmp_path_factory.mktemp("operator") / "log"
    with (
        api_server.make_namespace() as namespace,
        OperatorProcess(api_server.kubeconfig, log, "--namespace", namespace) as process,
    ):
        yield process


@pytest.fixture(scope="module")
def jobs(api_server: ControlPlane, operator: OperatorProcess) -> Jobs:
    """Return the operator's namespace."""
    return Jobs(api_server.kubeconfig, operator.flags[1])


def test_job_runs_with_two_status_writes_and_succeeds(jobs: Jobs, operator: OperatorProcess) -> None:
    before = operator.read_metric("msjob_api_requests_total", verb="update", code="200")
    jobs.create("plain", workers=2)
    jobs.patch("plain", {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}})
    pods = jobs.wait_pods("plain", lambda pods: len(pods) == 3)
    (service,) = jobs.services("plain")
    environment = {item["name"]: item for item in pods["plain-worker-1"]["spec"]["containers"][0]["env"]}
    assert environment["MS_NODE_ID"]["value"] == "1"
    address = jobs.cluster.get(SERVICES, service, jobs.namespace)["spec"]["clusterIP"]
    assert environment["MS_SCHED_HOST"]["value"] == address
    running = jobs.launch("plain", 3)
    # A status that replaces another leaves alone what others note down.
    noted = jobs.get("plain")["metadata"]
    assert noted["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] == "{}"
    assert {item["manager"] for item in noted["managedFields"]} > {"kfp-mindspore-operator"}
    assert jobs.get("plain")["status"]["workers"] == "2/2"
    assert operator.read_metric("msjob_api_requests_total", verb="update", code="200") - before == 2
    jobs.end("plain-worker-0", 0)
    done = jobs.wait("plain", "Succeeded")
    assert done["status"]["restarts"] == 0
    assert {pod["metadata"]["labels"][ATTEMPT] for pod in running.values()} == {"0"}
    # cleanPodPolicy is Running by default: what runs is ended, what has ended stays for its log.
    pods = jobs.wait_pods("plain", lambda pods: is_deleting(pods["plain-worker-1"]))
    assert not is_deleting(pods["plain-worker-0"])
    jobs.wait_gone(service, SERVICES)
    wait_for(
        lambda: {event["reason"] for event in jobs.events("plain")} == {"JobCreated", "JobRunning", "JobSucceeded"},
        lambda: f"{jobs.events('plain')}",
    )


def test_endpoint_follows_scheduler_of_current_gang(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.create("led", workers=2)
    for attempt in range(2):
        scheduler = jobs.launch("led", 3)["led-scheduler-0"]
        jobs.wait_endpoint("led", scheduler["status"]["podIP"])
        if attempt == 0:
            jobs.end("led-worker-1", 1)
            jobs.wait_pods("led", lambda pods: all(map(is_deleting, pods.values())))
            jobs.reap("led")
            jobs.wait_endpoint("led", "")
    operator.stop()
    (endpoint_slice,) = jobs.cluster.list(ENDPOINT_SLICES, jobs.namespace, labels=f"{JOB_LABEL}=led")
    jobs.cluster.delete(ENDPOINT_SLICES, endpoint_slice["metadata"]["name"], jobs.namespace)
    operator.start()
    jobs.wait_endpoint("led", scheduler["status"]["podIP"])
    # Bursts of jobs are not limited by the endpoint controllers: only the operator writes their endpoints.
    endpoints = jobs.cluster.request(
        ApiRequest("list", "endpoints"), "GET", f"/api/v1/namespaces/{jobs.namespace}/endpoints"
    )
    assert [item["metadata"]["name"] for item in endpoints["items"]] == []
    jobs.delete("led")
    jobs.wait_gone("led-scheduler-0", ENDPOINT_SLICES)


def test_single_worker_is_one_pod_without_variables(jobs: Jobs) -> None:
    jobs.create("single", workers=1)
    (pod,) = jobs.launch("single", 1).values()
    assert [item["name"] for item in pod["spec"]["containers"][0]["env"]] == ["KFP_MINDSPORE_PROGRESS"]
    assert jobs.services("single") == []
    jobs.end("single-worker-0", 0)
    jobs.wait("single", "Succeeded")


def test_failure_restarts_gang_counted(jobs: Jobs, operator: OperatorProcess) -> None:
    before = operator.read_metric("msjob_restarts_total")
    jobs.create("again", workers=2, backoffLimit=2)
    old = jobs.launch("again", 3)
    jobs.end("again-worker-1", 1, message="first line\nZeroDivisionError")
    job = jobs.wait("again", "Restarting")
    assert job["status"]["restarts"] == 1
    failure = job["status"]["failure"]
    assert (failure["pod"], failure["exitCode"]) == ("again-worker-1", 1)
    assert failure["log"][-1] == "ZeroDivisionError"
    # Its peers have nothing to save: one second from SIGTERM to SIGKILL.
    dying = jobs.wait_pods("again", lambda pods: all(map(is_deleting, pods.values())))
    graces = {name: pod["metadata"]["deletionGracePeriodSeconds"] for name, pod in dying.items()}
    assert graces["again-scheduler-0"] == graces["again-worker-0"] == 1
    jobs.reap("again")
    new = jobs.launch("again", 3)
    assert not {pod["metadata"]["uid"] for pod in old.values()} & {pod["metadata"]["uid"] for pod in new.values()}
    assert {pod["metadata"]["labels"][ATTEMPT] for pod in new.values()} == {"1"}
    assert jobs.get("again")["status"]["restarts"] == 1
    assert operator.read_metric("msjob_restarts_total") - before == 1


def test_backoff_limit(jobs: Jobs) -> None:
    jobs.create("limit", workers=1, backoffLimit=1)
    for restarts in (0, 1):
        jobs.launch("limit", 1)
        assert jobs.get("limit")["status"]["restarts"] == restarts
        jobs.end("limit-worker-0", 1)
        if restarts == 0:
            jobs.wait("limit", "Restarting")
            jobs.reap("limit")
    failed = jobs.wait("limit", "Failed")
    assert find(failed, "Failed")["reason"] == "BackoffLimitExceeded"
    assert failed["status"]["restarts"] == 1


@pytest.mark.parametrize(
    ("policy", "code", "condition"),
    [("Never", 137, "Failed"), ("ExitCode", 1, "Failed"), ("ExitCode", 143, "Restarting"), ("Always", 1, "Restarting")],
)
def test_restart_policies(jobs: Jobs, policy: str, code: int, condition: str) -> None:
    name = f"policy-{policy.lower()}-{code}"
    jobs.create(name, workers=1, restart_policy=policy)
    jobs.launch(name, 1)
    jobs.end(f"{name}-worker-0", code)
    jobs.wait(name, condition)


@pytest.mark.parametrize(("reason", "counted"), [("PreemptionByScheduler", 0), ("EvictionByEvictionAPI", 0), ("", 1)])
def test_disruptions_are_not_counted_and_deletions_are(jobs: Jobs, reason: str, counted: int) -> None:
    name = f"gone-{reason[:4].lower() or 'deleted'}"
    jobs.create(name, workers=2)
    jobs.launch(name, 3)
    if reason:
        jobs.disrupt(f"{name}-worker-1", reason)
    jobs.cluster.delete(PODS, f"{name}-worker-1", jobs.namespace)
    job = jobs.wait(name, "Restarting")
    assert job["status"]["restarts"] == counted
    assert job["status"]["attempt"] == 1
    jobs.wait_pods(name, lambda pods: all(map(is_deleting, pods.values())))
    jobs.reap(name)
    jobs.launch(name, 3)


def test_exit_of_peer_is_not_first_failure(jobs: Jobs) -> None:
    jobs.create("hung", workers=2, restart_policy="ExitCode")
    jobs.launch("hung", 3)
    jobs.end("hung-worker-1", 76, message="Thread 0x1 (most recent call first):")
    jobs.end("hung-worker-0", 75)
    job = jobs.wait("hung", "Restarting")
    assert (job["status"]["failure"]["pod"], job["status"]["failure"]["exitCode"]) == ("hung-worker-1", 76)
    assert "no progress in time" in find(job, "Restarting")["message"]


def test_elastic_job_shrinks_and_grows(jobs: Jobs) -> None:
    document = make_job("elastic", 3)
    document["spec"]["elasticPolicy"] = {"minReplicas": 1, "graceSeconds": 1}
    jobs.cluster.create(MSJOBS, document, jobs.namespace)
    pods = jobs.wait_pods("elastic", lambda pods: len(pods) == 4)
    for name in pods.keys() - {"elastic-worker-1"}:
        jobs.set_running(name)
    # The last, as the operator deletes the other pods one second later.
    jobs.set_unschedulable("elastic-worker-1")
    job = jobs.wait("elastic", "Restarting")
    assert find(job, "Restarting")["reason"] == "JobScaledDown"
    assert (job["status"]["targetWorkers"], job["status"]["restarts"]) == (2, 0)
    jobs.launch("elastic", 3)
    # After ten times the grace time.
    pods = jobs.wait_pods("elastic", lambda pods: "elastic-probe-worker-2" in pods)
    assert pods["elastic-probe-worker-2"]["spec"]["containers"][0]["command"] == ["true"]
    jobs.set_running("elastic-probe-worker-2")
    job = jobs.wait("elastic", "Restarting")
    assert find(job, "Restarting")["reason"] == "JobScaledUp"
    jobs.wait_pods("elastic", lambda pods: all(map(is_deleting, pods.values())))
    jobs.reap("elastic")
    jobs.launch("elastic", 4)
    status = jobs.get("elastic")["status"]
    assert (status["workers"], status["restarts"], status.get("targetWorkers")) == ("3/3", 0, None)


def test_oom_kill_is_reported(jobs: Jobs) -> None:
    jobs.create("hungry", workers=1, backoffLimit=0)
    jobs.launch("hungry", 1)
    jobs.end("hungry-worker-0", 137, reason="OOMKilled")
    failed = jobs.wait("hungry", "Failed")
    assert failed["status"]["failure"]["reason"] == "OOMKilled"


def test_deadline_fires_without_events(jobs: Jobs) -> None:
    jobs.create("late", workers=1, activeDeadlineSeconds=2)
    failed = jobs.wait("late", "Failed")
    assert find(failed, "Failed")["reason"] == "DeadlineExceeded"
    # A pod without a node is deleted at once.
    jobs.wait_pods("late", lambda pods: not pods)


def test_lease_expires_without_events(jobs: Jobs) -> None:
    jobs.create("leased", workers=2, cleanPodPolicy="None")
    jobs.launch("leased", 3)
    for seconds in (60, 2):
        lease = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        jobs.patch("leased", {"metadata": {"annotations": {LEASE_ANNOTATION: format_time(lease)}}})
        assert not has(jobs.get("leased"), "Failed")
    failed = jobs.wait("leased", "Failed")
    assert find(failed, "Failed")["reason"] == "LeaseExpired"
    assert datetime.datetime.now(datetime.timezone.utc) >= lease
    jobs.wait_pods("leased", lambda pods: all(map(is_deleting, pods.values())))


def test_restricted_namespace_admits_jobs_and_fails_root_jobs(jobs: Jobs) -> None:
    level = "pod-security.kubernetes.io/enforce"
    jobs.cluster.patch(NAMESPACES, jobs.namespace, "", {"metadata": {"labels": {level: "restricted"}}})
    try:
        jobs.create("restricted", workers=2)
        jobs.launch("restricted", 3)
        jobs.create("root", workers=2, security_context={"runAsUser": 0})
        failed = jobs.wait("root", "Failed")
    finally:
        jobs.cluster.patch(NAMESPACES, jobs.namespace, "", {"metadata": {"labels": {level: None}}})
    assert find(failed, "Failed")["reason"] == "PodsRefused"
    assert 'violates PodSecurity "restricted' in find(failed, "Failed")["message"]
    assert jobs.pods("root") == {}
    jobs.wait_gone("root-scheduler-0", SERVICES)


def test_jobs_over_quota_wait_until_it_is_raised(jobs: Jobs) -> None:
    quota: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": jobs.namespace},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    }
    jobs.cluster.apply(quota)
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    wait_for(
        lambda: "hard" in (jobs.cluster.get(QUOTAS, "gpus", jobs.namespace).get("status") or {}),
        lambda: "the quota has no status",
    )
    jobs.create("over", workers=1, resources=resources)
    job = jobs.wait_until("over", lambda job: bool((job.get("status") or {}).get("waiting")), "waiting")
    assert "exceeded quota: gpus" in job["status"]["waiting"]
    assert not has(job, "Failed")
    jobs.cluster.delete(QUOTAS, "gpus", jobs.namespace)
    jobs.launch("over", 1)
    assert "waiting" not in jobs.get("over")["status"]


def test_ttl_deletes_job_and_its_dependents(jobs: Jobs) -> None:
    jobs.create("brief", workers=2, ttlSecondsAfterFinished=1, cleanPodPolicy="None")
    jobs.launch("brief", 3)
    jobs.end("brief-worker-0", 0)
    jobs.wait_gone("brief")
    pods = jobs.wait_pods("brief", lambda pods: all(map(is_deleting, pods.values())))
    jobs.reap("brief")
    jobs.wait_pods("brief", lambda pods: not pods)
    jobs.wait_gone("brief-scheduler-0", SERVICES)
    assert set(pods) <= {"brief-scheduler-0", "brief-worker-0", "brief-worker-1"}


def test_deleting_job_deletes_its_pods(jobs: Jobs) -> None:
    jobs.create("deleted", workers=2)
    jobs.launch("deleted", 3)
    jobs.delete("deleted")
    jobs.wait_gone("deleted")
    pods = jobs.wait_pods("deleted", lambda pods: all(map(is_deleting, pods.values())))
    # Deleted by a person: they may save what they have.
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in pods.values()} == {30}
    jobs.reap("deleted")
    jobs.wait_gone("deleted-scheduler-0", SERVICES)
    assert jobs.pods("deleted") == {}


def test_suspend_and_resume(jobs: Jobs) -> None:
    jobs.create("held", workers=2, suspend=True)
    job = jobs.wait("held", "Suspended")
    assert jobs.pods("held") == {}
    assert jobs.services("held") == []
    assert "startTime" not in job["status"]
    jobs.patch("held", {"spec": {"runPolicy": {"suspend": False}}})
    jobs.launch("held", 3)
    jobs.end("held-worker-1", 1)
    jobs.wait("held", "Restarting")
    jobs.reap("held")
    jobs.launch("held", 3)
    jobs.patch("held", {"spec": {"runPolicy": {"suspend": True}}})
    jobs.wait("held", "Suspended")
    pods = jobs.wait_pods("held", lambda pods: all(map(is_deleting, pods.values())))
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in pods.values()} == {30}
    jobs.reap("held")
    jobs.wait_gone("held-scheduler-0", SERVICES)
    jobs.patch("held", {"spec": {"runPolicy": {"suspend": False}}})
    pods = jobs.launch("held", 3)
    assert jobs.get("held")["status"]["restarts"] == 1
    assert {pod["metadata"]["labels"][ATTEMPT] for pod in pods.values()} == {"2"}


def test_jobs_of_another_manager_are_ignored(jobs: Jobs) -> None:
    jobs.create("foreign", workers=1, managedBy="kueue.x-k8s.io/multikueue")
    # Created later and finished, so the operator has processed the other one too.
    jobs.create("witness", workers=1)
    jobs.launch("witness", 1)
    assert "status" not in jobs.get("foreign")
    assert jobs.pods("foreign") == {}


def test_scale_subresource_restarts_gang(jobs: Jobs) -> None:
    jobs.create("wide", workers=2)
    jobs.launch("wide", 3)
    jobs.scale("wide", 3)
    job = jobs.wait("wide", "Restarting")
    assert find(job, "Restarting")["reason"] == "JobScaled"
    jobs.wait_pods("wide", lambda pods: all(map(is_deleting, pods.values())))
    jobs.reap("wide")
    pods = jobs.launch("wide", 4)
    variables = {item["name"]: item.get("value") for item in pods["wide-worker-2"]["spec"]["containers"][0]["env"]}
    assert (variables["MS_WORKER_NUM"], variables["MS_NODE_ID"]) == ("3", "2")
    assert jobs.get("wide")["status"]["restarts"] == 0
    assert jobs.get_scale("wide")["status"] == {
        "replicas": 3,
        "selector": "training.kubeflow.org/job-name=wide,training.kubeflow.org/replica-type=worker",
    }


@pytest.mark.parametrize(("policy", "left"), [("All", set()), ("Running", {"0"}), ("None", {"scheduler", "0", "1"})])
def test_clean_pod_policies(jobs: Jobs, policy: str, left: set[str]) -> None:
    name = f"clean-{policy.lower()}"
    jobs.create(name, workers=2, cleanPodPolicy=policy)
    jobs.launch(name, 3)
    jobs.end(f"{name}-worker-0", 0)
    jobs.wait(name, "Succeeded")
    names = {"scheduler": f"{name}-scheduler-0", "0": f"{name}-worker-0", "1": f"{name}-worker-1"}
    expected = {names[key] for key in left}
    jobs.wait_pods(name, lambda pods: {pod for pod, item in pods.items() if not is_deleting(item)} == expected)
    if policy == "None":
        assert jobs.services(name) == [f"{name}-scheduler-0"]


def test_success_policy_all_workers(jobs: Jobs) -> None:
    jobs.create("all", workers=2, success_policy="AllWorkers")
    jobs.launch("all", 3)
    jobs.end("all-worker-0", 0)
    job = jobs.wait_until("all", lambda job: job["status"]["replicaStatuses"]["Worker"].get("succeeded") == 1)
    assert not has(job, "Succeeded")
    jobs.end("all-worker-1", 0)
    jobs.wait("all", "Succeeded")


def test_foreign_objects_of_jobs_names_are_reported(jobs: Jobs) -> None:
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "taken-worker-0"},
        "spec": {"containers": [{"name": "other", "image": "kfp-mindspore.invalid/none"}]},
    }
    jobs.cluster.create(PODS, pod, jobs.namespace)
    jobs.create("taken", workers=1)
    job = jobs.wait_until("taken", lambda job: bool((job.get("status") or {}).get("waiting")), "waiting")
    assert "pod taken-worker-0: exists and does not belong to this job" in job["status"]["waiting"]
    jobs.vanish("taken-worker-0")
    jobs.launch("taken", 1)
    assert "waiting" not in jobs.get("taken")["status"]


def test_invalid_pods_fail_job(jobs: Jobs) -> None:
    """The definition leaves an image out, as Kubernetes' own templates do; the pod's own check does not."""
    jobs.create("imageless", workers=1, image=None)
    failed = find(jobs.wait("imageless", "Failed"), "Failed")
    assert failed["reason"] == "PodsRefused"
    assert "spec.containers[0].image" in failed["message"]
    wait_for(
        lambda: any(event["reason"] == "PodsRefused" for event in jobs.events("imageless")),
        lambda: f"{jobs.events('imageless')}",
    )


def test_metrics_count_jobs_by_state(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.create("counted", workers=1, suspend=True)
    jobs.wait("counted", "Suspended")
    wait_for(lambda: operator.read_metric("msjob_jobs", state="Suspended") >= 1, lambda: operator.ask("/metrics")[1])
    assert operator.read_metric("msjob_reconcile_seconds_count") > 0
    assert operator.read_metric("msjob_leading") == 1
    assert operator.ask("/healthz") == (200, "ok")
