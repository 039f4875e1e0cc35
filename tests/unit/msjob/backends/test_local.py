"""Jobs as real processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import AlreadyExistsError, NotFoundError, UserError, ValidationError, WaitTimeoutError
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.msjob import KubernetesBackend, LocalBackend, MSJob, MSJobClient, run_job
from kfp_mindspore.msjob.api.spec import ReplicaSpec
from kfp_mindspore.msjob.api.status import ProgressMetric, TrainingProgress
from kfp_mindspore.msjob.failure import JobFailedError

TAKE_PORT = """
import os, pathlib, socket, sys, time
taken = pathlib.Path(sys.argv[1], "taken")
if os.environ["MS_ROLE"] == "MS_SCHED" and not pathlib.Path(sys.argv[1], "failed").exists():
    while not taken.exists():
        time.sleep(0.01)
    pathlib.Path(sys.argv[1], "failed").touch()
    sys.exit(1)
if os.environ["MS_NODE_ID"] == "0" and not taken.exists():
    server = socket.create_server(("127.0.0.1", int(os.environ["MS_SCHED_PORT"])))
    taken.touch()
    time.sleep(60)
if os.environ["MS_NODE_ID"] != "0":
    time.sleep(60)
"""


def find_conditions(job: MSJob) -> dict[str, str]:
    """Return the conditions that a job is in, with their reasons."""
    assert job.status is not None
    return {item.type: item.reason or "" for item in job.status.conditions if item.status == "True"}


def test_one_worker_is_one_plain_process(local_jobs: Any) -> None:
    job = local_jobs.run("print", "hello", "environment", "MS_ROLE")
    assert find_conditions(job) == {"Created": "JobCreated", "Succeeded": "JobSucceeded"}
    assert local_jobs.client.get_job_pod_names("job") == ["job-worker-0"]
    assert local_jobs.client.get_job_logs("job")[0] == {"job-worker-0": "hello\nMS_ROLE=None\n"}
    assert job.status.start_time <= job.status.completion_time
    assert vars(job.status.replica_statuses["Worker"])["succeeded"] == 1


def test_progress_of_worker_0_is_in_status(local_jobs: Any) -> None:
    report = {"percentage": 45, "step": 9, "steps": 20, "metrics": [{"name": "loss", "value": "0.31"}]}
    job = local_jobs.run("progress", json.dumps(report))
    assert job.status.progress == TrainingProgress(45, step=9, steps=20, metrics=[ProgressMetric("loss", "0.31")])
    assert job.to_dict()["status"]["progress"] == report


def test_several_workers_get_scheduler_and_ranks(local_jobs: Any) -> None:
    local_jobs.run(
        "environment", "MS_NODE_ID", "environment", "MS_WORKER_NUM", "environment", "MS_SCHED_HOST", workers=2
    )
    assert local_jobs.client.get_job_pod_names("job") == ["job-scheduler-0", "job-worker-0", "job-worker-1"]
    logs, _ = local_jobs.client.get_job_logs("job", replica_type="worker")
    assert logs == {
        f"job-worker-{rank}": f"MS_NODE_ID={rank}\nMS_WORKER_NUM=2\nMS_SCHED_HOST=127.0.0.1\n" for rank in (0, 1)
    }
    assert local_jobs.client.get_job_pod_names("job", is_master=True) == ["job-worker-0"]


def test_parameter_servers_have_environment_of_their_role(local_jobs: Any) -> None:
    # `kfp_mindspore.training` refuses them; images with MindSpore before 2.9 use them.
    job = local_jobs.build("environment", "MS_ROLE", "environment", "MS_SERVER_NUM", workers=2)
    worker = job.ms_replica_specs["Worker"]
    job.ms_replica_specs["PS"] = ReplicaSpec(2, worker.restart_policy, worker.template)
    local_jobs.client.create_job(job)
    assert local_jobs.wait().status.state == "Succeeded"
    roles = {"scheduler-0": "MS_SCHED", "ps-0": "MS_PSERVER", "ps-1": "MS_PSERVER"}
    roles |= {f"worker-{rank}": "MS_WORKER" for rank in (0, 1)}
    logs, _ = local_jobs.client.get_job_logs("job", is_master=False)
    assert logs == {f"job-{name}": f"MS_ROLE={role}\nMS_SERVER_NUM=2\n" for name, role in roles.items()}


def test_success_policy_selects_deciding_workers(local_jobs: Any) -> None:
    job = local_jobs.build("exit-worker", 1, 4, "sleep", 0.3, workers=2, restart_policy="Never")
    job.success_policy = "AllWorkers"
    local_jobs.client.create_job(job)
    assert "job-worker-1 ended with exit code 4" in local_jobs.wait().status.get_condition("Failed").message


def test_failed_job_has_reason_and_message(local_jobs: Any) -> None:
    local_jobs.submit("print", "first", "print", "last", "exit", 3, restart_policy="Never")
    with pytest.raises(JobFailedError) as caught:
        local_jobs.client.wait_for_job_conditions("job")
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.message == "job job failed: job-worker-0 ended with exit code 3"
    assert caught.value.log == ("first", "last")


def test_scheduler_that_hangs_is_the_failure(local_jobs: Any) -> None:
    job = local_jobs.build("sleep", 60, workers=2, restart_policy="Never")
    template = local_jobs.build("exit", 76).ms_replica_specs["Worker"].template
    job.ms_replica_specs["Scheduler"] = ReplicaSpec(1, "Never", template)
    local_jobs.client.create_job(job)
    failed = local_jobs.wait().status.get_condition("Failed")
    assert (failed.reason, failed.message) == (
        "JobFailed",
        "job-scheduler-0 ended with exit code 76 (no step completed for 600 s)",
    )


@pytest.mark.parametrize(
    ("policy", "code", "starts", "restarts", "state"),
    [
        ("OnFailure", 1, 2, 1, "Succeeded"),
        ("Always", 1, 2, 1, "Succeeded"),
        ("ExitCode", 137, 2, 1, "Succeeded"),
        ("ExitCode", 143, 2, 1, "Succeeded"),
        ("ExitCode", 1, 1, 0, "Failed"),
        ("Never", 143, 1, 0, "Failed"),
    ],
)
def test_restart_policy(local_jobs: Any, policy: str, code: int, starts: int, restarts: int, state: str) -> None:
    job = local_jobs.run("once", code, restart_policy=policy)
    assert job.status.state == state
    assert len((local_jobs.path / "starts").read_text().splitlines()) == starts
    assert local_jobs.client.get_job_pods("job")[0].restarts == restarts
    assert (job.status.restarts, job.status.attempt) == (restarts, starts - 1)


def test_restart_restarts_whole_gang(local_jobs: Any) -> None:
    local_jobs.run("sleep", 0.7, "once-worker", 1, 137, "sleep", 0.5, workers=2, restart_policy="ExitCode")
    members = [line.split()[0] for line in (local_jobs.path / "starts").read_text().splitlines()]
    assert sorted(members) == sorted(["MS_SCHED-scheduler-0", "MS_WORKER-0", "MS_WORKER-1"] * 2)


def test_port_taken_in_meantime_is_replaced(local_jobs: Any) -> None:
    script = local_jobs.path / "script.py"
    script.write_text(TAKE_PORT)
    job = local_jobs.build("exit", 0, workers=2, restart_policy="Never")
    job.ms_replica_specs["Worker"].container["command"] = ["python", str(script), str(local_jobs.path)]
    local_jobs.client.create_job(job)
    status = local_jobs.wait().status
    assert (status.state, status.restarts, status.attempt) == ("Succeeded", 0, 1)
    assert "PortTaken" in [event.reason for event in local_jobs.client.backend.list_events("job", "default")]


def test_preemption_is_not_counted(local_jobs: Any, eventually: Any) -> None:
    local_jobs.submit("sleep", 600, restart_policy="ExitCode", backoff_limit=0)
    first = local_jobs.read_pid()
    os.kill(first, signal.SIGTERM)
    assert eventually(lambda: local_jobs.read_pid() != first)
    status = local_jobs.wait("job", "Running").status
    assert (status.restarts, status.attempt) == (0, 1)
    assert status.failure.message == "job-worker-0 ended with exit code 143 (terminated by SIGTERM from outside)"


def test_script_that_exits_with_143_by_itself_is_limited(local_jobs: Any) -> None:
    job = local_jobs.run("print", "why", "exit", 143, restart_policy="ExitCode", backoff_limit=1)
    assert find_conditions(job)["Failed"] == "BackoffLimitExceeded"
    assert (job.status.restarts, job.status.failure.log[-1]) == (1, "why")


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 32 MB of memory."""
    roots = [path for path in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if os.access(path, os.W_OK)]
    if not roots:
        pytest.skip("control groups can only be made by root")
    group = roots[0] / f"kfp-mindspore-test-{os.getpid()}"
    group.mkdir()
    limits = [group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()]
    try:
        if not limits:
            pytest.skip(f"{roots[0]} has no memory controller")
        limits[0].write_text(str(2**25))
        yield group
    finally:
        group.rmdir()


