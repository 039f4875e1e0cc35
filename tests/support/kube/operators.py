"""The operator as a process, and a cluster without nodes whose pods a test lets run, end and vanish."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import AlreadyExistsError, NotFoundError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import ConflictError
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES, Resource
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.api.names import ATTEMPT_LABEL, JOB_LABEL, MSJOBS
from kfp_mindspore.operator.install.apply import apply_objects

# Far above any duration here, for busy machines.
SECONDS = 240.0
_NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
_PORT = re.compile(r"metrics and probes on port (\d+)")


class OperatorProcess:
    """`kfp-mindspore operator run`, as a process of its own.

    Args:
        kubeconfig: Its credentials.
        log: File of its log; a second process appends.
        flags: More flags.
    """

    def __init__(self, kubeconfig: Path, log: Path, *flags: str) -> None:
        self.kubeconfig = kubeconfig
        self.log = log
        self.flags = flags
        self.process: subprocess.Popen[bytes] | None = None
        self._begin = 0

    def __enter__(self) -> OperatorProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it acts, or stands by."""
        self._begin = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "kfp_mindspore.cli.main", "operator", "run"]
        command += ["--kubeconfig", str(self.kubeconfig), "--host", "127.0.0.1", "--metrics-port", "0", *self.flags]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        if wait:
            wait_for(self.is_ready, lambda: f"the operator does not get ready:\n{self.read_log()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal, and return its exit code."""
        if self.process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process = None

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.stop(signal.SIGKILL)

    def read_log(self) -> str:
        """Return what the present process has written."""
        with self.log.open("rb") as file:
            file.seek(self._begin)
            return file.read().decode(errors="replace")

    def is_ready(self) -> bool:
        """Return whether its readiness probe succeeds; fail when it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, f"the operator ended:\n{self.read_log()}"
        return self.ask("/readyz")[0] == 200

    @property
    def port(self) -> int:
        """Its HTTP port; 0 before it listens."""
        found = _PORT.search(self.read_log())
        return int(found[1]) if found else 0

    def ask(self, path: str) -> tuple[int, str]:
        """Return status and text of a path of its HTTP port; status 0 without a response."""
        port = self.port
        if not port:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
                return int(response.status), response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def read_metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels, such as of `msjob_restarts_total`; 0 without any."""
        lines = [line for line in self.ask("/metrics")[1].splitlines() if re.match(rf"{name}(\{{| )", line)]
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(item in line for item in wanted))


