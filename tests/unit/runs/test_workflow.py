"""A run on its cluster: Workflows as Argo writes them, on a fake Kubernetes API api."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.runs.remote.records import RemoteRun
from kfp_mindspore.runs.remote.wait import make_failure, wait_for_run
from kfp_mindspore.runs.workflow import FailedStep, RunOnCluster, get_last_lines
from tests.support.kube.fake_api_server import FakeApiServer, respond_once

NAMESPACE = "team"
WORKFLOWS = f"/apis/argoproj.io/v1alpha1/namespaces/{NAMESPACE}/workflows"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
MSJOBS = f"/apis/mindspore.gitee.com/v1/namespaces/{NAMESPACE}/msjobs"
LABELS = {"pipeline/runid": "run-1"}
STARTED = "2026-01-01T00:00:{:02d}Z"


@pytest.fixture
def run(api: FakeApiServer, tmp_path: Path) -> RunOnCluster:
    cluster = Cluster(api.write_kubeconfig(tmp_path / "kubeconfig", namespace=NAMESPACE), retry_timeout=1)
    return RunOnCluster(cluster, "run-1")


def make_node(path: str, phase: str, second: int, message: str = "", kind: str = "Pod") -> dict[str, Any]:
    name = f"digits-x7k2p(0).{path}"
    node = {"id": f"digits-x7k2p-{second}", "name": name, "displayName": path.rpartition(".")[2], "type": kind}
    return {**node, "phase": phase, "startedAt": STARTED.format(second), "message": message}


def format_now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def put_workflow(
    api: FakeApiServer, *nodes: dict[str, Any], message: str = "", spec: dict[str, Any] | None = None
) -> None:
    status = {"phase": "Running", "nodes": {node["id"]: node for node in nodes}, "message": message}
    metadata = {"name": "digits-x7k2p", "labels": LABELS, "creationTimestamp": STARTED.format(0)}
    api.put(WORKFLOWS, {"metadata": metadata, "spec": spec or {}, "status": status})


def put_pod(api: FakeApiServer, node: dict[str, Any], *lines: str) -> None:
    name = f"digits-x7k2p-system-container-impl-{node['id'].rpartition('-')[2]}"
    annotations = {"workflows.argoproj.io/node-id": node["id"]}
    api.put(PODS, {"metadata": {"name": name, "labels": LABELS, "annotations": annotations}})
    if lines:
        api.write(name, *(f"2026-01-01T00:00:00.000000000Z {line}" for line in lines), end=True)


def test_failed_step_has_reason_and_last_lines_of_its_last_attempt(api: FakeApiServer, run: RunOnCluster) -> None:
    first = make_node("root(0).train-msjob(0).executor(0)", "Failed", 4, "main: Error (exit code 1)")
    last = make_node("root(0).train-msjob(1).executor(0)", "Failed", 5, "main: OOMKilled (exit code 137)")
    put_workflow(
        api,
        make_node("root", "Failed", 1, "child failed", kind="Retry"),
        make_node("root(0).load-dataset-driver(0)", "Succeeded", 2),
        make_node("root(0).load-dataset(0).executor(0)", "Failed", 2, "main: Error (exit code 1)"),
        make_node("root(0).load-dataset(1).executor(0)", "Succeeded", 3),
        first,
        last,
    )
    put_pod(api, first, "first attempt")
    put_pod(api, last, "loading", "I1123 02:41:07.120000 21 launcher_v2.go:192] publish", "", "Error: no memory")
    failed = run.list_failed_steps(lines=2)
    assert failed == [FailedStep("train-msjob", "main: OOMKilled (exit code 137)", ("loading", "Error: no memory"))]


def test_reason_of_exit_code_is_error_in_log(api: FakeApiServer, run: RunOnCluster) -> None:
    failed = make_node("root(0).train-msjob(0).executor(0)", "Failed", 4, "main: Error (exit code 1)")
    put_workflow(api, failed)
    lines = ("ValueError: lr", "ProcessFailedError: job lenet failed: lenet-worker-0 ended with exit code 1", "A hint.")
    put_pod(api, failed, *lines)
    steps = run.list_failed_steps(lines=5)
    assert steps == [FailedStep("train-msjob", lines[1], lines)]
    error = make_failure(RemoteRun("run-1", "mine", "FAILED", url="http://kfp"), steps)
    assert error.message == f"run mine ended FAILED in step train-msjob ({lines[1]})"
    assert list(error.log) == ["ValueError: lr", "A hint."]


def test_step_of_terminated_run_has_no_reason(api: FakeApiServer, run: RunOnCluster) -> None:
    failed = make_node("root(0).train-msjob(0).executor(0)", "Failed", 4, "Step exceeded its deadline")
    put_workflow(api, failed, spec={"activeDeadlineSeconds": 0})
    put_pod(api, failed, "epoch 7/400")
    assert run.list_failed_steps(lines=5) == [FailedStep("train-msjob", "", ("epoch 7/400",))]


def test_failed_driver_is_reported_as_its_step(api: FakeApiServer, run: RunOnCluster) -> None:
    put_workflow(api, make_node("root(0).export-driver(0)", "Error", 2, "pods is forbidden: exceeded quota"))
    assert run.list_failed_steps(lines=5) == [FailedStep("export", "pods is forbidden: exceeded quota")]


LAUNCHER_LOG = """time=2026-11-23T03:38:53.493Z level=INFO msg="capturing logs" argo=true
I1123 03:38:53.529808      15 cache.go:89] Connecting to cache endpoint ml-pipeline.kubeflow.svc.cluster.local:8887
[KFP Executor 2026-11-23 03:38:55,975 INFO]: Got executor_input:
{
    "inputs": {
        "parameterValues": {}
    }
}
ProcessFailedError: service digits: container storage-initializer ended with exit code 1
It was removed: there was no version before it.
E1123 03:39:10.270983      14 launcher_v2.go:449] Component failed to execute successfully: exit status 1
F1123 03:39:10.675595      14 main.go:59] failed to execute component: exit status 1
time=2026-11-23T03:39:11.520Z level=INFO msg="sub-process exited" argo=true error="exit status 1"
Error: exit status 1
"""
DRIVER_LOG = """I1123 04:18:41.940191      17 main.go:333] input ComponentSpec:{
  "executorLabel": "exec-batch-predict"
}
F1123 04:18:42.084817      17 main.go:127] KFP driver: failed to resolve inputs: parent DAG does not have it
time=2026-11-23T04:18:42.775Z level=INFO msg="sub-process exited" argo=true error="exit status 1"
Error: exit status 1
"""
UPLOAD_LOG = """epoch 1/1: loss 0.5
F1123 04:18:42.084817      17 main.go:59] failed to execute component: failed to upload output artifact "model"
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            LAUNCHER_LOG,
            (
                "ProcessFailedError: service digits: container storage-initializer ended with exit code 1",
                "It was removed: there was no version before it.",
            ),
        ),
        (DRIVER_LOG, ("KFP driver: failed to resolve inputs: parent DAG does not have it",)),
        (UPLOAD_LOG, ('failed to execute component: failed to upload output artifact "model"',)),
    ],
    ids=["step", "driver", "launcher"],
)
def test_last_lines_are_those_of_failed_container(log: str, expected: tuple[str, ...]) -> None:
    assert get_last_lines(log.splitlines(), 15) == expected