def test_out_of_memory_is_named(local_jobs: Any, small_group: Path) -> None:
    # Not bytearray(size), whose pages of zeros are allocated when they are written.
    script = f"echo 0 > {small_group}/cgroup.procs; exec python -c 'b\"1\" * 2**27'"
    job = local_jobs.build("exit", 0, restart_policy="Never")
    job.ms_replica_specs["Worker"].container["command"] = ["sh", "-c", script]
    local_jobs.client.create_job(job)
    failure = local_jobs.wait().status.failure
    assert (failure.exit_code, failure.reason) == (137, "OOMKilled")
    assert "(out of memory: killed by the kernel's OOM killer)" in failure.message


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_scale_restarts_with_another_number_of_workers(
    local_jobs: Any, eventually: Any, before: int, after: int
) -> None:
    local_jobs.submit("environment", "MS_WORKER_NUM", "save-on-term", "sleep", 600, workers=before)
    for rank in range(before):
        local_jobs.read_pid(f"pid-MS_WORKER-{rank}")
    eventually((local_jobs.path / "ready").exists)
    patch = {"spec": {"msReplicaSpecs": {"Worker": {"replicas": after}}}}
    local_jobs.client.update_job(patch, "job")
    eventually(lambda: len(local_jobs.client.get_job_pods("job")) == after + (after > 1))
    eventually(lambda: local_jobs.client.get_job("job").status.workers == f"{after}/{after}")
    assert (local_jobs.path / "saved").exists(), "terminated by SIGTERM"
    status = local_jobs.client.get_job("job").status
    assert (status.restarts, status.attempt) == (0, 1)


