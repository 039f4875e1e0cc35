"""Jobs on a real node: a training that counts its steps into a volume, what is done to it, and what it lost."""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.msjob import MSJob, MSJobClient, build_msjob
from kfp_mindspore.msjob.api.manifest import now
from kfp_mindspore.msjob.api.names import JOB_LABEL, MSJOBS
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.support.kube.operators import SECONDS, wait_for

SCRIPT = Path(__file__).parents[1] / "training" / "counting_training.py"
# How often the counting training keeps a checkpoint: a process that is killed loses fewer steps than that.
CHECKPOINT_STEPS = 5
_DATA = "/data"


class NodeJobs:
    """Makes jobs in one namespace of a cluster with a node.

    Args:
        cluster: The cluster.
        namespace: Where.
    """

    def __init__(self, cluster: NodeCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.api = Cluster(cluster.kubeconfig)
        self.client = MSJobClient(KubernetesBackend(namespace, kubeconfig=cluster.kubeconfig))

    def start(
        self,
        name: str,
        *words: str,
        workers: int = 2,
        image: str = PYTHON,
        limits: Mapping[str, str] | None = None,
        **policy: Any,
    ) -> NodeJob:
        """Submit a job that counts its steps.

        Args:
            name: Its name.
            words: More words of its command line.
            workers: How many; from 2 on there is a scheduler.
            image: Its image.
            limits: Resource limits of a worker, such as memory; none by default.
            policy: More arguments of `build_msjob`.
        """
        job = NodeJob(self, name)
        job.submit(*words, workers=workers, image=image, limits=limits, **policy)
        return job

    def run(self, name: str, **policy: Any) -> NodeJob:
        """Submit a job, and wait until it runs and counts."""
        job = self.start(name, **policy)
        job.wait("Running")
        job.wait_steps()
        return job


class NodeJob:
    """One job, from its creation to the proof that nothing of it is left.

    Args:
        jobs: Where it is.
        name: Its name.
    """

    def __init__(self, jobs: NodeJobs, name: str) -> None:
        self.jobs = jobs
        self.name = name
        self.client = jobs.client
        # The namespace's name is in the path, which identifies the processes of this job.
        self.mount = f"{_DATA}/{jobs.namespace}/{name}"
        self.volume = jobs.cluster.make_volume(f"{jobs.namespace}-{name}")

    def submit(
        self, *words: str, workers: int, image: str, limits: Mapping[str, str] | None = None, **policy: Any
    ) -> None:
        """Create it."""
        shutil.copyfile(SCRIPT, self.volume / SCRIPT.name)
        job = build_msjob(
            self.name,
            command=["python", f"{self.mount}/{SCRIPT.name}", self.mount, *words],
            image=image,
            workers=workers,
            namespace=self.jobs.namespace,
            resources={"limits": dict(limits)} if limits else None,
            **{"restart_policy": "OnFailure", **policy},
        )
        self.create(job)

    def create(self, job: MSJob) -> None:
        """Submit a job that has this one's name, with the volume."""
        self.add_volume(job)
        self.client.create_job(job)

    def add_volume(self, job: MSJob) -> None:
        """Mount the volume into a job's pods."""
        for spec in job.ms_replica_specs.values():
            pod = spec.template["spec"]
            volume = {"name": "data", "hostPath": {"path": str(self.volume), "type": "Directory"}}
            pod["volumes"] = [*pod.get("volumes", []), volume]
            # Long enough to save, and short enough that a test detects ignored SIGTERMs.
            pod.setdefault("terminationGracePeriodSeconds", 20)
            for container in pod["containers"]:
                mount = {"name": "data", "mountPath": self.mount}
                container["volumeMounts"] = [*container.get("volumeMounts", []), mount]

    # Waiting, and its result.

    def wait(self, *conditions: str, seconds: float = SECONDS) -> MSJob:
        """Wait until it is in one of these conditions."""
        return self.client.wait_for_job_conditions(self.name, expected_conditions=set(conditions), wait_timeout=seconds)

    def wait_until(self, check: Callable[[MSJob], object], seconds: float = SECONDS) -> MSJob:
        """Wait until it passes a check."""
        job = None
        for job in self.client.backend.watch(self.name, self.jobs.namespace, timeout=seconds):
            if check(job):
                return job
        raise AssertionError(f"{self.name} is not as expected after {seconds:g} s: {job and job.status}")

    def wait_attempt(self, attempt: int) -> MSJob:
        """Wait until a gang runs that is the given number of gangs after the first."""
        return self.wait_until(
            lambda job: job.status and job.status.has("Running") and getattr(job.status, "attempt", None) == attempt
        )

    def wait_restart(self, pod: str = "") -> None:
        """Wait until the second gang runs, of the only restart, after the failure of a pod."""
        status = self.wait_attempt(1).status
        assert status is not None
        assert status.restarts == 1
        assert not pod or status.failure.pod == pod

    def complete(self, restarts: int) -> None:
        """Let it end after more steps, and check its restarts, which lose less than a checkpoint's steps."""
        self.wait_steps()
        self.finish()
        assert self.wait("Succeeded").status.restarts == restarts
        assert self.count_lost_steps() < (CHECKPOINT_STEPS if restarts else 1)

    def wait_pods(self, check: Callable[[dict[str, dict[str, Any]]], object], seconds: float = SECONDS) -> None:
        """Wait until its pods, by name, pass a check."""
        labels = f"{JOB_LABEL}={self.name}"
        found: dict[str, dict[str, Any]] = {}
        for objects in self.jobs.api.watch(PODS, self.jobs.namespace, labels=labels, timeout=seconds):
            found = dict(objects)
            if check(found):
                return
        states = {name: pod.get("status") for name, pod in found.items()}
        raise AssertionError(f"the pods of {self.name} are not as expected after {seconds:g} s: {states}")

    def get(self) -> dict[str, Any]:
        """Return it as the API server has it."""
        return self.jobs.api.get(MSJOBS, self.name, self.jobs.namespace)

    def wait_age(self, time: datetime.datetime | None, seconds: float) -> None:
        """Wait until some seconds have passed since a time of its status."""
        assert time is not None
        wait_for(lambda: (now() - time).total_seconds() >= seconds, lambda: "the clock stands still")

    def list_pods(self) -> Sequence[Pod]:
        """Return its pods."""
        return self.client.get_job_pods(self.name)

    def pod_uids(self) -> dict[str, str]:
        """Return its pods' uids by name."""
        items = self.jobs.api.list(PODS, self.jobs.namespace, labels=f"{JOB_LABEL}={self.name}")
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}

    def list_events(self) -> list[dict[str, Any]]:
        """Return the events about the job itself."""
        fields = f"involvedObject.name={self.name},involvedObject.kind=MSJob"
        return self.jobs.api.list(EVENTS, self.jobs.namespace, fields=fields)

    def count_events(self, reason: str) -> int:
        """Return how often the operator emitted an event; repeated ones are one event with a count."""
        return sum(event.get("count") or 1 for event in self.list_events() if event["reason"] == reason)

    def check_events(self, **counts: int) -> None:
        """Check the exact counts of the operator's events by reason."""
        # It writes events beside its other work.
        wait_for(
            lambda: all(self.count_events(reason) == count for reason, count in counts.items()),
            lambda: (
                f"{self.name} has other events than {counts}: { {each: self.count_events(each) for each in counts} }"
            ),
        )

    def wait_event(self, reason: str) -> dict[str, Any]:
        """Wait for an event about the job itself."""
        fields = f"involvedObject.name={self.name},involvedObject.kind=MSJob"
        for objects in self.jobs.api.watch(EVENTS, self.jobs.namespace, fields=fields, timeout=SECONDS):
            for event in objects.values():
                if event["reason"] == reason:
                    return event
        raise AssertionError(f"{self.name} has no event {reason}: {[event['reason'] for event in self.list_events()]}")

    # Its counters.

    def list_steps(self) -> list[int]:
        """Return the steps done, in their order; what was done twice is there twice."""
        file = self.volume / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["step"] for line in lines]

    def wait_steps(self, more: int = 7) -> int:
        """Wait until some more steps are done, and return how many were done in all."""
        before = len(self.list_steps())
        wait_for(lambda: len(self.list_steps()) >= before + more, lambda: f"{self.name} stands at {before} steps")
        return len(self.list_steps())

    def count_lost_steps(self) -> int:
        """Return how many steps were done again; none may be left out."""
        steps = self.list_steps()
        assert sorted(set(steps)) == list(range(1, max(steps) + 1)), f"{self.name} has left out steps: {steps}"
        return len(steps) - max(steps)

    def read_checkpoint(self) -> int:
        """Return the step from which the next run would resume."""
        return int(json.loads((self.volume / "checkpoint.json").read_text())["step"])

    def finish(self) -> None:
        """Let it come to its end."""
        (self.volume / "finish").touch()

    # Actions on the job.

    def find_process(self, pod: str) -> ProcessIdentity:
        """Return the first process of a pod."""
        processes = self.jobs.cluster.find_processes(self.jobs.namespace, pod)
        assert processes, f"{pod} has no process: {self.list_pods()}"
        return processes[0]

    def kill(self, pod: str) -> None:
        """Kill the first process of a pod, as `kill -9` does."""
        self.find_process(pod).send(signal.SIGKILL)

    def update(self, **policy: Any) -> None:
        """Change its runPolicy, on the wire."""
        self.client.update_job({"spec": {"runPolicy": policy}}, self.name)

    # That nothing is left.

    def delete(self) -> None:
        """Delete it, and check that its pods, Services and processes have ended."""
        self.client.delete_job(self.name)
        self.check_nothing_is_left()

    def check_gone(self) -> None:
        """Wait until the cluster has deleted it, with all that it owned."""
        for objects in self.jobs.api.watch(MSJOBS, self.jobs.namespace, timeout=SECONDS):
            if self.name not in objects:
                break
        else:
            raise AssertionError(f"{self.name} is still there: {self.get()}")
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        """Check that it and all that it owned are deleted, on the API server and on the node."""
        wait_for(lambda: not self.list_leftovers(), lambda: f"of {self.name} is left: {self.list_leftovers()}")

    def list_leftovers(self) -> list[str]:
        """Return what there is of it on the API server, and its processes."""
        labels = f"{JOB_LABEL}={self.name}"
        found = [
            f"{resource.kind} {item['metadata']['name']}"
            for resource in (PODS, SERVICES, ENDPOINT_SLICES)
            for item in self.jobs.api.list(resource, self.jobs.namespace, labels=labels)
        ]
        return [*found, *(f"process {pid}" for pid in find_processes(self.mount))]