def test_iterations_of_loop_fail_separately(api: FakeApiServer, run: RunOnCluster) -> None:
    path = "root.for-loop-2.iteration-iterations({}:{}).predict.executor(0)"
    put_workflow(
        api,
        make_node(path.format(0, 0), "Failed", 2, "Error (exit code 1)"),
        make_node(path.format(1, 1), "Succeeded", 3),
    )
    assert [step.name for step in run.list_failed_steps(lines=5)] == ["predict"]


def test_workflow_that_fails_without_pod_has_its_message(api: FakeApiServer, run: RunOnCluster) -> None:
    put_workflow(api, message="invalid spec: templates.root: unknown")
    assert run.list_failed_steps(lines=5) == [FailedStep("root", "invalid spec: templates.root: unknown")]


def test_pods_that_do_not_start_are_obstacles(api: FakeApiServer, run: RunOnCluster) -> None:
    put_workflow(
        api,
        make_node("root.load.executor", "Pending", 1, "Unschedulable: 0/3 nodes are available: insufficient memory"),
        {**make_node("root.train.executor", "Pending", 2, "PodInitializing"), "startedAt": format_now()},
        make_node(
            "root.export.executor",
            "Pending",
            3,
            'ImagePullBackOff: Back-off pulling image "x:1": ErrImagePull: not found',
        ),
        make_node("root.deploy-driver", "Running", 4),
    )
    assert run.list_obstacles() == [
        "load: Unschedulable: 0/3 nodes are available: insufficient memory",
        "export: ErrImagePull: not found",
    ]


