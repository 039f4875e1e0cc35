"""Jobs whose processes, supervisor or owner are killed, or whose disk is full: nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.local.process import ProcessIdentity

SUPPORT = Path(__file__).parents[1] / "support" / "training"
FOREGROUND = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
from pathlib import Path
from jobs import JobFixture
from kfp_mindspore.msjob import run_job
from kfp_mindspore.local.lease import Lease

local_jobs = JobFixture(Path(sys.argv[1]))
import os
if sys.argv[2] == "lease":
    lease = Lease.hold(local_jobs.path / "lease")
    os.environ.update(lease.environment)
run_job(local_jobs.client, local_jobs.build(*sys.argv[3:], workers=2, restart_policy="Never"))
"""


def is_any_alive(pids: list[int]) -> bool:
    """Return whether any of these processes runs; zombies do not."""
    return any(ProcessIdentity.of(pid) for pid in pids)


def fill(disk: Path) -> None:
    """Write until there is no room left."""
    with (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)


@pytest.fixture
def gang(local_jobs: Any) -> tuple[Any, dict[str, int]]:
    """Run a job of two workers, each with a child in its own session; return it and all pids."""
    local_jobs.submit("child", "sleep", 600, workers=2, restart_policy="Never")
    names = ("MS_SCHED-scheduler-0", "MS_WORKER-0", "MS_WORKER-1")
    return local_jobs, {
        f"{kind}-{name}": local_jobs.read_pid(f"{kind}-{name}") for kind in ("pid", "child") for name in names
    }