def test_backoff_limit(local_jobs: Any) -> None:
    job = local_jobs.run("print", "why", "exit", 1, restart_policy="OnFailure", backoff_limit=1)
    assert find_conditions(job)["Failed"] == "BackoffLimitExceeded"
    assert "restarted 1 of 1 times" in job.status.get_condition("Failed").message
    failure = job.status.failure
    assert (failure.pod, failure.exit_code, failure.log[-1], failure.attempt) == ("job-worker-0", 1, "why", 1)
    assert len((local_jobs.path / "starts").read_text().splitlines()) == 2


def test_deadline(local_jobs: Any) -> None:
    start = time.monotonic()
    job = local_jobs.run("sleep", 600, active_deadline_seconds=1)
    assert find_conditions(job)["Failed"] == "DeadlineExceeded"
    assert 1 <= time.monotonic() - start < 300
    assert local_jobs.client.get_job_pods("job")[0].reason == "Killed"


def test_suspend_and_resume(local_jobs: Any) -> None:
    local_jobs.submit("save-on-term", "sleep", 600)
    pid = local_jobs.read_pid()
    local_jobs.wait("job", "Running")
    local_jobs.client.update_job({"spec": {"runPolicy": {"suspend": True}}}, "job")
    suspended = local_jobs.wait("job", "Suspended")
    assert "Running" not in find_conditions(suspended)
    assert suspended.status.start_time is None
    assert suspended.metadata["generation"] == 2
    assert local_jobs.client.get_job_pods("job") == []
    (local_jobs.path / "pid-alone-0").unlink()
    local_jobs.client.update_job({"spec": {"runPolicy": {"suspend": False}}}, "job")
    local_jobs.wait("job", "Running")
    assert local_jobs.read_pid() != pid