def test_driver_without_start_has_last_warning_of_its_pod(api: FakeApiServer, run: RunOnCluster) -> None:
    driver = make_node("root(0).train-driver(0)", "Pending", 1, "ContainerCreating")
    created = make_node("root(0).load(0).executor(0)", "Pending", 2)
    put_workflow(api, driver, created, {**make_node("root.export-driver", "Pending", 3), "startedAt": format_now()})
    put_pod(api, driver)
    name = "digits-x7k2p-system-container-impl-1"
    for index, message in enumerate(["Successfully assigned", 'secret "tls" not found']):
        event = {"involvedObject": {"kind": "Pod", "name": name}, "type": "Warning", "message": message}
        api.put(EVENTS, {"metadata": {"name": f"e{index}"}, **event, "lastTimestamp": STARTED.format(index)})
    assert run.list_obstacles() == [
        f'train: its driver has not started: secret "tls" not found (pod {name})',
        "load: its pod has not started, Argo has created no pod for it",
    ]


def test_pending_step_is_reported_without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfp_mindspore.runs.remote.wait.SLOW_START_SECONDS", 0.01)
    runs = iter([*[dataclasses.replace(make_run(), pending=("train",))] * 30, make_run("SUCCEEDED")])
    reported: list[str] = []
    wait_for_run(lambda: next(runs), None, lambda *_: [], timeout=None, interval=0.001, on_obstacle=reported.append)
    assert [text.partition(";")[0] for text in reported] == ["train: its pod has not started for 0.01 s"]


def test_workflow_without_controller_is_obstacle(api: FakeApiServer, run: RunOnCluster) -> None:
    metadata = {"name": "digits-x7k2p", "labels": LABELS, "creationTimestamp": STARTED.format(0)}
    api.put(WORKFLOWS, {"metadata": metadata})
    assert run.list_obstacles() == ["Workflow digits-x7k2p: not started, is Argo's workflow controller running?"]
    api.put(WORKFLOWS, {"metadata": {**metadata, "creationTimestamp": format_now()}})
    assert run.list_obstacles() == []