class LogReader:
    """Follows a job's logs in a thread, as a user's terminal does; a context manager that ends with the job.

    Args:
        job: The job.
        choose: Filter of its pods.
        seconds: Timeout of the job.
    """

    def __init__(
        self, job: NodeJob, choose: Callable[[Pod], bool] = lambda pod: True, *, seconds: float = SECONDS * 4
    ) -> None:
        self.lines: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        self._job = job
        self._choose = choose
        self._seconds = seconds
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> LogReader:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._thread.join(self._seconds)
            assert not self._thread.is_alive(), "the log goes on after the job"
            assert self.error is None, self.error

    def wait_line(self, text: str, count: int = 1, seconds: float = SECONDS) -> None:
        """Wait until as many lines contain a text."""
        wait_for(
            lambda: sum(text in line for _, line in self.lines) >= count,
            lambda: f"no {text!r} among {self.lines[-20:]} ({self.error})",
            seconds,
        )

    def _read(self) -> None:
        backend = self._job.client.backend
        try:
            for item in backend.follow_logs(
                self._job.name, self._job.jobs.namespace, self._choose, timeout=self._seconds
            ):
                self.lines.append(item)
        except BaseException as error:  # noqa: BLE001 - raised by the calling thread
            self.error = error


def find_processes(mount: str) -> list[int]:
    """Return the processes of this machine, those of its pods among them, with a volume's path in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text(errors="replace") + (process / "environ").read_text(
                errors="replace"
            )
            if f"{mount}/" in words or f"{mount}\0" in words:
                found.append(int(process.name))
    return found
