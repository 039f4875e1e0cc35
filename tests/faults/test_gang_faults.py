"""Gangs of MindSpore workers with faults: what was lost, and what the status reports."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.api.spec import ElasticPolicy
from tests.support.mindspore_processes import MindSporeProcesses, start_gang
from tests.support.training.jobs import eventually

pytestmark = [pytest.mark.mindspore, pytest.mark.timeout(900)]

endurance = pytest.mark.skipif(
    "KFP_MINDSPORE_ENDURANCE" not in os.environ, reason="takes minutes: set KFP_MINDSPORE_ENDURANCE=1"
)
SCRIPT = Path(__file__).with_name("gang_script.py")
STEPS = 8
EPOCHS = 5


class Gang:
    """A job of the script in a directory."""

    def __init__(self, local_jobs: Any) -> None:
        self.local_jobs = local_jobs
        self.root: Path = local_jobs.path

    def run(self, *faults: dict[str, Any], epochs: int = EPOCHS, timeout: float = 800, **options: Any) -> MSJob:
        self.start(*faults, epochs=epochs, **options)
        return self.wait(timeout)

    def start(
        self,
        *faults: dict[str, Any],
        epochs: int = EPOCHS,
        elastic: ElasticPolicy | None = None,
        pause: float = 0.0,
        **options: Any,
    ) -> None:
        write_plan(self.root, epochs, *faults, pause=pause)
        job = self.local_jobs.build(
            "exit", 0, **{"workers": 2, "restart_policy": "OnFailure", "backoff_limit": 9, **options}
        )
        job.elastic_policy = elastic
        job.ms_replica_specs["Worker"].container["command"] = ["python", str(SCRIPT), str(self.root)]
        self.local_jobs.client.create_job(job)

    def wait(self, timeout: float = 800) -> MSJob:
        conditions = {"Succeeded", "Failed"}
        job: MSJob = self.local_jobs.client.wait_for_job_conditions(
            "job", expected_conditions=conditions, wait_timeout=timeout
        )
        return job

    def list_events(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.local_jobs.client.backend.list_events("job", "default")]

    def list_steps(self, rank: int = 0) -> dict[int, list[int]]:
        """Return the steps of each attempt."""
        return read_steps(self.root, rank)

    def list_sizes(self) -> list[int]:
        """Return the number of workers of each attempt."""
        return [int(line.split()[0]) for line in (self.root / "starts-worker-0").read_text().splitlines()]

    def read_log(self, pod: str) -> str:
        return str(self.local_jobs.client.backend.read_log("job", "default", pod))

    def list_running(self, attempt: int) -> list[Any]:
        """Return the members of an attempt; none before all run."""
        if self.local_jobs.client.get_job("job").status.attempt != attempt:
            return []
        pods = self.local_jobs.client.get_job_pods("job")
        return list(pods) if all(pod.phase == "Running" and pod.pid for pod in pods) else []

    def assert_restarts(self, *parts: str) -> None:
        """Assert what the events of the restarts report."""
        messages = [message for reason, message in self.list_events() if reason == "JobRestarting"]
        for message, part in zip(messages, parts, strict=True):
            assert part in message

    def assert_lost_at_most(self, interval: int) -> None:
        """Assert that each attempt repeats at most an interval of steps, and that none is skipped."""
        steps = [numbers for _, numbers in sorted(self.list_steps().items())]
        for numbers in steps:
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
        for before, after in pairwise(steps):
            assert 0 <= before[-1] + 1 - after[0] <= interval

    def assert_result(self, expected: list[np.ndarray]) -> None:
        assert_weights(self.root, expected)


@pytest.fixture
def gang(local_jobs: Any, monkeypatch: pytest.MonkeyPatch) -> Gang:
    monkeypatch.chdir(local_jobs.path)
    monkeypatch.setenv("GLOG_v", "4")
    monkeypatch.setenv("KFP_MINDSPORE_HANG_SECONDS", "20")
    return Gang(local_jobs)


@pytest.fixture(scope="module")
def expected(mindspore_processes: MindSporeProcesses, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """Return the weights of one worker without faults."""
    return train_alone(mindspore_processes, tmp_path_factory.mktemp("alone"), EPOCHS)


def train_alone(processes: MindSporeProcesses, root: Path, epochs: int) -> list[np.ndarray]:
    write_plan(root, epochs)
    code, output = processes.run([SCRIPT, root], root)
    assert code == 0, output
    with np.load(root / "weights.npz") as archive:
        return [archive[name] for name in archive]


def write_plan(root: Path, epochs: int, *faults: dict[str, Any], pause: float = 0.0) -> None:
    (root / "plan.json").write_text(json.dumps({"epochs": epochs, "faults": faults, "pause": pause}))


def read_steps(root: Path, rank: int = 0) -> dict[int, list[int]]:
    """Return the steps of each attempt."""
    steps: dict[int, list[int]] = {}
    for line in (root / f"steps-{rank}").read_text().splitlines():
        attempt, step = map(int, line.split())
        steps.setdefault(attempt, []).append(step)
    return steps


def assert_weights(root: Path, expected: list[np.ndarray]) -> None:
    with np.load(root / "weights.npz") as archive:
        for name, value in zip(archive, expected, strict=True):
            np.testing.assert_allclose(archive[name], value, atol=1e-5)


def fault(attempt: int, rank: int, phase: str, do: str, number: int = 0) -> dict[str, Any]:
    return {"attempt": attempt, "rank": rank, "phase": phase, "do": do, "number": number}


def test_killed_worker_lost_scheduler_and_hang(gang: Gang, expected: list[np.ndarray]) -> None:
    """The gang restarts after each fault, loses at most one checkpoint interval, and ends with the same weights."""
    job = gang.run(
        fault(0, 1, "step", "kill-worker-1", STEPS + 4),
        fault(1, 0, "step", "kill-scheduler", 2 * STEPS + 1),
        # A slow but living peer, then a hung one.
        fault(2, 0, "step", "sleep8", 3 * STEPS - 1),
        fault(2, 1, "step", "hang", 3 * STEPS + 2),
    )
    assert job.status.state == "Succeeded", job.status
    assert (job.status.restarts, job.status.attempt) == (3, 3)
    assert job.status.failure.pod.startswith("job-worker-"), "of the newest attempt that failed"
    gang.assert_result(expected)
    gang.assert_lost_at_most(STEPS)
    gang.assert_restarts(
        "job-worker-1 ended with exit code 137; restart 1 of 9",
        "job-scheduler-0 ended with exit code 137; restart 2 of 9",
        "job-worker-1 is outside of a step after step 25",
    )
    for rank in (0, 1):
        assert "most recent call first" in gang.read_log(f"job-worker-{rank}"), "the stacks of each rank"
    assert "in do\n" in gang.read_log("job-worker-1"), "the line that hangs"


@pytest.mark.parametrize("victim", ["worker-0", "worker-1", "scheduler"])
@endurance
def test_each_member_killed_at_each_phase(gang: Gang, expected: list[np.ndarray], victim: str) -> None:
    rank = 1 if victim == "worker-1" else 0
    job = gang.run(
        fault(0, rank, "rendezvous", f"kill-{victim}"),
        fault(1, rank, "compile", f"kill-{victim}"),
        fault(2, rank, "step", f"kill-{victim}", STEPS + 4),
        fault(3, 0, "checkpoint", f"kill-{victim}", 3),
        fault(4, rank, "step", f"kill-{victim}", EPOCHS * STEPS),
        # The checkpoint of an epoch is complete four steps later.
        pause=0.1,
    )
    assert job.status.state == "Succeeded", job.status
    assert (job.status.restarts, job.status.attempt) == (5, 5)
    pod = f"job-{victim}" if victim != "scheduler" else "job-scheduler-0"
    gang.assert_restarts(*[f"{pod} ended with exit code 137; restart {number} of 9" for number in range(1, 6)])
    gang.assert_result(expected)
    steps = gang.list_steps()
    assert sorted(steps) == [2, 3, 4, 5], "no step before the first two"
    assert [steps[attempt][0] for attempt in steps] == [1, STEPS + 1, 2 * STEPS + 1, (EPOCHS - 1) * STEPS + 1]
    # The third checkpoint was being written: the second one was the newest.
    assert [steps[2][-1], steps[4][-1]] == [STEPS + 3, EPOCHS * STEPS - 1]
    assert 3 * STEPS <= steps[3][-1] < 4 * STEPS


@endurance
def test_exception_preemption_stopped_worker_and_missing_worker(gang: Gang, expected: list[np.ndarray]) -> None:
    job = gang.run(
        fault(0, 1, "step", "raise", 2 * STEPS + 3),
        fault(1, 1, "step", "terminate", 2 * STEPS + 6),
        # A stopped process writes no heartbeat, and one that never joins keeps the others in init().
        fault(2, 0, "step", "stop", 3 * STEPS + 2),
        fault(3, 1, "rendezvous", "hang"),
    )
    assert job.status.state == "Succeeded", job.status
    assert (job.status.restarts, job.status.attempt) == (3, 4), "the preemption is not counted"
    gang.assert_result(expected)
    gang.assert_lost_at_most(STEPS)
    assert gang.list_steps()[2][0] == 2 * STEPS + 7, "the preemption lost no step"
    gang.assert_restarts(
        "job-worker-1 ended with exit code 1",
        # Its last heartbeat is up to a second old.
        "job-worker-0 is outside of a step after step",
        # The scheduler ends itself, and worker 0 is killed, after equally long waits.
        "for 20 s; job-worker-1 has not started to train)",
    )


def test_killed_gang_continues_as_without_kill(
    mindspore_processes: MindSporeProcesses, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """10 epochs of two workers are 4, a kill of all processes, and 6."""
    epochs, environment = 10, {"MS_NODE_TIMEOUT": "300"}
    expected = train_alone(mindspore_processes, tmp_path_factory.mktemp("alone"), epochs)
    # The first step of the fifth epoch is held until the fourth checkpoint is complete.
    write_plan(tmp_path, epochs, fault(0, 0, "step", "hang", 4 * STEPS + 1))
    killed = start_gang(mindspore_processes, [SCRIPT, tmp_path], tmp_path, 2, environment)
    killed[1].wait_for(tmp_path / "checkpoints" / f"00004-{4 * STEPS}")
    for process in killed:
        process.kill()
        assert process.wait() == -signal.SIGKILL

    _, *workers = start_gang(mindspore_processes, [SCRIPT, tmp_path], tmp_path, 2, environment)
    code, output = workers[0].finish()
    assert code == 0, output
    assert read_steps(tmp_path) == {0: list(range(1, 4 * STEPS + 1)), 1: list(range(4 * STEPS + 1, 10 * STEPS + 1))}
    assert_weights(tmp_path, expected)


def test_elastic(gang: Gang, expected: list[np.ndarray]) -> None:
    """A worker that fails again shortly after its return is left out; the gang grows when the job is scaled."""
    gang.start(
        fault(0, 1, "step", "kill-worker-1", STEPS + 2),
        fault(1, 1, "rendezvous", "kill-worker-1"),
        fault(2, 0, "step", "sleep10", 2 * STEPS + 5),
        elastic=ElasticPolicy(min_replicas=1, max_replicas=2, grace_seconds=300),
    )
    client = gang.local_jobs.client
    eventually((gang.root / "fault-2").exists, 300)
    assert client.get_job("job").status.workers == "1/2"
    # Another number and back: the missing worker is tried again.
    for workers in (1, 2):
        client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"replicas": workers}}}}, "job")
        eventually(lambda: (job := client.get_job("job")).status.observed_generation == job.metadata["generation"])
    job = gang.wait()
    assert job.status.state == "Succeeded", job.status
    assert gang.list_sizes() == [2, 2, 1, 2]
    assert job.status.restarts == 2, "a change of the number of workers is not counted"
    steps = gang.list_steps()
    assert steps[3][0] == steps[2][-1] + 1, "the gang grows from a checkpoint of the last step"
    gang.assert_lost_at_most(STEPS)
    gang.assert_result(expected)
    reasons = [reason for reason, _ in gang.list_events()]
    assert reasons.count("JobRestarting") == 2
    assert reasons.count("JobScaled") == 1


@endurance
@pytest.mark.timeout(3600)
def test_random_kills(
    gang: Gang, mindspore_processes: MindSporeProcesses, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 kills of random members at random times, and before them a worker that is slow for 60 s."""
    epochs, kills, generator = 40, 20, random.Random(1)
    monkeypatch.setenv("KFP_MINDSPORE_HANG_SECONDS", "120")
    gang.start(fault(0, 1, "step", "sleep60", 3), epochs=epochs, pause=0.3, backoff_limit=kills)
    eventually((gang.root / "fault-0").exists, 300)
    eventually(lambda: len(gang.list_steps()[0]) > 4, 300)
    for number in range(kills):
        pods = eventually(functools.partial(gang.list_running, number), 300)
        time.sleep(generator.uniform(0, 12))
        os.kill(generator.choice(pods).pid, signal.SIGKILL)
    job = gang.wait(1800)
    assert job.status.state == "Succeeded", job.status
    assert (job.status.restarts, job.status.attempt) == (kills, kills)
    gang.assert_lost_at_most(STEPS)
    gang.assert_result(train_alone(mindspore_processes, tmp_path_factory.mktemp("alone"), epochs))
