"""Effects of a job's policies and of its owner on its pods, on a real node."""

from __future__ import annotations

import pytest

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.msjob.api.manifest import now
from kfp_mindspore.msjob.failure import JobFailedError
from tests.support.kube.node_jobs import LogReader, NodeJobs


def test_job_succeeds_and_its_log_is_followed(jobs: NodeJobs) -> None:
    job = jobs.start("plain", workers=2)
    job.wait("Running")
    assert {pod.name: pod.phase for pod in job.list_pods()} == {
        "plain-scheduler-0": "Running",
        "plain-worker-0": "Running",
        "plain-worker-1": "Running",
    }
    with LogReader(job) as log:
        log.wait_line("step 5")
        # The line came while the job runs, not with its end.
        assert job.client.is_job_running(job.name)
        job.finish()
    done = job.wait("Succeeded")
    assert done.status.restarts == 0
    assert done.status.workers == "2/2"
    assert job.count_lost_steps() == 0
    begun = {pod: text for pod, text in log.lines if text.endswith(" begins")}
    assert begun == {
        "plain-scheduler-0": "MS_SCHED scheduler-0 begins",
        "plain-worker-0": "MS_WORKER 0 begins",
        "plain-worker-1": "MS_WORKER 1 begins",
    }
    logs, _ = job.client.get_job_logs(job.name)
    assert logs["plain-worker-0"].splitlines() == [text for pod, text in log.lines if pod == "plain-worker-0"]
    job.check_events(JobCreated=1, JobRunning=1, JobSucceeded=1, JobRestarting=0)
    job.delete()


def test_deadline_sends_sigterm(jobs: NodeJobs) -> None:
    job = jobs.start("late", workers=2)
    running = job.wait("Running")
    job.wait_steps()
    # A deadline of that many seconds from its start on is a few seconds from now, however slow the machine is.
    seconds = int((now() - running.status.start_time).total_seconds()) + 3
    job.update(activeDeadlineSeconds=seconds)
    with pytest.raises(JobFailedError, match=f"ran longer than {seconds} s"):
        job.wait("Succeeded")
    failed = job.client.get_job(job.name)
    assert failed.status.get_condition("Failed").reason == "DeadlineExceeded"
    assert (failed.status.completion_time - failed.status.start_time).total_seconds() >= seconds
    job.wait_pods(lambda pods: not pods)
    # A worker that got SIGTERM in time has saved all its steps.
    assert job.read_checkpoint() == max(job.list_steps())
    job.delete()


def test_ttl_deletes_job_and_pods(jobs: NodeJobs) -> None:
    job = jobs.start("brief", workers=2, clean_pod_policy="None")
    job.wait("Running")
    job.finish()
    assert job.wait("Succeeded").status.restarts == 0
    # With cleanPodPolicy None the pods stay until the job is deleted.
    job.wait_pods(lambda pods: [pod["status"]["phase"] for pod in pods.values()] == ["Succeeded"] * 3)
    job.update(ttlSecondsAfterFinished=1)
    with pytest.raises(NotFoundError):
        job.wait("Failed")
    job.check_gone()


def test_suspended_job_loses_no_steps(jobs: NodeJobs) -> None:
    job = jobs.run("paused", workers=2, backoff_limit=0)
    job.update(suspend=True)
    suspended = job.wait("Suspended")
    assert not suspended.status.has("Running")
    job.check_nothing_is_left()
    steps = job.list_steps()
    assert job.read_checkpoint() == max(steps)
    job.update(suspend=False)
    running = job.wait_until(lambda job: job.status.has("Running"))
    assert not running.status.has("Suspended")
    job.complete(restarts=0)
    job.check_events(JobSuspended=1, JobResumed=1, JobRestarting=0)
    job.delete()


def test_scaled_gang_resumes(jobs: NodeJobs) -> None:
    job = jobs.run("scaled", workers=1, backoff_limit=0)
    job.client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"replicas": 2}}}}, job.name)
    job.wait_attempt(1)
    assert set(job.pod_uids()) == {"scaled-scheduler-0", "scaled-worker-0", "scaled-worker-1"}
    job.wait_steps()
    job.finish()
    done = job.wait("Succeeded")
    assert done.status.restarts == 0
    assert job.count_lost_steps() == 0
    job.delete()


def test_deleting_running_job_leaves_nothing(jobs: NodeJobs) -> None:
    job = jobs.run("unwanted", workers=2)
    kinds = [item.split()[0] for item in job.list_leftovers()]
    assert sorted(kinds) == ["EndpointSlice"] + ["Pod"] * 3 + ["Service"] + ["process"] * 3
    job.delete()
    assert job.read_checkpoint() == max(job.list_steps())
    with pytest.raises(NotFoundError):
        job.client.get_job(job.name)
