"""Jobs, operator and client while the cluster's own control plane is away."""

from __future__ import annotations

import signal
import time

from tests.support.kube.node_jobs import LogReader, NodeJobs

ETCD_SECONDS = 10


def test_job_survives_api_server_restart(jobs: NodeJobs) -> None:
    job = jobs.start("served", workers=2)
    job.wait("Running")
    uids = job.pod_uids()
    with LogReader(job) as log:
        job.wait_steps()
        jobs.cluster.restart_api_server()
        # The silence was not taken for the death of a pod, and the log continues.
        log.wait_line(f"step {job.wait_steps()}")
        assert job.pod_uids() == uids
        job.finish()
    assert job.wait("Succeeded").status.restarts == 0
    assert job.count_lost_steps() == 0
    assert [line for pod, line in log.lines if pod == "served-worker-0" and line.startswith("step ")] == [
        f"step {step}" for step in job.list_steps()
    ]
    job.check_events(JobCreated=1, JobRunning=1, JobSucceeded=1, JobRestarting=0)
    job.delete()


def test_failure_during_api_server_outage_is_counted_once(jobs: NodeJobs) -> None:
    job = jobs.run("unserved", workers=2, backoff_limit=1)
    victim = job.find_process("unserved-worker-0")
    with jobs.cluster.stop_api_server():
        victim.send(signal.SIGKILL)
    job.wait_restart()
    job.complete(restarts=1)
    job.delete()


def test_paused_etcd_loses_nothing(jobs: NodeJobs) -> None:
    job = jobs.run("stalled", workers=2, backoff_limit=1)
    victim = job.find_process("stalled-worker-0")
    with jobs.cluster.pause_etcd():
        began = time.monotonic()
        victim.send(signal.SIGKILL)
        # The length of the pause is what is tried.
        time.sleep(max(0.0, ETCD_SECONDS - (time.monotonic() - began)))
    job.wait_restart("stalled-worker-0")
    job.complete(restarts=1)
    job.check_events(JobRestarting=1, JobSucceeded=1)
    job.delete()