def test_job_can_be_born_suspended(local_jobs: Any) -> None:
    job = local_jobs.build("exit", 0).to_dict()
    job["spec"]["runPolicy"]["suspend"] = True
    local_jobs.client.create_job(job)
    assert "Running" not in find_conditions(local_jobs.wait("job", "Suspended"))
    local_jobs.client.update_job({"spec": {"runPolicy": {"suspend": None}}}, "job")
    assert local_jobs.wait().status.state == "Succeeded"


def test_update_refuses_immutable_fields(local_jobs: Any) -> None:
    local_jobs.submit("sleep", 600)
    with pytest.raises(ValidationError, match="msReplicaSpecs: cannot be changed"):
        local_jobs.client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"restartPolicy": "Never"}}}}, "job")
    with pytest.raises(ValidationError, match="backoffLimit: must be ≥ 0"):
        local_jobs.client.update_job({"spec": {"runPolicy": {"backoffLimit": -1}}}, "job")
    local_jobs.client.update_job({"metadata": {"labels": {"team": "vision"}}}, "job")
    assert local_jobs.client.get_job("job").metadata["labels"] == {"team": "vision"}


@pytest.mark.parametrize(("policy", "runs_on", "has_logs"), [("Running", False, True), ("None", True, True)])
def test_clean_pod_policy(local_jobs: Any, policy: str, runs_on: bool, has_logs: bool) -> None:
    # Worker 0 succeeds; worker 1 gets SIGTERM.
    local_jobs.run("print", "there", "exit-worker", 0, 0, "sleep", 8, workers=2, clean_pod_policy=policy)
    pods = {pod.name: pod for pod in local_jobs.client.get_job_pods("job")}
    assert (pods["job-worker-1"].phase == "Running") == runs_on
    assert bool(local_jobs.client.get_job_logs("job")[0]["job-worker-0"]) == has_logs


def test_clean_pod_policy_all_removes_pods_and_logs(local_jobs: Any, eventually: Any) -> None:
    local_jobs.run("print", "there", clean_pod_policy="All")
    eventually(lambda: local_jobs.client.get_job_pods("job") == [])
    assert not list(local_jobs.home.glob("jobs/default/job/logs/job-*"))
    assert local_jobs.client.is_job_succeeded("job")


def test_ttl_removes_job_without_client(local_jobs: Any, eventually: Any) -> None:
    local_jobs.run("exit", 0, ttl_seconds_after_finished=0)
    supervisor = local_jobs.read_supervisor()
    eventually(lambda: not (local_jobs.home / "jobs" / "default" / "job").exists())
    eventually(lambda: not supervisor.is_alive())
    assert local_jobs.client.list_jobs() == []


