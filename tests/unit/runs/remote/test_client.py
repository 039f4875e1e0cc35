from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kfp_server_api import V2beta1PipelineTaskDetail

from kfp_mindspore.errors import (
    AlreadyExistsError,
    KfpMindSporeError,
    NotFoundError,
    ProcessFailedError,
    UserError,
    ValidationError,
    WaitTimeoutError,
)
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.runs.compiled import sources
from kfp_mindspore.runs.compiled.package import disable_caching
from kfp_mindspore.runs.compiled.spec import parse_documents
from kfp_mindspore.runs.remote import client as remote
from kfp_mindspore.runs.remote import server, task_details
from kfp_mindspore.runs.remote.records import format_cron
from kfp_mindspore.runs.remote.task_details import get_step_seconds, list_step_pods
from tests.support.kube.fake_api_server import FakeApiServer
from tests.support.remote.pipelines_server import make_driver_log, make_driver_name, make_log, make_pod_name, make_tasks

SOURCE = """
from kfp import dsl

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def count(number: int) -> int:
    return number + 1

@dsl.pipeline(name="counting")
def counting(number: int = 1, name: str = "x"):
    first = count(number=number)
    with dsl.If(first.output > 1):
        count(number=first.output)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("remote") / "counting.py"
    file.write_text(SOURCE)
    return sources.compile_text(str(file))


@pytest.fixture
def client(pipelines_server: Any) -> remote.RemoteClient:
    return remote.RemoteClient(pipelines_server.url)


def test_upload_stores_compiled_pipeline(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    uploaded = client.upload(package, description="counts")
    assert uploaded == remote.UploadedPipeline(
        "counting", "p0", "", "", f"{pipelines_server.url}/#/pipelines/details/p0"
    )
    assert pipelines_server.packages == [package]
    assert pipelines_server.queries == [{"name": "counting", "description": "counts"}]


def test_second_upload_creates_version(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    client.upload(package)
    second = client.upload(package, version="two")
    assert (second.pipeline_id, second.version_id, second.version) == ("p0", "v1", "two")
    assert second.url.endswith("/#/pipelines/details/p0/version/v1")
    assert client.upload(package).version.startswith("counting ")
    assert pipelines_server.packages == [package] * 3


def test_upload_of_same_pipeline_is_refused(client: remote.RemoteClient, package: str) -> None:
    client.upload(package)
    client.upload(package)
    with pytest.raises(AlreadyExistsError, match=r"version 'counting [0-9a-f]{12}': already exists"):
        client.upload(package)


def test_upload_with_name_and_namespace(pipelines_server: Any, package: str) -> None:
    client = remote.RemoteClient(pipelines_server.url + "/", namespace="team-a")
    assert client.upload(package, name="other").name == "other"
    assert pipelines_server.pipelines["other"].namespace == "team-a"


def test_run_converts_arguments(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package, {"number": "5"}, name="first", experiment="mine", pipeline_root="s3://b/r")
    assert (run.run_id, run.name, run.state) == ("r0", "first", "PENDING")
    started = pipelines_server.runs["r0"]
    assert (started.runtime_config.parameters, started.runtime_config.pipeline_root) == ({"number": 5}, "s3://b/r")
    assert started.experiment_id == pipelines_server.experiments["mine"].experiment_id
    assert started.pipeline_spec["pipelineInfo"]["name"] == "counting"
    assert client.run(package, experiment="mine").name.startswith("counting 20")
    assert len(pipelines_server.experiments) == 1


def test_caching_is_disabled_in_conditions(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    client.run(package, cache=False)
    spec = pipelines_server.runs["r0"].pipeline_spec
    dags = [spec["root"], *(part for part in spec["components"].values() if "dag" in part)]
    options = [task.get("cachingOptions") for part in dags for task in part["dag"]["tasks"].values()]
    assert len(options) == 3
    assert not any((option or {}).get("enableCache") for option in options)


@pytest.mark.usefixtures("run_source")
def test_wait_reports_each_change_once(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package)
    pipelines_server.states[:] = [None, "PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]
    pipelines_server.tasks = make_tasks({"count": "RUNNING"})
    seen: list[Any] = []
    done = client.wait(run.run_id, interval=0.01, on_change=lambda run: seen.append((run.state, dict(run.steps))))
    steps, last = {"count": "RUNNING"}, {"count": "SUCCEEDED", "count-2": "SKIPPED"}
    assert seen == [("PENDING", {}), ("PENDING", steps), ("RUNNING", steps), ("SUCCEEDED", last)]
    assert done.is_finished


@pytest.mark.usefixtures("run_source")
def test_result_waits_for_final_task_details(client: remote.RemoteClient, pipelines_server: Any, gated: str) -> None:
    run = client.run(gated, {"threshold": 0.96})
    pipelines_server.tasks = make_tasks({"train": "SUCCEEDED", "evaluate": "SUCCEEDED", "deploy": "RUNNING"})
    pipelines_server.logs = {make_pod_name("deploy"): make_log(REFUSED)}
    result = client.read_result(run.run_id)
    assert (result.steps["deploy"].state, result.steps["deploy"].seconds) == ("succeeded", 7.0)
    assert result.error is not None


def test_running_step_has_no_duration() -> None:
    assert get_step_seconds(make_tasks({"deploy": "RUNNING"}), ["deploy"]) == {}


# As KFP's launcher and Argo's executor write it.
LAUNCHER_LOG = """I1123 02:41:07.120000      21 launcher_v2.go:192] publish success.

