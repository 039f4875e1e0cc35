"""`kfp-mindspore job`, as a person types it: every command is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from kfp_mindspore.cli.job import kinds as job_kinds
from kfp_mindspore.msjob import build_msjob
from kfp_mindspore.msjob.kinds import KINDS
from tests.support.kube.fake_api_server import FakeApiServer

LIMIT_SECONDS = 300


class Result(NamedTuple):
    code: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        return json.loads(self.output.splitlines()[-1])


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run `kfp-mindspore job …` with a home of its own; what is left at the end is deleted."""
    environment = {**os.environ, "KFP_MINDSPORE_HOME": str(tmp_path / "home")}
    environment["KUBECONFIG"] = str(tmp_path / "no-kubeconfig")
    environment.pop("KFP_MINDSPORE_BACKEND", None)

    def call(*words: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "kfp_mindspore.cli.main", "job", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    yield call
    for job in call("list", "--json").json["items"]:
        call("delete", job["metadata"]["name"])


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A training script that prints its rank and arguments, and exits with its first argument."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\n"
        "print('role', os.environ.get('MS_ROLE', 'none'), 'rank', os.environ.get('MS_NODE_ID', '0'))\n"
        "print('output', os.environ.get('KFP_MINDSPORE_OUTPUT_DIR'), os.environ.get('COLOR'))\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    return path.name


def test_command_is_submitted_waited_for_shown_and_deleted(run: Run, script: str, tmp_path: Path) -> None:
    submitted = run("submit", "--name", "lenet", "--output", "out", "--env", "COLOR=red", "--", "python", script, "0")
    assert submitted.code == 0, submitted.errors
    assert "job logs -f lenet" in submitted.output
    assert submitted.output.endswith(f"\noutput: {tmp_path / 'out'}\n")
    assert run("wait", "lenet").output == "job lenet: Succeeded\n"
    assert run("logs", "lenet").output.splitlines() == ["role none rank 0", f"output {tmp_path / 'out'} red"]
    assert [job["metadata"]["name"] for job in run("list", "--json").json["items"]] == ["lenet"]
    found = run("get", "lenet", "--json").json
    assert [item["type"] for item in found["status"]["conditions"] if item["status"] == "True"] == [
        "Created",
        "Succeeded",
    ]
    assert "lenet-worker-0" in run("get", "lenet").output
    assert run("scale", "lenet", "--workers", "2").output == "job lenet has finished: the change has no effect\n"
    assert run("delete", "lenet").code == 0
    assert run("list", "--json").json["items"] == []


def test_file_is_submitted_and_every_process_is_shown(run: Run, script: str, tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "mindspore", "command": ["python", script, "0"]}]}}
    document = {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": "pair"},
        "spec": {"msReplicaSpecs": {"worker": {"replicas": 2, "template": template}}, "successPolicy": "AllWorkers"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    submitted = run("submit", "job.yaml", "--wait")
    assert submitted.code == 0, submitted.errors
    lines = run("logs", "--all", "pair").output.splitlines()
    assert {line for line in lines if "role" in line} == {
        "pair-scheduler-0: role MS_SCHED rank scheduler-0",
        "pair-worker-0: role MS_WORKER rank 0",
        "pair-worker-1: role MS_WORKER rank 1",
    }
    assert run("logs", "pair", "--replica-type", "worker", "--index", "1", "--tail", "1").output.startswith("output")


def test_job_is_suspended_resumed_and_scaled(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(600)\n")
    assert run("submit", "--name", "long", "--", "python", "sleep.py").code == 0
    assert run("wait", "long", "--for", "running").output == "job long: Running\n"
    assert run("suspend", "long").output == "job long is being suspended\n"
    assert run("wait", "long", "--for", "suspended").output == "job long: Suspended\n"
    assert run("resume", "long").output == "job long is being resumed\n"
    assert run("wait", "long", "--for", "running").output == "job long: Running\n"
    assert run("scale", "long", "--workers", "2").output == "job long is being scaled to 2 workers\n"
    assert run("delete", "long", "--grace-seconds", "0").output == "job long deleted\n"


@pytest.mark.parametrize("waits_by_submit", [True, False])
def test_failed_wait_prints_job_and_error_as_json(run: Run, script: str, waits_by_submit: bool) -> None:
    submit = ["submit", "--name", "bad", "--restart-policy", "Never"]
    if waits_by_submit:
        failed = run(*submit, "--wait", "--json", "--", "python", script, "5")
    else:
        assert run(*submit, "--", "python", script, "5").code == 0
        failed = run("wait", "bad", "--json")
    assert failed.code == 1
    assert failed.json["metadata"]["name"] == "bad"
    assert failed.json["status"]["conditions"][-1]["type"] == "Failed"
    error = json.loads(failed.errors.splitlines()[-1])["error"]
    assert (error["type"], error["exit_code"]) == ("JobFailedError", 1)
    assert "exit code 5" in error["message"]
    assert any(line.endswith("role none rank 0") for line in error["log"])


def test_expired_wait_prints_job_as_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(600)\n")
    assert run("submit", "--name", "long", "--", "python", "sleep.py").code == 0
    expired = run("wait", "long", "--timeout", "0", "--json")
    assert (expired.code, expired.json["metadata"]["name"]) == (1, "long")
    assert json.loads(expired.errors.splitlines()[-1])["error"]["type"] == "WaitTimeoutError"


def test_dry_run_starts_nothing(run: Run, script: str) -> None:
    words = ["--empty-dir", "/dev/shm=8Gi", "--checkpoints", "s3://bucket/c", "--dry-run", "--json"]
    judged = run("submit", "--name", "lenet", *words, "--", "python", script, "0")
    assert (judged.code, judged.json["metadata"]["name"]) == (0, "lenet")
    pod = judged.json["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["containers"][0]["env"] == [{"name": "KFP_MINDSPORE_CHECKPOINT_DIR", "value": "s3://bucket/c"}]
    assert pod["volumes"] == [{"name": "empty-dir-0", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    assert run("submit", "--name", "lenet", "--dry-run", "--", "python", "missing.py").code == 2
    refused = run("submit", "--name", "lenet", "--dry-run", "--wait", "--", "python", script, "0")
    assert (refused.code, refused.errors.splitlines()[0]) == (2, "Error: --wait: --dry-run starts nothing to wait for")
    assert run("list", "--json").json["items"] == []


@pytest.mark.parametrize(
    ("own", "words", "code", "image"),
    [
        ("", ["--image", "a.example/train:1"], 0, "a.example/train:1"),
        ("b.example/own:2", ["--image", "a.example/train:1"], 0, "b.example/own:2"),
        ("", [], 2, "must have an image on a cluster"),
    ],
)
def test_image_is_for_containers_of_file_that_name_none(
    run: Run, tmp_path: Path, own: str, words: list[str], code: int, image: str
) -> None:
    document = build_msjob("lenet", command=["true"]).to_dict()
    container = document["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container.pop("image")
    container.update({"image": own} if own else {})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    with FakeApiServer().serve() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", namespace="team")
        result = run("submit", "job.yaml", "--kubeconfig", str(kubeconfig), "--dry-run", *words)
    assert (result.code, image in result.output + result.errors) == (code, True), result


def test_queue_of_command_line_is_label_of_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(build_msjob("lenet", command=["true"], image="a", labels={"app": "x"}).to_yaml())
    with FakeApiServer().serve() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", namespace="default")
        submitted = run("submit", "job.yaml", "--kubeconfig", str(kubeconfig), "--queue", "research", "--json")
    assert submitted.code == 0, submitted.errors
    assert submitted.json["metadata"]["labels"] == {"app": "x", "kueue.x-k8s.io/queue-name": "research"}
    warning = "Warning: queue 'research': namespace default has no such LocalQueue\n"
    assert submitted.errors == warning


def test_hints_repeat_namespace(run: Run, script: str) -> None:
    submitted = run("submit", "--name", "lenet", "-n", "team", "--", "python", script, "0")
    assert submitted.output.endswith("kfp-mindspore job logs -f lenet --namespace team\n")
    assert run("delete", "lenet", "-n", "team").code == 0


def test_failed_job_exits_with_1_and_its_last_lines(run: Run, script: str) -> None:
    failed = run("submit", "--name", "bad", "--wait", "--", "python", script, "7")
    assert failed.code == 1
    assert "bad-worker-0 ended with exit code 7" in failed.errors
    assert "role none rank 0" in failed.errors
    assert "Traceback" not in failed.errors
    waited = run("wait", "bad")
    assert (waited.code, "exit code 7" in waited.errors) == (1, True)


FIRST_GENERATION = """\
apiVersion: kubeflow.org/v1
kind: MSJob
metadata: {name: old}
spec:
  backend: tcp
  replicaSpecs:
    - replicaType: MASTER
      template: {spec: {containers: [{name: train, image: example.com/train:1}]}}
"""


def test_job_is_submitted_as_another_kind(run: Run, tmp_path: Path) -> None:
    assert tuple(KINDS) == job_kinds.KINDS
    with FakeApiServer().serve() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", namespace="team")
        server.kinds["/apis/trainer.kubeflow.org/v1alpha1"] = [
            {"name": "trainjobs", "kind": "TrainJob", "namespaced": True},
            {"name": "clustertrainingruntimes", "kind": "ClusterTrainingRuntime", "namespaced": False},
        ]
        words = ("--backend", "kubernetes", "--kubeconfig", str(kubeconfig), "--image", "a", "--workers", "2")
        created = run("submit", "--name", "lenet", *words, "--kind", "TrainJob", "--", "python", "train.py")
        refused = run("submit", "--name", "lenet", *words, "--kind", "MPIJob", "--", "python", "train.py")
    assert created.output.splitlines() == [
        "ClusterTrainingRuntime team-lenet created",
        "TrainJob lenet created in namespace team",
    ]
    policy = "spec.msReplicaSpecs.Worker.restartPolicy: ExitCode is now OnFailure"
    assert created.errors.startswith(policy)
    assert refused.code == 2
    assert "this cluster cannot run MPIJob" in refused.errors


def test_job_of_first_generation_is_converted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(FIRST_GENERATION)
    result = run("convert", "old.yaml")
    assert (result.code, yaml.safe_load(result.output)["apiVersion"]) == (0, "mindspore.gitee.com/v1")
    assert "spec.backend: 'tcp' left out: MindSpore chooses its means of communication by itself" in result.errors
    written = run("convert", "old.yaml", "--output", "new.yaml", "--json")
    assert (tmp_path / "new.yaml").read_text() == result.output
    assert yaml.safe_load(result.output) == written.json["job"]
    assert {change["field"] for change in written.json["changes"]} >= {"apiVersion", "spec.backend"}
    commented = f"# My job\n{result.output}"
    (tmp_path / "new.yaml").write_text(commented)
    again = run("convert", "new.yaml")
    assert (again.output, "unchanged" in again.errors) == (commented, True)
    mpi = run("convert", "new.yaml", "--to", "volcano")
    (tmp_path / "volcano.yaml").write_text(mpi.output)
    assert yaml.safe_load(mpi.output)["kind"] == "Job"
    assert yaml.safe_load(run("convert", "volcano.yaml").output)["kind"] == "MSJob"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert"], "Missing argument 'FILE'"),
        (["convert", "missing.yaml"], "missing.yaml: no such file"),
        (["convert", "broken.yaml"], "broken.yaml: line 3"),
        (["convert", "unknown.yaml"], "Boss"),
        (["convert", "old.yaml", "--output", "."], ".: is a directory, expected a file"),
        (["submit"], "expected one file"),
        (["submit", "good.yaml", "--kind", "MPIJob"], "kind: must be MSJob on this machine, got 'MPIJob'"),
        (["submit", "good.yaml", "--kind", "MPIJob", "--wait"], "--wait: is for MSJobs, got --kind MPIJob"),
        (["submit", "."], ".: is a directory, expected a YAML file"),
        (["submit", "latin.yaml"], "latin.yaml: must be UTF-8 text, got byte 0xe9 at 5"),
        (
            ["submit", "good.yaml", "--workers", "5", "--env", "A=b"],
            "--workers, --env: for --name and a command, got the file good.yaml",
        ),
        (["submit", "--restart-policy", "Never"], "--restart-policy: for --name and a command, got no --name"),
        (["submit", "good.yaml", "--name", "a"], "--name: is for a command after --, got the file good.yaml"),
        (["submit", "missing.yaml"], "missing.yaml: no such file"),
        (["submit", "broken.yaml"], "broken.yaml: line 3"),
        (["submit", "unknown.yaml"], "Boss"),
        (["submit", "first.yaml"], "convert it with: kfp-mindspore job convert first.yaml"),
        (["submit", "two.yaml"], "two.yaml: must be MSJob of mindspore.gitee.com/v1, got MSJob of kubeflow.org/v1"),
        (["submit", "--name", "a", "--empty-dir", "shm=1Gi", "--", "true"], "empty_dirs: must be absolute paths"),
        (["submit", "--name", "a", "--queue", "Research", "--", "true"], "queue: must be at most 63 lower-case"),
        (["submit", "--name", "a", "--", "python", "missing.py"], "no such script 'missing.py'"),
        (["submit", "--name", "a"], "command"),
        (["submit", "--name", "A_B", "--", "true"], "metadata.name"),
        (["submit", "--name", "a", "--workers", "0", "--", "true"], "'--workers': 0 is not in the range x>=1"),
        (["submit", "--name", "a", "--dataset", "none", "--", "true"], "--dataset: must be a directory, got none"),
        (["submit", "--name", "a", "--env", "X", "--", "true"], "must be KEY=VALUE, got 'X'"),
        (["submit", "--name", "a", "--backend", "kubernetes", "--", "true"], "no cluster is configured"),
        (["list", "--backend", "local", "--context", "kind"], "--context: names a cluster"),
        (["list", "-n", "Bad_NS"], "--namespace: must be at most 63 lower-case letters"),
        (["scale", "missing", "--workers", "0"], "--workers"),
        (["get", "missing"], "missing"),
        (["logs", "missing"], "missing"),
        (["wait", "missing"], "missing"),
        (["delete", "missing"], "missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistake_exits_with_2_names_it_and_leaves_nothing(
    run: Run, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "broken.yaml").write_text("apiVersion: mindspore.gitee.com/v1\nkind: [MSJob\n")
    (tmp_path / "unknown.yaml").write_text(
        "apiVersion: mindspore.gitee.com/v1\nkind: MSJob\nmetadata: {name: a}\n"
        "spec: {msReplicaSpecs: {Boss: {replicas: 1, template: {spec: {containers: [{name: mindspore}]}}}}}\n"
    )
    (tmp_path / "good.yaml").write_text(build_msjob("good", command=["true"]).to_yaml())
    (tmp_path / "latin.yaml").write_bytes(b"# caf\xe9")
    (tmp_path / "old.yaml").write_text("kind: MSJob")
    (tmp_path / "first.yaml").write_text(FIRST_GENERATION)
    (tmp_path / "two.yaml").write_text(f"{FIRST_GENERATION}\n---\n{FIRST_GENERATION}")
    result = run(*words)
    assert result.code == 2, result.errors
    assert message in result.errors
    assert "Traceback" not in result.errors
    assert run("list", "--json").json["items"] == []


def test_interrupted_wait_lets_job_continue(run: Run, tmp_path: Path) -> None:
    program = (
        "import pathlib, time; print('started', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "kfp_mindspore.cli.main", "job", "submit", "--name", "long", "--wait", "--",
         "python", "-c", program],
        env={**os.environ, "KFP_MINDSPORE_HOME": str(tmp_path / "home"), "KFP_MINDSPORE_BACKEND": "local"},
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert "job long continues; follow it with: kfp-mindspore job logs -f long" in errors
    assert "Delete it with: kfp-mindspore job delete long" in errors
    (tmp_path / "go").touch()
    assert run("wait", "long").output == "job long: Succeeded\n"