class Jobs:
    """The MSJobs and pods of one namespace without a node: a test writes the status of pods.

    Args:
        kubeconfig: The administrator's.
        namespace: Where.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.cluster = Cluster(kubeconfig)
        self.namespace = namespace
        self._numbers = itertools.count(1)

    def create(self, name: str, workers: int = 2, **options: Any) -> dict[str, Any]:
        """Make a job; see `make_job`."""
        return self.cluster.create(MSJOBS, make_job(name, workers, **options), self.namespace)

    def get(self, name: str) -> dict[str, Any]:
        """Return a job."""
        return self.cluster.get(MSJOBS, name, self.namespace)

    def patch(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merge a patch into a job."""
        self.cluster.patch(MSJOBS, name, self.namespace, patch)

    def patch_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Merge a status into a job's, as another controller would write it."""
        self.cluster.patch(MSJOBS, name, self.namespace, {"status": status}, subresource="status")

    def delete(self, name: str) -> None:
        """Delete a job."""
        self.cluster.delete(MSJOBS, name, self.namespace)

    def scale(self, name: str, workers: int) -> None:
        """Change a job's number of workers, as `kubectl scale` does."""
        self.cluster.patch(MSJOBS, name, self.namespace, {"spec": {"replicas": workers}}, subresource="scale")

    def get_scale(self, name: str) -> dict[str, Any]:
        """Return the scale subresource of a job."""
        return self.cluster.get(MSJOBS, name, self.namespace, subresource="scale")

    def wait(self, name: str, condition: str, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait until a job is in a condition, and return it."""
        return self.wait_until(name, lambda job: has(job, condition), condition, seconds)

    def wait_until(
        self, name: str, check: Callable[[dict[str, Any]], bool], what: str = "", seconds: float = SECONDS
    ) -> dict[str, Any]:
        """Wait until a job passes a check, and return it."""
        job: dict[str, Any] = {}
        for jobs in self.cluster.watch(MSJOBS, self.namespace, fields=f"metadata.name={name}", timeout=seconds):
            job = jobs.get(name) or {}
            if job and check(job):
                return job
        raise AssertionError(f"{name} is not {what or 'as expected'} after {seconds:g} s: {job.get('status')}")

    def wait_gone(self, name: str, resource: Resource = MSJOBS) -> None:
        """Wait until there is no job of a name."""
        for objects in self.cluster.watch(resource, self.namespace, timeout=SECONDS):
            if name not in objects:
                return
        raise AssertionError(f"{name} is still there after {SECONDS:g} s")

    def pods(self, name: str) -> dict[str, dict[str, Any]]:
        """Return a job's pods by name."""
        items = self.cluster.list(PODS, self.namespace, labels=f"{JOB_LABEL}={name}")
        return {item["metadata"]["name"]: item for item in items}

    def wait_pods(
        self, name: str, check: Callable[[dict[str, dict[str, Any]]], bool], seconds: float = SECONDS
    ) -> dict[str, dict[str, Any]]:
        """Wait until a job's pods pass a check, and return them by name."""
        pods: dict[str, dict[str, Any]] = {}
        for found in self.cluster.watch(PODS, self.namespace, labels=f"{JOB_LABEL}={name}", timeout=seconds):
            pods = dict(found)
            if check(pods):
                return pods
        raise AssertionError(f"the pods of {name} are not as expected after {seconds:g} s: {describe_pods(pods)}")

    def services(self, name: str) -> list[str]:
        """Return the names of a job's Services."""
        items = self.cluster.list(SERVICES, self.namespace, labels=f"{JOB_LABEL}={name}")
        return [item["metadata"]["name"] for item in items]

    def wait_endpoint(self, name: str, address: str) -> None:
        """Wait until a job's Service has exactly one address as its endpoint; none, if the address is empty."""
        found: list[str] = []
        labels = f"kubernetes.io/service-name={name}-scheduler-0"
        for slices in self.cluster.watch(ENDPOINT_SLICES, self.namespace, labels=labels, timeout=SECONDS):
            endpoints = [endpoint for item in slices.values() for endpoint in item.get("endpoints") or ()]
            found = [address for endpoint in endpoints for address in endpoint["addresses"]]
            if found == ([address] if address else []):
                return
        raise AssertionError(f"the Service of {name} leads to {found} instead of {address!r} after {SECONDS:g} s")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return a job's Kubernetes events."""
        return self.cluster.list(EVENTS, self.namespace, fields=f"involvedObject.name={name},involvedObject.kind=MSJob")

    # The part of a scheduler and a kubelet.

    def launch(self, name: str, count: int) -> dict[str, dict[str, Any]]:
        """Wait for the pods of a job's present attempt, let them run and wait until the job does.

        What was told to go meanwhile goes: an operator counts a restart before it deletes the pods.
        """
        attempt = (self.get(name).get("status") or {}).get("attempt") or 0

        def are_made(pods: dict[str, dict[str, Any]]) -> bool:
            for pod in filter(is_deleting, pods.values()):
                self.vanish(pod["metadata"]["name"], pod["metadata"]["uid"])
            labels = [pod["metadata"]["labels"] for pod in pods.values() if not is_deleting(pod)]
            return len(labels) == len(pods) == count and {item[ATTEMPT_LABEL] for item in labels} == {str(attempt)}

        for pod in self.wait_pods(name, are_made):
            self.set_running(pod)
        self.wait(name, "Running")
        return self.pods(name)

    def set_running(self, pod: str) -> None:
        """Bind a pod to a node without a kubelet, so that its deletion has a grace period, and set it running."""
        with contextlib.suppress(AlreadyExistsError):
            # The garbage collector deletes pods of an unknown node after 40 s.
            self.cluster.create(_NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nowhere"}})
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": self.namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
        }
        self.cluster.create(PODS, binding, self.namespace, subresource="binding")
        self._set_status(
            pod,
            {
                "phase": "Running",
                # Of a network that is for benchmarks only.
                "podIP": str(IPv4Address("198.18.0.0") + next(self._numbers)),
                "containerStatuses": [_container({"running": {"startedAt": _now()}})],
            },
        )

    def set_unschedulable(self, pod: str) -> None:
        """Set the condition of a pod that fits on no node."""
        message = "0/1 nodes are available: 1 Insufficient cpu."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._set_status(pod, {"conditions": [{**condition, "lastTransitionTime": _now()}]})

    def end(self, pod: str, code: int, *, reason: str = "", message: str = "") -> None:
        """Set a pod terminated."""
        state = {
            "terminated": {
                "exitCode": code,
                "reason": reason or ("Completed" if code == 0 else "Error"),
                "message": message,
                "startedAt": _now(),
                "finishedAt": _now(),
            }
        }
        phase = "Succeeded" if code == 0 else "Failed"
        self._set_status(pod, {"phase": phase, "containerStatuses": [_container(state)]})

    def disrupt(self, pod: str, reason: str) -> None:
        """Set the condition of an eviction or preemption in a pod's status."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": _now()}
        status = self.cluster.get(PODS, pod, self.namespace)["status"]
        self._set_status(pod, {"conditions": [*(status.get("conditions") or []), condition]})

    def reap(self, name: str) -> None:
        """Remove the terminating pods of a job, as the kubelet does after their grace period."""
        for pod, document in self.pods(name).items():
            if is_deleting(document):
                self.vanish(pod, document["metadata"]["uid"])

    def vanish(self, pod: str, uid: str = "") -> None:
        """Remove a pod from the API; with a uid, not its successor."""
        with contextlib.suppress(NotFoundError, ConflictError):
            self.cluster.delete(PODS, pod, self.namespace, grace_seconds=0, uid=uid)

    def _set_status(self, pod: str, status: dict[str, Any]) -> None:
        self.cluster.patch(PODS, pod, self.namespace, {"status": status}, subresource="status")


def install_definition(kubeconfig: Path) -> None:
    """Apply the definition of MSJob, and wait until the API server serves it."""
    for _ in apply_objects([build_crd()], kubeconfig=str(kubeconfig)):
        pass


def make_job(
    name: str,
    workers: int = 2,
    *,
    restart_policy: str = "OnFailure",
    success_policy: str = "",
    image: str | None = "kfp-mindspore.invalid/none",
    security_context: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
    **policy: Any,
) -> dict[str, Any]:
    """Return a job whose pods no node will ever run; `policy` is its runPolicy, on the wire."""
    container: dict[str, Any] = {
        "name": "mindspore",
        "command": ["python", "train.py"],
        **({"image": image} if image else {}),
    }
    container |= {"resources": resources} if resources else {}
    spec = {"containers": [container], **({"securityContext": security_context} if security_context else {})}
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": policy,
            "successPolicy": success_policy,
            "msReplicaSpecs": {
                "Worker": {
                    "replicas": workers,
                    "restartPolicy": restart_policy,
                    "template": {"spec": spec},
                }
            },
        },
    }


def find(job: Mapping[str, Any], condition: str) -> dict[str, Any]:
    """Return a condition of a job, whatever its status."""
    found: dict[str, Any] = next(item for item in job["status"]["conditions"] if item["type"] == condition)
    return found


def has(job: Mapping[str, Any], condition: str) -> bool:
    """Return whether a job has a condition."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(item["type"] == condition and item["status"] == "True" for item in conditions)


def is_deleting(document: Mapping[str, Any]) -> bool:
    """Return whether an object is being deleted."""
    return bool(document["metadata"].get("deletionTimestamp"))


def describe_pods(pods: Mapping[str, Mapping[str, Any]]) -> str:
    """Return names and phases."""
    return json.dumps({name: (pod.get("status") or {}).get("phase") for name, pod in pods.items()})


def wait_for(check: Callable[[], bool], explain: Callable[[], str], seconds: float = SECONDS) -> None:
    """Poll until it is true, for states without a watch."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "mindspore",
        "image": "kfp-mindspore.invalid/none",
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