KfpMindSporeError: the data are missing
time=2026-11-23T02:41:08.495Z level=INFO msg="sub-process exited" argo=true error="exit status 1"
Error: exit status 1
"""


@pytest.mark.usefixtures("run_source")
def test_failed_run_names_each_step_once_with_its_last_lines(
    client: remote.RemoteClient, pipelines_server: Any, package: str
) -> None:
    run = client.run(package, name="bad")
    pipelines_server.tasks = make_tasks({"count": "SUCCEEDED", "count-2": "FAILED"})
    assert client.get_run(run.run_id).steps == {"count": "SUCCEEDED", "count-2": "FAILED"}
    pipelines_server.logs = {make_pod_name("count"): "fine\n", make_pod_name("count-2"): LAUNCHER_LOG}
    pipelines_server.states[:] = ["FAILED"]
    with pytest.raises(ProcessFailedError) as caught:
        client.wait(run.run_id, interval=0.01)
    assert caught.value.message == "run bad ended FAILED in step count-2"
    assert caught.value.log == ("KfpMindSporeError: the data are missing",)
    assert caught.value.hint == f"Details: {run.url}"


GATED = """
from typing import NamedTuple
from kfp import dsl

lightweight = dsl.component(base_image="python:3.11", install_kfp_package=False)

@lightweight
def train(metrics: dsl.Output[dsl.Metrics]):
    pass

@lightweight
def evaluate(threshold: float, metric: str = "accuracy") -> NamedTuple(
    "Outputs", [("metric", str), ("value", float), ("passed", bool), ("samples", int)]
):
    pass

@lightweight
def deploy(gate: bool) -> NamedTuple("Outputs", [("url", str), ("deployed", bool), ("verdict", str)]):
    pass

@dsl.pipeline(name="gated")
def gated(threshold: float = 0.95):
    evaluation = evaluate(threshold=threshold).after(train())
    deploy(gate=evaluation.outputs["passed"])
