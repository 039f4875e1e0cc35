"""Gangs of MindSpore workers with faults: what was lost, and what the status reports."""

from __future__ import annotations

import json
import os
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.spec import ElasticPolicy
from tests.support.mindspore_processes import MindSporeProcesses

pytestmark = [pytest.mark.mindspore, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("gang_script.py")
STEPS = 8
EPOCHS = 5


class Gang:
    """A job of the script in a directory."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk
        self.root: Path = desk.path

    def run(self, *faults: dict[str, Any], epochs: int = EPOCHS, timeout: float = 800, **options: Any) -> MSJob:
        self.start(*faults, epochs=epochs, **options)
        return self.wait(timeout)

    def start(
        self,
        *faults: dict[str, Any],
        epochs: int = EPOCHS,
        elastic: ElasticPolicy | None = None,
        spares: int = 0,
        **options: Any,
    ) -> None:
        (self.root / "plan.json").write_text(json.dumps({"epochs": epochs, "faults": faults}))
        job = self.desk.build("exit", 0, **{"workers": 2, "restart_policy": "OnFailure", "backoff_limit": 9, **options})
        job.elastic_policy, job.warm_spares = elastic, spares
        job.ms_replica_specs["Worker"].container["command"] = ["python", str(SCRIPT), str(self.root)]
        self.desk.client.create_job(job)

    def wait(self, timeout: float = 800) -> MSJob:
        conditions = {"Succeeded", "Failed"}
        job: MSJob = self.desk.client.wait_for_job_conditions(
            "job", expected_conditions=conditions, wait_timeout=timeout
        )
        return job

    def list_events(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.desk.client.backend.list_events("job", "default")]

    def list_steps(self, rank: int = 0) -> dict[int, list[int]]:
        """Return the steps of each attempt."""
        steps: dict[int, list[int]] = {}
        for line in (self.root / f"steps-{rank}").read_text().splitlines():
            attempt, step = map(int, line.split())
            steps.setdefault(attempt, []).append(step)
        return steps

    def list_sizes(self) -> list[int]:
        """Return the number of workers of each attempt."""
        return [int(line.split()[0]) for line in (self.root / "starts-worker-0").read_text().splitlines()]

    def read_log(self, pod: str) -> str:
        return str(self.desk.client.get_job_logs("job")[0][pod])

    def assert_lost_at_most(self, interval: int) -> None:
        """Assert that each attempt repeats at most an interval of steps, and that none is skipped."""
        steps = [numbers for _, numbers in sorted(self.list_steps().items())]
        for numbers in steps:
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
        for before, after in pairwise(steps):
            assert 0 <= before[-1] + 1 - after[0] <= interval

    def assert_result(self, expected: list[np.ndarray]) -> None:
        with np.load(self.root / "weights.npz") as archive:
            for name, value in zip(archive, expected, strict=True):
                np.testing.assert_allclose(archive[name], value, atol=1e-5)


@pytest.fixture
def gang(desk: Any, monkeypatch: pytest.MonkeyPatch) -> Gang:
    monkeypatch.chdir(desk.path)
    monkeypatch.setenv("GLOG_v", "4")
    monkeypatch.setenv("KFP_MINDSPORE_HANG_SECONDS", "20")
    return Gang(desk)


@pytest.fixture(scope="module")
def expected(mindspore_processes: MindSporeProcesses, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """Return the weights of one worker without faults."""
    root = tmp_path_factory.mktemp("alone")
    (root / "plan.json").write_text(json.dumps({"epochs": EPOCHS, "faults": []}))
    code, output = mindspore_processes.run([SCRIPT, root], root)
    assert code == 0, output
    with np.load(root / "weights.npz") as archive:
        return [archive[name] for name in archive]


def fault(attempt: int, rank: int, phase: str, do: str, number: int = 0) -> dict[str, Any]:
    return {"attempt": attempt, "rank": rank, "phase": phase, "do": do, "number": number}


def test_each_phase(gang: Gang, expected: list[np.ndarray]) -> None:
    """The gang restarts after each fault, loses at most one checkpoint interval, and ends with the same weights."""
    job = gang.run(
        fault(0, 1, "rendezvous", "kill"),
        fault(1, 0, "compile", "kill-scheduler"),
        fault(2, 1, "step", "kill", STEPS + 4),
        fault(3, 0, "checkpoint", "kill", 2),
        fault(4, 1, "step", "raise", 2 * STEPS + 3),
        # A slow but living peer, then a hung one.
        fault(5, 0, "step", "sleep8", 3 * STEPS - 1),
        fault(5, 1, "step", "hang", 3 * STEPS + 2),
        fault(6, 0, "step", "kill", EPOCHS * STEPS),
    )
    assert job.status.state == "Succeeded", job.status
    assert (job.status.restarts, job.status.attempt) == (7, 7)
    gang.assert_result(expected)
    gang.assert_lost_at_most(STEPS)
    messages = [message for reason, message in gang.list_events() if reason == "JobRestarting"]
    for message, part in zip(
        messages,
        [
            "job-worker-1 ended with exit code 137 (killed by SIGKILL); restart 1 of 9",
            "job-scheduler-0 ended with exit code 137",
            "job-worker-1 ended with exit code 137",
            "job-worker-0 ended with exit code 137",
            "job-worker-1 ended with exit code 1",
            "job-worker-1 is outside of a step after step 25",
            "job-worker-0 ended with exit code 137",
        ],
        strict=True,
    ):
        assert part in message
    for rank in (0, 1):
        log = gang.read_log(f"job-worker-{rank}")
        assert "Current thread" in log or "Thread 0x" in log, "the stacks of each rank"
    assert "in do" in gang.read_log("job-worker-1"), "the line that hangs"


def test_elastic(gang: Gang, expected: list[np.ndarray]) -> None:
    """A worker that fails again shortly after its return is left out; the gang grows when the job is scaled."""
    gang.start(
        fault(0, 1, "step", "kill", STEPS + 2),
        fault(1, 1, "rendezvous", "kill"),
        fault(2, 0, "step", "sleep30", 2 * STEPS + 5),
        elastic=ElasticPolicy(min_replicas=1, max_replicas=2, grace_seconds=300),
        spares=1,
    )
    deadline = time.monotonic() + 300
    while not (gang.root / "fault-2").exists():
        assert time.monotonic() < deadline, gang.list_events()
        time.sleep(0.1)
    assert gang.desk.client.get_job("job").status.workers == "1/2"
    # Another number and back: the missing worker is tried again.
    for workers in (1, 2):
        gang.desk.client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"replicas": workers}}}}, "job")
        time.sleep(0.5)
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


@pytest.mark.skipif("KFP_MINDSPORE_ENDURANCE" not in os.environ, reason="half an hour: KFP_MINDSPORE_ENDURANCE=1")
@pytest.mark.timeout(3600)
def test_random_kills(gang: Gang, expected: list[np.ndarray]) -> None:
    """20 kills of random members at random times, and a worker that is slow for 60 s."""
    generator = random.Random(1)
    gang.start(fault(0, 1, "step", "sleep60", 2), spares=3, backoff_limit=20)
    members = ["scheduler", "worker-0", "worker-1"]
    for _ in range(20):
        started = len((gang.list_sizes()) if (gang.root / "starts-worker-0").exists() else [])
        deadline = time.monotonic() + 120
        while len(gang.list_sizes()) == started and time.monotonic() < deadline:
            time.sleep(0.1)
    raise AssertionError(members, generator)
