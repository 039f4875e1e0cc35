from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.init import write_project
from kfp_mindspore.cli.main import run
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.runs.compiled.data_sources import list_sources
from kfp_mindspore.runs.compiled.sources import compile_text
from kfp_mindspore.runs.compiled.spec import parse_spec
from tests.support.kube.fake_api_server import FakeApiServer
from tests.support.remote.pipelines_server import make_log, make_pod_name, make_tasks

ROOT = Path(__file__).parents[4]
IMAGE = "registry.example.com/mine@sha256:" + "0" * 64
STEPS = ["load-dataset", "train-msjob", "export-mindir", "evaluate-mindir", "deploy-kserve"]
LATER_STEPS = STEPS[2:]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KFP_MINDSPORE_IMAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path / "my-project")
    return tmp_path / "my-project"


def parse(text: str) -> Any:
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    return json_format.ParseDict(parse_spec(text), pipeline_spec_pb2.PipelineSpec())


def test_list_shows_packaged_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "DESCRIPTION"]
    assert any(line.startswith("digits_lifecycle ") for line in lines)
    assert run(["pipeline", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["items"]
    assert "digits_lifecycle" in [row["name"] for row in rows]
    assert all(row["description"] for row in rows)


@pytest.mark.parametrize("source", ["digits_lifecycle", "my-project/pipeline.py", "my-project/pipeline.py:pipeline"])
def test_compile_writes_valid_pipeline_spec(project: Path, capsys: pytest.CaptureFixture[str], source: str) -> None:
    assert run(["pipeline", "compile", source, "-o", "out.yaml"]) == 0
    printed = capsys.readouterr()
    assert "5 steps" in printed.out
    assert "placeholder image kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image" in printed.err
    assert "--image" in printed.err
    spec = parse(Path("out.yaml").read_text())
    executors = spec.deployment_spec["executors"]
    assert len(executors) == 5
    assert not list(Path().glob(".*.tmp"))


def test_compile_sets_image_of_steps_and_jobs(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["pipeline", "compile", "my-project/pipeline.py", "-o", "a.yaml", "--image", IMAGE, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"file": "a.yaml", "name": "my-project", "steps": STEPS, "image": IMAGE}
    assert not printed.err
    text = Path("a.yaml").read_text()
    executors = parse(text).deployment_spec["executors"]
    containers = [executors[name]["container"] for name in executors]
    assert {container["image"] for container in containers} == {IMAGE}
    for container in containers:
        assert {"name": "KFP_MINDSPORE_IMAGE", "value": IMAGE} in [dict(entry) for entry in container["env"]]
    monkeypatch.setenv("KFP_MINDSPORE_IMAGE", IMAGE)
    assert run(["pipeline", "compile", "my-project/pipeline.py", "-o", "b.yaml"]) == 0
    assert Path("b.yaml").read_text() == text


def test_compile_of_compiled_pipeline_sets_image(project: Path) -> None:
    assert run(["pipeline", "compile", "my-project/pipeline.py", "-o", "a.yaml"]) == 0
    assert run(["pipeline", "compile", "a.yaml", "-o", "b.yaml"]) == 0
    assert Path("a.yaml").read_text() == Path("b.yaml").read_text()
    assert run(["pipeline", "compile", "a.yaml", "-o", "b.yaml", "--image", IMAGE]) == 0
    executors = parse(Path("b.yaml").read_text()).deployment_spec["executors"]
    assert {executors[name]["container"]["image"] for name in executors} == {IMAGE}


DSL = """from kfp import dsl

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def show(value: str):
    print(value)

@dsl.pipeline(name="showing")
def showing():
    show({})
"""


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("nothing", None, "nothing: no such pipeline"),
        ("nothing.py", None, "nothing.py: no such file"),
        ("digts_lifecycle", None, "no such pipeline; did you mean 'digits_lifecycle'?"),
        ("nothing.yaml", None, "Expected batch_predict, "),
        ("bad.py", "x = ", "bad.py:1: SyntaxError"),
        ("bad.py", "import nowhere", "bad.py:1: ModuleNotFoundError: No module named 'nowhere'"),
        ("bad.py", DSL.format("value=nobody"), "bad.py:9: NameError: name 'nobody' is not defined"),
        (
            "bad.py",
            DSL.format("value=[1]"),
            "bad.py:9: Incompatible argument passed to the input 'value' of component",
        ),
        ("bad.py", DSL.format("value=[1]"), "a list or dict for a STRING input as JSON text"),
        ("bad.py", "1 / 0", "bad.py:1: ZeroDivisionError"),
        ("bad.py", "x = 1", "bad.py: contains no pipeline"),
        ("my-project/pipeline.py:train", None, "no pipeline named train"),
        ("bad.yaml", "a: [", "bad.yaml: not valid YAML"),
        ("bad.yaml", "a: 1", "bad.yaml: not a compiled pipeline, pipelineInfo, root, deploymentSpec missing"),
    ],
)
def test_invalid_source_writes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], source: str, content: str | None, message: str
) -> None:
    if content is not None:
        Path(source).write_text(content)
    Path("out.yaml").write_text("pipelineInfo: {}")
    assert run(["pipeline", "compile", source, "-o", "out.yaml"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert Path("out.yaml").read_text() == "pipelineInfo: {}"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("out.json", "output: must end in .yaml or .yml"),
        ("out", "output: must end in .yaml or .yml"),
        ("folder.yaml", "folder.yaml: is a directory, expected a file"),
        ("missing/out.yaml", "output: missing: no such directory\nCreate it: mkdir -p missing"),
        ("file/out.yaml", "output: file: no such directory"),
    ],
)
def test_invalid_output(project: Path, capsys: pytest.CaptureFixture[str], output: str, message: str) -> None:
    Path("folder.yaml").mkdir()
    Path("file").touch()
    assert run(["pipeline", "compile", "digits_lifecycle", "-o", output]) == 2
    assert message in capsys.readouterr().err