@pytest.fixture
def foreground(local_jobs: Any) -> Iterator[Any]:
    """Return a function that starts a foreground run of a job in a process of its own."""
    started = []

    def start(lease: str, *actions: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", FOREGROUND, str(local_jobs.path), lease, *map(str, actions)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("victim", ["pid-MS_WORKER-1", "pid-MS_WORKER-0", "pid-MS_SCHED-scheduler-0"])
def test_killed_member_ends_its_peers_at_once(gang: Any, eventually: Any, victim: str) -> None:
    local_jobs, pids = gang
    start = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    eventually(lambda: not is_any_alive(list(pids.values())), 5)
    # The aim is one second; five leave room for a busy machine.
    assert time.monotonic() - start < 5
    failed = local_jobs.wait().status.get_condition("Failed")
    assert failed.reason == "JobFailed"
    assert "ended with exit code 137" in failed.message
    reasons = {pod.reason for pod in local_jobs.client.get_job_pods("job")}
    assert reasons == {"Error", "Killed"}


def test_killed_worker_is_restarted_with_its_gang(local_jobs: Any, eventually: Any) -> None:
    local_jobs.submit("sleep", 600, workers=2, restart_policy="ExitCode")
    first = local_jobs.read_pid("pid-MS_WORKER-0")
    victim = local_jobs.read_pid("pid-MS_WORKER-1")
    os.kill(victim, signal.SIGKILL)
    eventually(
        lambda: local_jobs.read_pid("pid-MS_WORKER-0") != first and local_jobs.read_pid("pid-MS_WORKER-1") != victim
    )
    assert not is_any_alive([first, victim])
    eventually(lambda: local_jobs.client.is_job_running("job") and not local_jobs.client.is_job_restarting("job"))
    assert {pod.restarts for pod in local_jobs.client.get_job_pods("job")} == {1}


def test_processes_of_killed_supervisor_end(local_jobs: Any, eventually: Any) -> None:
    local_jobs.submit("sleep", 600, workers=2)
    pids = [local_jobs.read_pid(f"pid-{name}") for name in ("MS_SCHED-scheduler-0", "MS_WORKER-0", "MS_WORKER-1")]
    os.kill(local_jobs.read_supervisor().pid, signal.SIGKILL)
    eventually(lambda: not is_any_alive(pids), 5)
    failed = local_jobs.wait().status.get_condition("Failed")
    assert failed.reason == "SupervisorLost"
    assert {pod.phase for pod in local_jobs.client.get_job_pods("job")} == {"Failed"}
    local_jobs.client.delete_job("job")
    assert local_jobs.client.list_jobs() == []


def test_descendants_of_killed_supervisor_are_killed(local_jobs: Any, eventually: Any) -> None:
    script = f"cd {local_jobs.path}; sleep 600 & echo $! > new; mv new pid-g; wait"
    job = local_jobs.build("exit", 0)
    job.ms_replica_specs["Worker"].container["command"] = ["sh", "-c", script]
    local_jobs.client.create_job(job)
    pid = local_jobs.read_pid("pid-g")
    local_jobs.wait("job", "Running")
    os.kill(local_jobs.read_supervisor().pid, signal.SIGKILL)
    assert local_jobs.wait().status.get_condition("Failed").reason == "SupervisorLost"
    eventually(lambda: not is_any_alive([pid]), 5)


def test_terminated_supervisor_fails_job_with_reason(local_jobs: Any, eventually: Any) -> None:
    local_jobs.submit("sleep", 600)
    pid = local_jobs.read_pid()
    local_jobs.wait("job", "Running")
    os.kill(local_jobs.read_supervisor().pid, signal.SIGTERM)
    assert local_jobs.wait().status.get_condition("Failed").reason == "SupervisorTerminated"
    assert not is_any_alive([pid])


def test_delete_in_middle_leaves_nothing(gang: Any) -> None:
    local_jobs, pids = gang
    supervisor = local_jobs.read_supervisor()
    local_jobs.client.delete_job("job")
    assert not is_any_alive([*pids.values(), supervisor.pid])
    assert not (local_jobs.home / "jobs" / "default" / "job").exists()
    with pytest.raises(NotFoundError):
        local_jobs.client.get_job("job")


def test_delete_right_after_submit_leaves_nothing(local_jobs: Any, eventually: Any) -> None:
    for number in range(3):
        name = local_jobs.submit("sleep", 600, name=f"job-{number}")
        supervisor = local_jobs.read_supervisor(name)
        local_jobs.client.delete_job(name)
        assert not supervisor.is_alive()
        eventually(lambda: not is_any_alive(local_jobs.read_pids()), 5)


def test_killed_foreground_run_leaves_nothing(local_jobs: Any, foreground: Any, eventually: Any) -> None:
    run = foreground("lease", "ignore-term", "child", "sleep", 600)
    names = ("MS_SCHED-scheduler-0", "MS_WORKER-0", "MS_WORKER-1")
    pids = [local_jobs.read_pid(f"{kind}-{name}") for kind in ("pid", "child") for name in names]
    supervisor = local_jobs.read_supervisor()
    run.kill()
    eventually(lambda: not is_any_alive([*pids, supervisor.pid]), 15)
    assert local_jobs.wait().status.get_condition("Failed").reason == "OwnerGone"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_interrupted_foreground_run_deletes_its_job(
    local_jobs: Any, foreground: Any, eventually: Any, number: int, code: int
) -> None:
    run = foreground("no-lease", "child", "sleep", 600)
    pids = [local_jobs.read_pid(f"pid-MS_WORKER-{index}") for index in (0, 1)]
    eventually(lambda: local_jobs.client.get_job_pods("job"))
    run.send_signal(number)
    run.communicate(timeout=30)
    assert run.returncode == code
    assert not is_any_alive(pids)
    assert local_jobs.client.list_jobs() == []


def test_job_of_ended_run_is_not_started(local_jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_LEASE", str(local_jobs.path / "released"))
    with pytest.raises(Exception, match="the run that it would belong to is gone"):
        local_jobs.submit("exit", 0)
    assert local_jobs.client.list_jobs() == []


def test_second_process_waits_through_restart(local_jobs: Any) -> None:
    local_jobs.submit("sleep", 0.5, "once", 1, "sleep", 0.5, "print", "done")
    program = "from kfp_mindspore.msjob import MSJobClient; MSJobClient().wait_for_job_conditions('job')"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert local_jobs.client.get_job_logs("job")[0] == {"job-worker-0": "done\n"}


def test_logs_that_cannot_be_opened_fail_job(local_jobs: Any, eventually: Any) -> None:
    document = local_jobs.build("exit", 0).to_dict()
    document["spec"]["runPolicy"]["suspend"] = True
    local_jobs.client.create_job(document)
    local_jobs.wait("job", "Suspended")
    # As on a full disk: the file of its output cannot be made.
    (local_jobs.home / "jobs" / "default" / "job" / "logs" / "job-worker-0.log").mkdir()
    local_jobs.client.update_job({"spec": {"runPolicy": {"suspend": False}}}, "job")
    failed = local_jobs.wait().status.get_condition("Failed")
    assert failed.reason == "StartError"
    assert "Is a directory" in failed.message


def test_end_is_recorded_on_full_disk(local_jobs: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    disk = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk can only be mounted by root")
    try:
        local_jobs.home = disk
        local_jobs.client.backend.home = disk
        local_jobs.submit("sleep", 0.5, "print", "x" * 2000, "exit", 5, restart_policy="Never")
        local_jobs.wait("job", "Running")
        with pytest.raises(OSError, match="No space left"):
            fill(disk)
        # Python itself cannot write its output, which is its own failure.
        assert "job-worker-0 ended with exit code" in local_jobs.wait().status.get_condition("Failed").message
        with pytest.raises(Exception, match="cannot be written"):
            local_jobs.submit("exit", 0, name="another")
        local_jobs.client.delete_job("job")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
