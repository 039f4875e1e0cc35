"""An operator that dies, loses its Lease or the API server: its work is continued, and nothing is done twice."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.kube.resources import LEASES, PODS, SERVICES
from tests.cluster.infrastructure.api_server import ApiServer, ControlPlane
from tests.support.kube.operators import (
    SECONDS,
    Jobs,
    OperatorProcess,
    find,
    has,
    install_definition,
    is_deleting,
    wait_for,
)


@pytest.fixture
def jobs(api_server: ControlPlane, api_namespace: str) -> Jobs:
    """Return a namespace without an operator."""
    install_definition(api_server.kubeconfig)
    return Jobs(api_server.kubeconfig, api_namespace)


@pytest.fixture
def operator(api_server: ControlPlane, jobs: Jobs, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Return an operator for that namespace, which is not started yet."""
    process = OperatorProcess(api_server.kubeconfig, tmp_path / "log", "--namespace", jobs.namespace)
    yield process
    process.stop()


def test_operator_killed_in_every_phase_resumes(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.create("job", workers=2, backoffLimit=3)
    # Before it lists the job, and while pods wait for nodes.
    operator.start()
    jobs.wait_pods("job", lambda pods: len(pods) == 3)
    operator.kill()
    waiting = jobs.pods("job")
    for pod in waiting:
        jobs.set_running(pod)
    operator.start()
    jobs.wait("job", "Running")
    assert _uids(jobs.pods("job")) == _uids(waiting)

    # While the job runs: a member fails while no operator runs.
    operator.kill()
    jobs.end("job-worker-1", 1)
    operator.start()
    assert jobs.wait("job", "Restarting")["status"]["restarts"] == 1

    # Between the count and the new gang: the old one is still ending.
    operator.kill()
    jobs.reap("job")
    operator.start()
    jobs.launch("job", 3)
    assert jobs.get("job")["status"]["restarts"] == 1

    # Suspended and resumed while no operator runs: no change of the pods.
    operator.kill()
    running = jobs.pods("job")
    jobs.patch("job", {"spec": {"runPolicy": {"suspend": True}}})
    operator.start()
    jobs.wait("job", "Suspended")
    operator.kill()
    jobs.reap("job")
    jobs.patch("job", {"spec": {"runPolicy": {"suspend": False}}})
    operator.start()
    jobs.wait_pods("job", lambda pods: all(map(is_deleting, pods.values())) or not _uids(pods) & _uids(running))
    jobs.reap("job")
    jobs.launch("job", 3)
    assert jobs.get("job")["status"]["restarts"] == 1

    # It ends while no operator runs.
    operator.kill()
    jobs.end("job-worker-0", 0)
    operator.start()
    jobs.wait("job", "Succeeded")
    jobs.wait_gone("job-scheduler-0", SERVICES)

    # And afterwards it is left alone.
    operator.kill()
    version = jobs.get("job")["metadata"]["resourceVersion"]
    operator.start()
    jobs.create("later", workers=1)
    jobs.launch("later", 1)
    assert jobs.get("job")["metadata"]["resourceVersion"] == version


def test_deadlines_and_ttls_that_expire_during_downtime(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.create("deadline", workers=1, activeDeadlineSeconds=1)
    jobs.create("brief", workers=1, ttlSecondsAfterFinished=1)
    operator.start()
    jobs.launch("brief", 1)
    operator.kill()
    jobs.end("brief-worker-0", 0)
    operator.start()
    failed = jobs.wait("deadline", "Failed")
    assert find(failed, "Failed")["reason"] == "DeadlineExceeded"
    jobs.wait_gone("brief")


def test_sigterm(jobs: Jobs, operator: OperatorProcess) -> None:
    operator.start()
    assert operator.stop(signal.SIGTERM) == 0
    operator.start()
    assert operator.stop(signal.SIGINT) == 0
    assert "Traceback" not in operator.read_log()


@contextlib.contextmanager
def _start_two(jobs: Jobs, kubeconfig: Path, directory: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    flags = ("--namespace", jobs.namespace, "--leader-elect", "--lease-namespace", jobs.namespace)
    first = OperatorProcess(kubeconfig, directory / "first", *flags)
    second = OperatorProcess(kubeconfig, directory / "second", *flags)
    with first, second:
        yield first, second


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_leader_election_and_takeover(jobs: Jobs, api_server: ControlPlane, tmp_path: Path, number: int) -> None:
    with _start_two(jobs, api_server.kubeconfig, tmp_path) as (first, second):
        jobs.create("job", workers=2)
        before = jobs.launch("job", 3)
        assert second.read_metric("msjob_leading") == 0
        assert second.read_metric("msjob_api_requests_total", verb="create") == 0
        first.stop(number)
        jobs.end("job-worker-1", 1)
        job = jobs.wait("job", "Restarting")
        assert job["status"]["restarts"] == 1
        wait_for(lambda: second.read_metric("msjob_leading") == 1, second.read_log)
        jobs.reap("job")
        after = jobs.launch("job", 3)
        assert not _uids(before) & _uids(after)


def test_lost_lease_ends_process(jobs: Jobs, api_server: ControlPlane, tmp_path: Path) -> None:
    with _start_two(jobs, api_server.kubeconfig, tmp_path) as (first, _):
        wait_for(lambda: first.read_metric("msjob_leading") == 1, first.read_log)
        stolen = {"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 3600}}
        jobs.cluster.patch(LEASES, "msjob-controller", jobs.namespace, stolen)
        assert first.process is not None
        assert first.process.wait(SECONDS) == 1
        assert "somebody-else" in first.read_log()


def test_configuration_errors_exit_with_one_line(api_server: ControlPlane, tmp_path: Path) -> None:
    stranger = api_server.write_kubeconfig("stranger", ["nobodies"])
    process = OperatorProcess(stranger, tmp_path / "log")
    process.start(wait=False)
    assert process.process is not None
    assert process.process.wait(SECONDS) == 1
    assert "cannot watch" in process.read_log()
    assert "forbidden" in process.read_log()
    assert "Traceback" not in process.read_log()


def test_api_server_outage(start_api_server: Callable[..., ApiServer], tmp_path: Path) -> None:
    server = start_api_server()
    install_definition(server.kubeconfig)
    with (
        server.make_namespace() as namespace,
        OperatorProcess(server.kubeconfig, tmp_path / "log", "--namespace", namespace) as operator,
    ):
        jobs = Jobs(server.kubeconfig, namespace)
        jobs.create("before", workers=2)
        pods = jobs.launch("before", 3)
        server.restart_api_server()
        jobs.create("after", workers=2)
        jobs.launch("after", 3)
        assert _uids(jobs.pods("before")) == _uids(pods)
        with server.pause_etcd():
            assert operator.process is not None
            assert operator.process.poll() is None
        jobs.end("before-worker-0", 1)
        jobs.wait("before", "Restarting")
        assert has(jobs.get("after"), "Running")
        assert jobs.cluster.list(PODS, namespace)


def _uids(pods: dict[str, dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}