def test_processes_have_submitters_directory_and_environment(
    local_jobs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROM_OUTSIDE", "a")
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    (tmp_path / "script.py").write_text("import os; print(os.getcwd(), os.environ['FROM_OUTSIDE'], os.environ['OWN'])")
    # A file of the user's must not get in the way of the supervisor's imports.
    (tmp_path / "select.py").write_text("raise SystemExit('shadowed')")
    job = local_jobs.build("exit", 0, env={"OWN": "b"})
    job.ms_replica_specs["Worker"].container["command"] = ["python", "script.py"]
    local_jobs.client.create_job(job)
    local_jobs.wait()
    assert local_jobs.client.get_job_logs("job")[0]["job-worker-0"].split() == [str(tmp_path), "a", "b"]


def test_another_process_lists_follows_and_deletes(local_jobs: Any) -> None:
    local_jobs.submit("print", "early", "sleep", 1, "print", "late")
    program = """
from kfp_mindspore.msjob import MSJobClient
client = MSJobClient()
assert [job.name for job in client.list_jobs()] == ["job"]
logs, events = client.get_job_logs("job", follow=True, verbose=True)
assert client.wait_for_job_conditions("job").status.state == "Succeeded"
client.delete_job("job")
print(sorted(events))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[Pod job-worker-0]: early", "[Pod job-worker-0]: late", "['job']"]
    with pytest.raises(NotFoundError):
        local_jobs.client.get_job("job")


def test_job_outlives_process_that_submitted_it(local_jobs: Any) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3] / "support" / "training")!r})
from pathlib import Path
from jobs import JobFixture
JobFixture(Path({str(local_jobs.path)!r})).submit("sleep", 0.5, "once", 1, "print", "done")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert local_jobs.wait().status.state == "Succeeded"


def test_names_are_unique(local_jobs: Any) -> None:
    local_jobs.submit("sleep", 600)
    with pytest.raises(AlreadyExistsError, match="job job exists already in namespace default"):
        local_jobs.submit("sleep", 600)
    local_jobs.submit("exit", 0, namespace="other")
    assert [job.namespace for job in local_jobs.client.list_jobs("other")] == ["other"]


def test_missing_jobs_raise_not_found(local_jobs: Any) -> None:
    for call in (
        local_jobs.client.get_job,
        local_jobs.client.delete_job,
        local_jobs.client.get_job_pods,
        local_jobs.client.get_job_logs,
    ):
        with pytest.raises(NotFoundError, match="job nothing does not exist"):
            call("nothing")
    assert local_jobs.client.list_jobs("nowhere") == []
    with pytest.raises(NotFoundError, match="no such job"):
        local_jobs.client.get_job("../default")


def test_delete_leaves_time_to_save(local_jobs: Any, eventually: Any) -> None:
    local_jobs.submit("save-on-term", "sleep", 600)
    eventually((local_jobs.path / "ready").exists)
    local_jobs.client.delete_job("job")
    assert (local_jobs.path / "saved").read_text() == str(local_jobs.read_pid())
    assert not (local_jobs.home / "jobs" / "default" / "job").exists()


def test_delete_kills_processes_that_ignore_sigterm(local_jobs: Any, eventually: Any) -> None:
    local_jobs.submit("ignore-term", "child", "sleep", 600)
    eventually((local_jobs.path / "child-alone-0").exists)
    start = time.monotonic()
    local_jobs.client.delete_job("job", delete_options={"gracePeriodSeconds": 1})
    # The job's own grace period is 30 s.
    assert time.monotonic() - start < 30
    assert not any(ProcessIdentity.of(pid) for pid in local_jobs.read_pids())


def test_command_that_cannot_run_fails_at_once(local_jobs: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    job = local_jobs.build("exit", 0, restart_policy="Always")
    job.ms_replica_specs["Worker"].container["command"] = [str(broken)]
    local_jobs.client.create_job(job)
    failed = local_jobs.wait()
    assert find_conditions(failed)["Failed"] == "StartError"
    assert "No such file or directory" in failed.status.get_condition("Failed").message


def test_wait_ends_in_time(local_jobs: Any) -> None:
    local_jobs.submit("sleep", 600)
    with pytest.raises(WaitTimeoutError, match="not Succeeded, after") as caught:
        local_jobs.client.wait_for_job_conditions("job", wait_timeout=0.2)
    assert isinstance(caught.value, TimeoutError)


def test_run_job_shows_lines_and_returns_status(local_jobs: Any) -> None:
    lines: list[str] = []
    status = run_job(local_jobs.client, local_jobs.build("print", "a", "print", "b"), on_log=lines.append)
    assert status.has("Succeeded")
    assert lines == ["a", "b"]


def test_run_job_raises_with_last_lines(local_jobs: Any) -> None:
    with pytest.raises(JobFailedError) as caught:
        run_job(local_jobs.client, local_jobs.build("print", "why", "exit", 1, restart_policy="Never"), on_log=None)
    assert caught.value.log == ("why",)


def test_run_job_deletes_job_on_timeout(local_jobs: Any) -> None:
    with pytest.raises(WaitTimeoutError):
        run_job(local_jobs.client, local_jobs.build("sleep", 600), timeout=0.5, on_log=None)
    assert local_jobs.client.list_jobs() == []


def test_environment_picks_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    backend = MSJobClient().backend
    assert isinstance(backend, LocalBackend)
    assert backend.home == tmp_path
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    assert isinstance(MSJobClient().backend, KubernetesBackend)
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "moon")
    with pytest.raises(UserError, match="got 'moon'"):
        MSJobClient()