def test_upload_uses_host_of_environment(
    project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_ENDPOINT", pipelines_server.url)
    upload = ["pipeline", "upload", "my-project/pipeline.py", "--image", IMAGE]
    assert run(upload) == 0
    assert capsys.readouterr().out.splitlines() == [
        "my-project: uploaded",
        f"{pipelines_server.url}/#/pipelines/details/p0",
    ]
    parse(pipelines_server.packages[0])
    assert run([*upload, "--version", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version_id"] == "v1"
    assert run([*upload, "--version", "2"]) == 2
    assert "version '2': already exists" in capsys.readouterr().err


@pytest.mark.usefixtures("run_source")
def test_run_waits_for_its_end(
    project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["pipeline", "run", "my-project/pipeline.py", "--host", pipelines_server.url, "--image", IMAGE]
    assert run([*command, "-p", "epochs=40", "-p", "dataset=wine", "--name", "one", "--wait", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["state"] == "SUCCEEDED"
    assert printed.err.splitlines() == [f"one: {pipelines_server.url}/#/runs/details/r0", "SUCCEEDED"]
    assert pipelines_server.runs["r0"].runtime_config.parameters == {"epochs": 40, "dataset": "wine"}
    pipelines_server.states[:] = ["FAILED"]
    assert run([*command, "--wait"]) == 1
    assert "ended FAILED" in capsys.readouterr().err


@pytest.mark.usefixtures("run_source")
def test_failed_run_is_reported_with_its_last_lines(
    project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pipelines_server.tasks = make_tasks({"load-dataset": "SUCCEEDED", "train-msjob": "FAILED"})
    pipelines_server.logs = {make_pod_name("train-msjob"): "loading\nError: no data\n"}
    pipelines_server.states[:] = [None, "RUNNING", "FAILED"]
    host = ["--host", pipelines_server.url]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", lambda _: None)
        command = ["pipeline", "run", "my-project/pipeline.py", "--image", IMAGE, "--name", "one", "--wait"]
        assert run([*command, *host]) == 1
    printed = capsys.readouterr()
    url = f"{pipelines_server.url}/#/runs/details/r0"
    assert printed.out.splitlines() == [
        f"one: {url}",
        "PENDING",
        "load-dataset: SUCCEEDED",
        "train-msjob: FAILED",
        "RUNNING",
        *(f"{name}: SKIPPED" for name in LATER_STEPS),
        "FAILED",
    ]
    assert printed.err.splitlines() == [
        "Error: run one ended FAILED in step train-msjob",
        "  | loading",
        "  | Error: no data",
        f"Details: {url}",
    ]
    assert run(["pipeline", "get", "r0", *host]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["one: FAILED", url]
    table = [line.split() for line in lines[2:-3]]
    assert table[:3] == [["STEP", "STATE"], ["load-dataset", "SUCCEEDED"], ["train-msjob", "FAILED"]]
    assert table[3:] == [[name, "SKIPPED"] for name in LATER_STEPS]
    assert lines[-3:] == ["train-msjob: failed", "  | loading", "  | Error: no data"]
    assert run(["pipeline", "get", "r0", *host, "--wait"]) == 1
    capsys.readouterr()
    assert run(["pipeline", "get", "r0", *host, "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["failed"] == [{"name": "train-msjob", "reason": "", "log": ["loading", "Error: no data"]}]


@pytest.mark.usefixtures("run_source")
def test_run_with_unmet_gate_ends_with_3_and_its_result(
    project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ["evaluate-mindir", "deploy-kserve"]
    pipelines_server.tasks = make_tasks(
        dict.fromkeys(["load-dataset", "train-msjob", "export-mindir", *steps], "SUCCEEDED")
    )
    evaluation = {"metric": "accuracy", "value": 0.931, "passed": False, "samples": 360}
    verdict = "not deployed: the gate is not met"
    deployment = {"url": "", "name": "digits", "version": -1, "deployed": False, "verdict": verdict}
    pipelines_server.logs = {
        make_pod_name(step): make_log(outputs) for step, outputs in zip(steps, (evaluation, deployment), strict=True)
    }
    host = ["--host", pipelines_server.url]
    command = ["pipeline", "run", "digits_lifecycle", "--image", IMAGE, "--name", "one", "-p", "threshold=0.95"]
    assert run([*command, *host, "--wait"]) == 3
    printed = capsys.readouterr()
    rows = [line.strip().split(maxsplit=2) for line in printed.out.splitlines()]
    assert ["evaluate-mindir", "7.0", "accuracy 0.931, passed no, samples 360"] in rows
    assert printed.err.splitlines() == [
        "Error: accuracy 0.931 is 0.019 below the threshold of 0.950",
        "Skipped: deploy-kserve. Deployed models are unchanged.",
    ]
    assert run(["pipeline", "get", "r0", *host]) == 0
    assert verdict in capsys.readouterr().out
    assert run(["pipeline", "get", "r0", *host, "--wait", "--json"]) == 3
    *_, last = capsys.readouterr().out.splitlines()
    value = json.loads(last)
    assert (value["state"], value["result"]["state"], value["result"]["value"]) == ("SUCCEEDED", "refused", 0.931)


def test_unfinished_run_names_job_that_waits_in_queue(
    api: FakeApiServer, pipelines_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ["--host", pipelines_server.url]
    pipelines_server.states[:] = ["RUNNING"]
    assert run(["pipeline", "run", "digits_lifecycle", "--image", IMAGE, "--name", "one", *host]) == 0
    labels = {"pipeline/runid": "r0"}
    workflow = {"metadata": {"name": "one", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}}
    api.put("/apis/argoproj.io/v1alpha1/namespaces/team/workflows", {**workflow, "status": {"phase": "Running"}})
    waiting = 'queue "research": insufficient unused quota for cpu in flavor default, 2 more needed'
    status = {"waiting": waiting, "waitingReason": "Queued"}
    api.put(MSJOBS.get_path("team"), {"metadata": {"name": "train-1", "labels": labels}, "status": status})
    cluster = ["--kubeconfig", str(api.write_kubeconfig(tmp_path / "kubeconfig", namespace="team"))]
    capsys.readouterr()
    assert run(["pipeline", "get", "r0", *host, *cluster]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"job train-1: {waiting}"
    assert run(["pipeline", "get", "r0", *host, *cluster, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["obstacles"] == [f"job train-1: {waiting}"]


@pytest.mark.usefixtures("run_source")
def test_run_is_terminated(project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    host = ["--host", pipelines_server.url]
    pipelines_server.states[:] = ["RUNNING"]
    assert run(["pipeline", "run", "my-project/pipeline.py", "--image", IMAGE, "--name", "one", *host]) == 0
    assert run(["pipeline", "terminate", "r0", *host]) == 0
    assert run(["pipeline", "get", "r0", *host]) == 0
    assert run(["pipeline", "terminate", "r0", *host, "--json"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {"id": "r0", "action": "terminated"}
    assert run(["pipeline", "terminate", "r1", *host]) == 2
    assert "run r1: does not exist on" in capsys.readouterr().err


@pytest.mark.usefixtures("run_source")
def test_failed_run_is_retried(project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    host = ["--host", pipelines_server.url]
    pipelines_server.states[:] = ["FAILED"]
    pipelines_server.tasks = make_tasks({"load-dataset": "SUCCEEDED", "train-msjob": "FAILED"})
    pipelines_server.retried_tasks = make_tasks({"load-dataset": "SUCCEEDED", "train-msjob": "SUCCEEDED"})
    pipelines_server.retried[:] = ["RUNNING", "RUNNING", "SUCCEEDED"]
    command = ["pipeline", "run", "my-project/pipeline.py", "--image", IMAGE, "--name", "one", *host]
    assert run(command) == 0
    capsys.readouterr()
    assert run(["pipeline", "retry", "r0", *host, "--wait", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["run_id"], value["state"], value["result"]["state"]) == ("r0", "SUCCEEDED", "succeeded")
    assert "POST /apis/v2beta1/runs/r0:retry" in pipelines_server.paths
    for words, message in (
        (["r0"], "run r0: is SUCCEEDED; only failed and terminated runs can be retried"),
        (["r1"], "run r1: does not exist on"),
        (["r0", "--keep-steps", "load-dataset"], "--keep-steps: needs --image"),
    ):
        assert run(["pipeline", "retry", *words, *host]) == 2
        assert message in capsys.readouterr().err
    pipelines_server.states[:] = ["RUNNING"]
    assert run(["pipeline", "retry", "r0", *host]) == 2
    assert "run r0: is RUNNING; only failed" in capsys.readouterr().err


@pytest.mark.usefixtures("run_source")
def test_retry_with_another_image_keeps_named_steps(
    project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ["--host", pipelines_server.url]
    pipelines_server.states[:] = ["FAILED"]
    pipelines_server.tasks = make_tasks(
        {"load-dataset": "SUCCEEDED", "train-msjob": "SUCCEEDED", "export-mindir": "FAILED"}
    )
    source = ["my-project/pipeline.py", "--image", IMAGE, "--name", "one", "--experiment", "mine", "-p", "epochs=7"]
    assert run(["pipeline", "run", *source, "--pipeline-root", "s3://b/r", "--service-account", "runner", *host]) == 0
    capsys.readouterr()
    other = IMAGE.replace("0" * 64, "1" * 64)
    retry = ["pipeline", "retry", "r0", "--image", other, *host]
    for kept, message in (
        (
            "train-msjob",
            "train-msjob: reads from load-dataset, which runs again\nKeep both: --keep-steps load-dataset,train-msjob",
        ),
        ("load-dataset,export-mindir", "export-mindir: has no result, it is FAILED in this run"),
        ("load-datset", "load-datset: no such step; did you mean 'load-dataset'?"),
    ):
        assert run([*retry, "--keep-steps", kept]) == 2
        assert f"keep-steps: {message}" in capsys.readouterr().err
    assert list(pipelines_server.runs) == ["r0"]
    assert run([*retry, "--keep-steps", "load-dataset,train-msjob"]) == 0
    former, again = pipelines_server.runs["r0"], pipelines_server.runs["r1"]
    assert again.runtime_config.parameters == {"epochs": 7}
    assert (again.experiment_id, again.service_account) == (former.experiment_id, "runner")
    assert again.runtime_config.pipeline_root == "s3://b/r"
    before, after = ({
        name.removeprefix("exec-"): executor["container"]
        for name, executor in pipelines_server.get_spec(item.run_id)["deploymentSpec"]["executors"].items()
    } for item in (former, again))  # fmt: skip
    changed = sorted(name for name in before if before[name] != after[name])
    assert changed == ["deploy-kserve", "evaluate-mindir", "export-mindir"]
    assert {after[name]["image"] for name in changed} == {other}
    tasks = ("load-dataset", "train-msjob")
    for name in tasks:
        root = [pipelines_server.get_spec(item.run_id)["root"]["dag"]["tasks"][name] for item in (former, again)]
        assert root[0] == root[1]


def test_documented_commands_of_kfp_list_and_delete(project: Path, pipelines_server: Any) -> None:
    from click.testing import CliRunner
    from kfp.cli.cli import cli

    host = ["--host", pipelines_server.url]
    source = ["my-project/pipeline.py", "--image", IMAGE, "--name", "one", *host]
    for command in ("upload", "run", "schedule"):
        assert run(["pipeline", command, *source, *(["--every", "60"] if command == "schedule" else [])]) == 0
    page = (ROOT / "docs/kubeflow.md").read_text()
    documented = re.findall(r"^\| `kfp (\S+) (\S+?)( ID)?` \|", page, re.MULTILINE)
    identifiers = {"pipeline": "p0", "run": "r0", "recurring-run": "s0"}
    for group, command, identifier in documented:
        arguments = [identifiers[group]] if identifier else []
        options = ["--endpoint", pipelines_server.url, "--output", "json"]
        done = CliRunner().invoke(cli, [*options, group, command, *arguments], input="y\n", obj={})
        assert done.exit_code == 0, (group, command, done.output)
    assert [f"{group} {command}" for group, command, _ in documented] == [
        *("pipeline list", "pipeline list-versions", "run list", "run delete"),
        *("recurring-run list", "recurring-run delete"),
    ]
    assert (pipelines_server.runs, pipelines_server.schedules) == ({}, {})


def test_schedule_is_created(project: Path, pipelines_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    host = ["--host", pipelines_server.url]
    command = ["pipeline", "schedule", "my-project/pipeline.py", "--image", IMAGE, "--name", "nightly", *host]
    assert run([*command, "--cron", "0 3 * * *", "-p", "epochs=3"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "nightly: 0 0 3 * * *"
    assert pipelines_server.schedules["s0"].runtime_config.parameters == {"epochs": 3}
    assert run(command) == 2
    assert "exactly one of cron and an interval" in capsys.readouterr().err


def test_documented_schedule_reads_its_data(pipelines_server: Any) -> None:
    page = (ROOT / "docs/pipelines.md").read_text()
    (command,) = re.findall(r"^kfp-mindspore (pipeline schedule .* -p data=.*)$", page, re.MULTILINE)
    command = command.replace("--host …", f"--host {pipelines_server.url}").replace("--image …", f"--image {IMAGE}")
    assert run(shlex.split(command)) == 0
    arguments = pipelines_server.schedules["s0"].runtime_config.parameters
    spec = parse_spec(compile_text("scheduled_retraining", IMAGE))
    assert list_sources(spec, arguments) == ["s3://bucket/data/"]


@pytest.mark.parametrize("command", ["upload", "run"])
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["digits_lifecycle", "--image", IMAGE], 2, "host: the URL of Kubeflow Pipelines is missing"),
        (["digits_lifecycle", "--host", "{url}"], 2, "digits-lifecycle: its steps have no image"),
        (["nothing", "--host", "{url}"], 2, "nothing: no such pipeline"),
        (["digits_lifecycle", "--host", "http://127.0.0.1:{port}", "--image", IMAGE], 1, "no response from Kubeflow"),
        (["digits_lifecycle", "--host", "{url}", "--image", "a b"], 2, "got 'a b'\nExpected HOST/NAME:TAG"),
    ],
)
def test_invalid_request_is_refused_before_any_connection(
    project: Path,
    pipelines_server: Any,
    free_port: int,
    capsys: pytest.CaptureFixture[str],
    command: str,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    filled = [argument.format(url=pipelines_server.url, port=free_port) for argument in arguments]
    assert run(["pipeline", command, *filled]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not pipelines_server.paths


@pytest.mark.parametrize(
    "command",
    [
        *("list", "compile", "upload", "run", "get", "retry", "terminate", "schedule"),
        *("setup", "check"),
    ],
)
def test_help_has_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", command, "--help"]) == 0
    assert f"kfp-mindspore pipeline {command}" in capsys.readouterr().out.partition("Example")[2]