"""
EVALUATION = {"metric": "accuracy", "value": 0.931, "passed": False, "samples": 360}
REFUSED = {"url": "", "deployed": False, "verdict": "not deployed: the gate is not met"}


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("gated") / "gated.py"
    file.write_text(GATED)
    return sources.compile_text(str(file))


def start(
    client: remote.RemoteClient,
    server: Any,
    package: str,
    logs: dict[str, str],
    cached: Sequence[str] = (),
    **arguments: Any,
) -> str:
    """Start a run with these logs by step, which succeeds."""
    run = client.run(package, arguments)
    steps = {step: "CACHED" if step in cached else "SUCCEEDED" for step in ("train", "evaluate", "deploy")}
    server.tasks = make_tasks(steps)
    server.logs = {make_pod_name(step): log for step, log in logs.items()}
    return client.wait(run.run_id, interval=0.01).run_id


@pytest.mark.usefixtures("run_source")
def test_result_of_run_is_read_from_logs_of_its_steps(
    client: remote.RemoteClient, pipelines_server: Any, gated: str
) -> None:
    logs = {
        "train": make_log({}, {"metrics": {"loss": 0.1, "accuracy": 0.95}}),
        "evaluate": make_log(EVALUATION),
        "deploy": make_log(REFUSED),
    }
    result = client.read_result(start(client, pipelines_server, gated, logs, threshold=0.96))
    assert result.state == "refused"
    assert result.error is not None
    assert (result.error.exit_code, result.error.message) == (
        3,
        "accuracy 0.931 is 0.029 below the threshold of 0.960",
    )
    assert "Skipped: deploy" in result.error.hint
    assert result.get_evaluation() == {"metric": "accuracy", "value": 0.931, "samples": 360}
    assert result.steps["train"].describe() == "accuracy 0.95, loss 0.1"
    assert result.steps["train"].seconds == 7.0
    assert result.notes == []

    logs["evaluate"] = make_log({**EVALUATION, "value": 0.97, "passed": True})
    logs["deploy"] = make_log({"url": "http://digits", "deployed": True, "verdict": "version 1 serves"})
    passed = client.read_result(start(client, pipelines_server, gated, logs))
    assert (passed.state, passed.error, passed.get_output("url")) == ("succeeded", None, "http://digits")


@pytest.mark.usefixtures("run_source")
def test_result_without_archived_logs_is_read_from_pods(
    api: FakeApiServer, pipelines_server: Any, gated: str, tmp_path: Path
) -> None:
    cluster = Cluster(api.write_kubeconfig(tmp_path / "kubeconfig", namespace="kubeflow"), retry_timeout=1)
    client = remote.RemoteClient(pipelines_server.url, cluster=cluster)
    run = start(client, pipelines_server, gated, {})
    labels = {"pipeline/runid": run}
    workflows = "/apis/argoproj.io/v1alpha1/namespaces/kubeflow/workflows"
    api.put(workflows, {"metadata": {"name": "digits-x7k2p", "labels": labels}})
    name = make_pod_name("deploy")
    api.put("/api/v1/namespaces/kubeflow/pods", {"metadata": {"name": name, "labels": labels}})
    api.write(name, *(f"2026-01-01T00:00:00.000000000Z {line}" for line in make_log(REFUSED).splitlines()), end=True)
    result = client.read_result(run)
    assert (result.state, getattr(result.error, "exit_code", 0)) == ("refused", 3)
    assert [note.partition(":")[0] for note in result.notes] == ["train", "evaluate"]


def test_run_of_uploaded_version_has_its_pipeline(
    client: remote.RemoteClient, pipelines_server: Any, gated: str
) -> None:
    from kfp.client import Client

    client.upload(gated + "\n---\nplatforms: {}\n")
    other = Client(host=pipelines_server.url, namespace="kubeflow")
    group = other.create_experiment("Default").experiment_id
    run = other.run_pipeline(group, "from page", pipeline_id="p0", version_id="v0", params={"threshold": 0.96}).run_id
    pipelines_server.tasks = make_tasks(dict.fromkeys(("train", "evaluate", "deploy"), "SUCCEEDED"))
    pipelines_server.logs = {make_pod_name("deploy"): make_log(REFUSED)}
    assert client.get_run(run).steps == dict.fromkeys(("train", "evaluate", "deploy"), "SUCCEEDED")
    result = client.read_result(run)
    assert (result.pipeline, getattr(result.error, "exit_code", 0)) == ("gated", 3)
    version = "GET /apis/v2beta1/pipelines/p0/versions/v0"
    assert pipelines_server.paths.count(version) == 1


def test_run_of_deleted_version_is_described_by_its_nodes(
    client: remote.RemoteClient, pipelines_server: Any, gated: str
) -> None:
    pipelines_server.stores_versions = True
    run = start(client, pipelines_server, gated, {"deploy": make_log(REFUSED)}, cached=["train"])
    pipelines_server.versions.clear()
    client = remote.RemoteClient(pipelines_server.url)
    found = client.get_run(run)
    assert list(found.steps) == ["train", "evaluate", "deploy"]
    assert "pipeline version v0 was deleted" in found.note
    result = client.read_result(run)
    assert (getattr(result.error, "exit_code", 0), result.notes) == (3, [found.note])
    pipelines_server.states[:] = ["FAILED"]
    pipelines_server.tasks = make_tasks({"train": "FAILED"})
    with pytest.raises(UserError, match="pipeline version v0 was deleted") as caught:
        client.run_again(run, "registry/other:1")
    assert "kfp-mindspore pipeline run" in caught.value.hint


@pytest.mark.usefixtures("run_source")
def test_refused_deployment_after_comparison_is_unmet_gate(
    client: remote.RemoteClient, pipelines_server: Any, gated: str
) -> None:
    logs = {"train": make_log({}), "evaluate": make_log({"better": False}), "deploy": make_log(REFUSED)}
    result = client.read_result(start(client, pipelines_server, gated, logs))
    assert (result.state, getattr(result.error, "exit_code", 0)) == ("refused", 3)


@pytest.mark.usefixtures("run_source")
def test_unmet_gate_from_cache_is_known_from_deployment(
    client: remote.RemoteClient, pipelines_server: Any, gated: str
) -> None:
    run = start(client, pipelines_server, gated, {"deploy": make_log(REFUSED)}, cached=["train", "evaluate"])
    result = client.read_result(run)
    assert result.error is not None
    assert (result.error.exit_code, result.error.message) == (3, "deploy: not deployed: the gate is not met")
    assert {name: step.state for name, step in result.steps.items()} == {
        "train": "cached",
        "evaluate": "cached",
        "deploy": "succeeded",
    }
    assert result.notes == ["outputs of cached steps are in the runs that computed them"]


@pytest.mark.usefixtures("run_source")
def test_cached_steps_have_outputs_of_run_that_computed_them(
    client: remote.RemoteClient, pipelines_server: Any, gated: str
) -> None:
    logs = {"train": make_log({}, {"metrics": {"loss": 0.1}}), "evaluate": make_log(EVALUATION)}
    first = start(client, pipelines_server, gated, {**logs, "deploy": make_log(REFUSED)}, threshold=0.96)
    run = start(client, pipelines_server, gated, {}, cached=["train", "evaluate"], threshold=0.96)
    workflow = "gated-9tvpq"
    cached = make_tasks({"train": "CACHED", "evaluate": "CACHED", "deploy": "SUCCEEDED"}, workflow)
    pipelines_server.tasks_by_run = {first: make_tasks(dict.fromkeys(logs, "SUCCEEDED")), run: cached}
    pipelines_server.executions = {"11": first, "12": first}
    pipelines_server.logs = {make_pod_name(step): log for step, log in logs.items()}
    for step, execution in (("train", "11"), ("evaluate", "12")):
        pipelines_server.logs[make_driver_name(step, workflow)] = make_driver_log(step, execution)
    result = client.read_result(run)
    assert {name: step.state for name, step in result.steps.items()} == {
        "train": "cached", "evaluate": "cached", "deploy": "succeeded",
    }  # fmt: skip
    assert result.steps["train"].describe() == "loss 0.1"
    assert result.error is not None
    assert (result.error.exit_code, result.error.message) == (
        3, "accuracy 0.931 is 0.029 below the threshold of 0.960",
    )  # fmt: skip
    assert [note.partition(":")[0] for note in result.notes] == ["deploy"]


@pytest.mark.usefixtures("run_source")
def test_steps_without_logs_beside_cached_ones_have_notes(
    client: remote.RemoteClient, pipelines_server: Any, gated: str
) -> None:
    run = start(client, pipelines_server, gated, {"deploy": make_log(REFUSED)}, cached=["train"])
    result = client.read_result(run)
    assert [note.partition(":")[0] for note in result.notes] == ["train", "evaluate"]


@pytest.mark.usefixtures("run_source")
@pytest.mark.parametrize("log", ["", "ExecutorOutput: {", "ExecutorOutput: {]", "no output"])
def test_result_without_readable_logs_has_notes(
    client: remote.RemoteClient, pipelines_server: Any, gated: str, log: str
) -> None:
    result = client.read_result(start(client, pipelines_server, gated, {"evaluate": log}))
    assert (result.state, result.error, len(result.notes)) == ("succeeded", None, 3)


@pytest.mark.parametrize(("attempt", "template"), [("", ""), ("", "retry-"), ("(0)", "retry-")])
def test_pods_of_steps_follow_from_nodes_of_workflow(attempt: str, template: str) -> None:
    details = make_tasks({"count": "SUCCEEDED", "count-2": "SUCCEEDED"}, attempt=attempt)
    pods = list_step_pods(details, ["count", "count-2"])
    for step in ("count", "count-2"):
        assert make_pod_name(step, attempt=attempt, template=template) in pods[step]
        assert len(set(pods[step])) == len(pods[step])


def test_node_ids_are_those_of_argo() -> None:
    # Published test vectors of FNV-1a.
    assert [task_details._get_id("w", name) for name in ("", "a", "foobar")] == [
        "w-2166136261", "w-3826002220", "w-3214735720",
    ]  # fmt: skip


@pytest.mark.usefixtures("run_source")
def test_steps_after_failed_one_are_skipped(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package)
    pipelines_server.tasks = make_tasks({"count": "FAILED"})
    pipelines_server.tasks += [V2beta1PipelineTaskDetail(run_id="r0", task_id="t9", display_name="count-2")]
    pipelines_server.states[:] = ["RUNNING", "FAILED"]
    assert client.get_run(run.run_id).steps["count-2"] == "PENDING"
    assert client.get_run(run.run_id).steps["count-2"] == "SKIPPED"


@pytest.mark.usefixtures("run_source")
@pytest.mark.parametrize("log", [None, "<!doctype html><title>Kubeflow</title>"])
def test_failed_run_without_readable_log(
    client: remote.RemoteClient, pipelines_server: Any, package: str, log: str | None
) -> None:
    run = client.run(package, name="bad")
    pipelines_server.tasks = make_tasks({"count": "FAILED", "count-2": "FAILED"})
    pipelines_server.logs = {} if log is None else {make_pod_name("count"): log}
    pipelines_server.states[:] = ["FAILED"]
    with pytest.raises(ProcessFailedError) as caught:
        client.wait(run.run_id, interval=0.01)
    assert (caught.value.message, caught.value.log) == ("run bad ended FAILED in step count, count-2", ())


@pytest.mark.usefixtures("run_source")
@pytest.mark.parametrize("state", ["CANCELED", "SKIPPED"])
def test_cancelled_run_is_failure(client: remote.RemoteClient, pipelines_server: Any, package: str, state: str) -> None:
    run = client.run(package, name="bad")
    pipelines_server.states[:] = [state]
    with pytest.raises(ProcessFailedError, match=f"^run bad ended {state}\n"):
        client.wait(run.run_id, interval=0.01)


@pytest.mark.usefixtures("run_source")
def test_terminated_run_ends_failed(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package)
    pipelines_server.states[:] = ["RUNNING"]
    assert client.get_run(run.run_id).state == "RUNNING"
    client.terminate(run.run_id)
    assert client.get_run(run.run_id).state == "FAILED"


@pytest.mark.usefixtures("run_source")
def test_pending_driver_is_step_that_has_not_started(
    client: remote.RemoteClient, pipelines_server: Any, package: str
) -> None:
    run = client.run(package)
    pipelines_server.states[:] = ["RUNNING"]
    pipelines_server.tasks = make_tasks({"count": "RUNNING"})
    for task in pipelines_server.tasks:
        if str(task.display_name).startswith("count-driver"):
            task.state = "PENDING"
    assert client.get_run(run.run_id).pending == ("count",)


@pytest.mark.usefixtures("run_source")
def test_retried_run_is_not_terminated(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package)
    client.terminate(run.run_id)
    assert client.get_run(run.run_id).is_terminated
    assert not client.retry(run.run_id).is_terminated
    assert client.wait(run.run_id, interval=0.01).state == "SUCCEEDED"


@pytest.mark.usefixtures("run_source")
def test_wait_reports_terminated_run(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package, name="long")
    pipelines_server.tasks = make_tasks({"count": "FAILED"})
    client.terminate(run.run_id)
    with pytest.raises(ProcessFailedError) as caught:
        client.wait(run.run_id, interval=0.01)
    assert caught.value.message == "run long was terminated in step count"


def test_schedule_creates_recurring_run(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    made = client.schedule(
        package, {"number": "3"}, name="nightly", cron="0 3 * * *", cache=False, service_account="runner"
    )
    stored = pipelines_server.schedules[made.schedule_id]
    assert stored.trigger.cron_schedule.cron == "0 0 3 * * *"
    assert stored.runtime_config.parameters == {"number": 3}
    assert (stored.service_account, stored.mode, stored.no_catchup) == ("runner", "ENABLE", True)
    assert "enableCache" not in json.dumps(stored.pipeline_spec)
    periodic = client.schedule(package, name="often", every_seconds=3600)
    assert [(item.name, item.when, item.is_enabled) for item in (periodic, made)] == [
        ("often", "every 3600 s", True),
        ("nightly", "0 0 3 * * *", True),
    ]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({}, "exactly one of cron and an interval"),
        ({"cron": "0 3 * * *", "every_seconds": 5}, "exactly one of cron and an interval"),
        ({"cron": "0 3 * *"}, "cron: must have five fields"),
    ],
)
def test_invalid_schedule_is_refused(
    client: remote.RemoteClient, pipelines_server: Any, package: str, times: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        client.schedule(package, name="bad", **times)
    assert not pipelines_server.schedules


@pytest.mark.parametrize(("given", "sent"), [("@daily", "@daily"), ("5 0 3 * * 1", "5 0 3 * * 1")])
def test_cron_with_seconds_is_kept(given: str, sent: str) -> None:
    assert format_cron(given) == sent


@pytest.mark.usefixtures("run_source")
def test_wait_times_out(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    run = client.run(package)
    pipelines_server.states[:] = ["RUNNING"]
    start = time.monotonic()
    with pytest.raises(WaitTimeoutError, match=r"still RUNNING after 0.2 s"):
        client.wait(run.run_id, timeout=0.2, interval=60)
    assert time.monotonic() - start < 60


def test_unknown_run_is_error(client: remote.RemoteClient) -> None:
    for call in (client.get_run, client.wait, client.read_result, client.terminate, client.retry):
        with pytest.raises(NotFoundError, match=r"^run nothing: does not exist on http://\S+, or was deleted$"):
            call("nothing")


def test_invalid_arguments_are_refused_before_any_request(
    client: remote.RemoteClient, pipelines_server: Any, package: str
) -> None:
    with pytest.raises(ValidationError, match=r"number: must be an integer, got 'many'; .*did you mean 'name'\?"):
        client.run(package, {"number": "many", "nam": "y"})
    assert not pipelines_server.runs


def test_token_is_sent_with_every_request(pipelines_server: Any, package: str) -> None:
    pipelines_server.token = "abc"
    with pytest.raises(KfpMindSporeError, match="connect: HTTP 401 Unauthorized: Unauthenticated") as it:
        remote.RemoteClient(pipelines_server.url)
    assert "KFP_TOKEN" in it.value.hint
    assert remote.RemoteClient(pipelines_server.url, token="abc").upload(package).pipeline_id == "p0"


def test_token_file_is_read_for_each_request(pipelines_server: Any, package: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(UserError, match=r"token file: .*: No such file"):
        remote.RemoteClient(pipelines_server.url, token_file=str(file))
    file.write_text("first\n")
    pipelines_server.token = "first"
    client = remote.RemoteClient(pipelines_server.url, token_file=str(file))
    client.run(package)
    file.write_text("second\n")
    pipelines_server.token = "second"
    assert client.get_run("r0").run_id == "r0"


def test_cookie_is_sent_with_every_request(pipelines_server: Any, package: str) -> None:
    pipelines_server.cookie = "authservice_session=abc"
    with pytest.raises(KfpMindSporeError, match="HTTP 401"):
        remote.RemoteClient(pipelines_server.url)
    client = remote.RemoteClient(pipelines_server.url, cookie="authservice_session=abc")
    assert client.upload(package).pipeline_id == "p0"


def test_multi_user_server_requires_namespace(pipelines_server: Any, package: str) -> None:
    pipelines_server.multi_user = True
    with pytest.raises(KfpMindSporeError, match="namespace cannot be empty in multi-user mode"):
        remote.RemoteClient(pipelines_server.url).run(package)
    client = remote.RemoteClient(pipelines_server.url, namespace="team-a")
    client.run(package, name="mine")
    client.schedule(package, name="nightly", cron="@daily")
    assert {item.namespace for item in pipelines_server.experiments.values()} == {"team-a"}
    assert [run.display_name for run in pipelines_server.runs.values()] == ["mine"]


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((200, "text/html", "<html>Log in</html>"), "healthz: expected JSON from Kubeflow Pipelines, got text/html"),
        ((302, "text/html", ""), "connect: HTTP 302 Found"),
        ((404, "text/html", "<html>nothing</html>"), "connect: HTTP 404 Not Found"),
        ((503, "text/plain", "upstream connect error"), "HTTP 503 Service Unavailable: upstream connect error"),
    ],
)
def test_other_servers_are_refused(pipelines_server: Any, refusal: tuple[int, str, str], message: str) -> None:
    pipelines_server.refusal = refusal
    with pytest.raises(KfpMindSporeError, match=message) as caught:
        remote.RemoteClient(pipelines_server.url)
    assert caught.value.exit_code == 1
    assert pipelines_server.paths == ["GET /apis/v2beta1/healthz"]


def test_refused_request_is_error(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    pipelines_server.refusal = (403, "application/json", json.dumps({"error_message": "not in namespace"}))
    for act in (client.upload, client.run):
        with pytest.raises(KfpMindSporeError, match="HTTP 403 Forbidden: not in namespace"):
            act(package)


def test_unreachable_server_fails_without_retries(free_port: int) -> None:
    start = time.monotonic()
    with pytest.raises(KfpMindSporeError, match=rf"127.0.0.1:{free_port}: no response .*Connection refused") as caught:
        remote.RemoteClient(f"http://127.0.0.1:{free_port}")
    assert caught.value.exit_code == 1
    # kfp.Client alone retries for 25 s.
    assert time.monotonic() - start < 25


def test_first_request_times_out() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(KfpMindSporeError, match=r"no response from Kubeflow Pipelines .*timed out"),
    ):
        remote.RemoteClient(f"http://127.0.0.1:{silent.getsockname()[1]}", connect_seconds=0.2)


def test_lost_connection_is_error(pipelines_server: Any, package: str) -> None:
    client = remote.RemoteClient(pipelines_server.url)
    pipelines_server.shutdown()
    pipelines_server.socket.close()
    with pytest.raises(KfpMindSporeError, match=r"upload: .*Connection refused"):
        client.upload(package)


@pytest.mark.parametrize(
    ("host", "result"),
    [
        ("kubeflow.example.com/pipeline", "https://kubeflow.example.com/pipeline"),
        (" http://127.0.0.1:8888/ ", "http://127.0.0.1:8888"),
        ("https://x", "https://x"),
    ],
)
def test_host_is_normalised(host: str, result: str) -> None:
    assert server.check_host(host) == result


@pytest.mark.parametrize("host", ["", "  ", "ftp://x", "http://", "://x"])
def test_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(UserError, match=r"^host: "):
        server.check_host(host)


def test_placeholder_images_are_refused(client: remote.RemoteClient, pipelines_server: Any, package: str) -> None:
    text = package.replace("python:3.11", "kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image")
    for act in (client.upload, client.run):
        with pytest.raises(UserError, match="counting: its steps have no image") as caught:
            act(text)
        assert "--image" in caught.value.hint
    assert not pipelines_server.pipelines


@pytest.mark.parametrize("text", ["", "a: 1", "[1]", "{"])
def test_invalid_pipeline_is_refused(client: remote.RemoteClient, text: str) -> None:
    with pytest.raises(UserError, match=r"^pipeline: "):
        client.upload(text)


def test_disable_caching_keeps_other_documents(package: str) -> None:
    documents = parse_documents(disable_caching(package + "\n---\nplatforms: {}\n"))
    assert documents[1] == {"platforms": {}}
    assert documents[0]["pipelineInfo"]["name"] == "counting"