def test_refused_pods_of_job_are_obstacles(api: FakeApiServer, run: RunOnCluster) -> None:
    put_workflow(api, make_node("root.train.executor", "Running", 1))
    own = api.put(MSJOBS, {"metadata": {"name": "train-1", "labels": LABELS}})["metadata"]["uid"]
    other = api.put(MSJOBS, {"metadata": {"name": "other"}})["metadata"]["uid"]
    for index, (uid, kind, message) in enumerate(
        [
            (own, "Warning", 'pods "train-1-worker-0" is forbidden: violates PodSecurity "restricted"'),
            (own, "Warning", 'pods "train-1-worker-0" is forbidden: exceeded quota'),
            (own, "Normal", "Created"),
            (other, "Warning", "another run"),
        ]
    ):
        subject = {"kind": "MSJob", "name": "train-1", "uid": uid}
        event = {"involvedObject": subject, "type": kind, "message": message, "lastTimestamp": STARTED.format(index)}
        api.put(EVENTS, {"metadata": {"name": f"event-{index}"}, **event})
    assert run.list_obstacles() == ['job train-1: pods "train-1-worker-0" is forbidden: exceeded quota']
    running = {"conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}]}
    api.put(MSJOBS, {"metadata": {"name": "train-1", "labels": LABELS, "uid": own}, "status": running})
    assert run.list_obstacles() == []


@pytest.mark.parametrize("reason", ["Queued", "QueueIgnored"])
def test_queued_job_is_obstacle(api: FakeApiServer, run: RunOnCluster, reason: str) -> None:
    put_workflow(api, make_node("root.train.executor", "Running", 1))
    waiting = 'queue "research": insufficient unused quota for cpu in flavor default, 2 more needed'
    conditions = [{"type": "Created", "status": "True"}, {"type": "Running", "status": "False"}]
    status = {"conditions": conditions, "waiting": waiting, "waitingReason": reason}
    api.put(MSJOBS, {"metadata": {"name": "train-1", "labels": LABELS}, "status": status})
    assert run.list_obstacles() == [f"job train-1: {waiting}"]


@pytest.mark.parametrize("status", [403, 404])
def test_unreadable_cluster_is_no_failure(api: FakeApiServer, run: RunOnCluster, status: int) -> None:
    api.faults.append(respond_once(status, reason="Forbidden" if status == 403 else "NotFound", times=100))
    assert run.list_obstacles() == []
    assert run.list_failed_steps(lines=5) == []
    assert not run.is_deleted()


def make_run(state: str = "RUNNING") -> RemoteRun:
    return RemoteRun("run-1", "mine", state, "http://kfp/#/runs/details/run-1")


def test_deleted_workflow_ends_wait(api: FakeApiServer, run: RunOnCluster) -> None:
    put_workflow(api, make_node("root.train.executor", "Pending", 1, "Unschedulable: no node"))
    reported: list[str] = []
    polls = 0

    def poll() -> RemoteRun:
        nonlocal polls
        polls += 1
        if polls == 3:
            api.remove(WORKFLOWS, "digits-x7k2p")
        return make_run()

    with pytest.raises(ProcessFailedError, match="run mine: its Workflow was deleted") as caught:
        wait_for_run(poll, run, lambda *_: [], timeout=None, interval=0.001, on_obstacle=reported.append)
    assert polls == 4
    assert reported == ["train: Unschedulable: no node"]
    assert caught.value.hint == "Delete it: kfp run delete run-1"


def test_unreadable_workflow_does_not_end_wait(api: FakeApiServer, run: RunOnCluster) -> None:
    put_workflow(api)
    states = iter(["RUNNING"] * 5 + ["SUCCEEDED"])

    def poll() -> RemoteRun:
        api.faults[:] = [respond_once(403, reason="Forbidden", times=100)] if api.requests else []
        return make_run(next(states))

    assert wait_for_run(poll, run, lambda *_: [], timeout=None, interval=0.001).state == "SUCCEEDED"


def test_jobs_that_run_on_are_named_with_their_lease_and_retry(api: FakeApiServer, run: RunOnCluster) -> None:
    put_workflow(api, make_node("root(0).train-msjob(0).executor(0)", "Failed", 1, "main: Error (exit code 143)"))
    lease = {"training.kubeflow.org/lease-expires": "2026-01-01T01:00:00Z"}
    for name, state in (("left", "Running"), ("done", "Succeeded")):
        conditions = [{"type": state, "status": "True"}]
        metadata = {"name": name, "uid": name, "labels": LABELS, "annotations": lease}
        api.put(MSJOBS, {"metadata": metadata, "status": {"conditions": conditions}})
    (sentence,) = run.list_left_jobs()
    assert sentence.startswith("job left: runs on until 2026-01-01T01:00:00Z")
    assert sentence.endswith("kfp-mindspore pipeline retry run-1")
    failure = make_failure(RemoteRun("run-1", "digits", "FAILED", "http://x"), [], [sentence])
    assert failure.hint == f"{sentence}\nDetails: http://x"


def test_error_of_step_is_kept_without_stacks_of_executors() -> None:
    lines = [
        "loading",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "kfp_mindspore.errors.UserError: data: no such file",
        "F1128 02:41:08.120000      21 main.go:61] failed to execute component: exit status 1",
        "goroutine 1 [running]:",
        "\t/kfp/backend/src/v2/cmd/launcher-v2/main.go:61 +0x1d",
        "Error: exit status 1",
        "github.com/argoproj/argo-workflows/v4/cmd/argoexec/commands.NewEmissaryCommand.func1",
    ]
    assert get_last_lines(lines, 20) == ("data: no such file",)
