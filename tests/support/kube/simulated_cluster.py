"""A small API server in memory, with what kubelets, people and clocks do to it, for tests of the operator's core."""

from __future__ import annotations

import copy
import datetime
import itertools
from ipaddress import IPv4Address
from typing import Any

from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.msjob.api.manifest import format_time
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.msjob.api.status import TrainingProgress
from kfp_mindspore.operator.decisions.actions import Action, Assign, Create, Delete, EmitEvent, RequeueAt
from kfp_mindspore.operator.decisions.observed import (
    LONG_AGO,
    Observed,
    view_endpoint_slice,
    view_pod_group,
    view_service,
)
from kfp_mindspore.operator.decisions.pod_view import view_pod
from kfp_mindspore.operator.decisions.reconcile import Outcome, reconcile
from kfp_mindspore.operator.options import OperatorOptions

START = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)


def make_job(workers: int = 2, *, restart_policy: str = "OnFailure", **policy: Any) -> dict[str, Any]:
    """Return a job as the API server has it. `success_policy` and `scheduler` are not of its run policy."""
    success = policy.pop("success_policy", "")
    scheduler = policy.pop("scheduler", None)
    container = {"name": "mindspore", "image": "train:1", "command": ["python", "train.py"]}
    replicas: dict[str, Any] = {
        "Worker": {
            "replicas": workers,
            "restartPolicy": restart_policy,
            "template": {"spec": {"containers": [container]}},
        }
    }
    if scheduler is not None:
        replicas["Scheduler"] = scheduler
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": "digits", "namespace": "team", "uid": "job-uid", "generation": 1, "resourceVersion": "1"},
        "spec": {"msReplicaSpecs": replicas, "runPolicy": policy, "successPolicy": success},
    }


class Cluster:
    """One job and what belongs to it, as wire documents.

    Args:
        job: The job.
        options: The operator's choices.
    """

    def __init__(self, job: dict[str, Any], options: OperatorOptions | None = None) -> None:
        self.job: dict[str, Any] | None = copy.deepcopy(job)
        self.options = options or OperatorOptions()
        self.pods: dict[str, dict[str, Any]] = {}
        self.services: dict[str, dict[str, Any]] = {}
        self.endpoint_slices: dict[str, dict[str, Any]] = {}
        self.pod_group: dict[str, Any] | None = None
        self.now = START
        self.connected_at: datetime.datetime | None = LONG_AGO
        self.progress: TrainingProgress | None = None
        self.created: list[dict[str, Any]] = []
        self.events: list[EmitEvent] = []
        self.status_writes = 0
        self._numbers = itertools.count(1)

    # Requests of the operator.

    def observe(self) -> Observed:
        return Observed(
            copy.deepcopy(self.job),
            tuple(view_pod(pod) for pod in self.pods.values()),
            tuple(view_service(service) for service in self.services.values()),
            tuple(view_endpoint_slice(item) for item in self.endpoint_slices.values()),
            view_pod_group(self.pod_group) if self.pod_group else None,
            connected_at=self.connected_at,
            progress=self.progress,
        )

    def reconcile(self) -> Outcome:
        """Reconcile what is there now, and apply all of it."""
        outcome = self.decide()
        assert self.apply(outcome, self.version)
        return outcome

    def decide(self, observed: Observed | None = None) -> Outcome:
        return reconcile(observed or self.observe(), self.now, self.options)

    @property
    def version(self) -> str:
        return self.job["metadata"]["resourceVersion"] if self.job else ""

    @property
    def status(self) -> dict[str, Any]:
        assert self.job is not None
        return self.job.get("status") or {}

    def apply(self, outcome: Outcome, version: str, *, first: int | None = None) -> bool:
        """Do a decision's steps in their order, or die after the first so many actions (None: do all of it).

        Returns:
            Whether the status stands; not when the job has changed, or the operator died before it.
        """
        if self.job is None:
            return False
        events = [action for action in outcome.actions if isinstance(action, EmitEvent)]
        work = [action for action in outcome.actions if not isinstance(action, EmitEvent)]
        if not self._write_status(outcome, version):
            return False
        for action in work[:first]:
            self.do(action)
        for event in events if first is None else ():
            self.do(event)
        return True

    def _write_status(self, outcome: Outcome, version: str) -> bool:
        assert self.job is not None
        if outcome.status is None or outcome.status == self.status:
            return True
        if version != self.version:
            return False
        self.job["status"] = copy.deepcopy(outcome.status)
        self.status_writes += 1
        self._touch()
        return True

    def do(self, action: Action) -> None:
        if isinstance(action, Create):
            self._create(action)
        elif isinstance(action, Delete):
            self._delete(action)
        elif isinstance(action, Assign):
            pod = self.pods.get(action.name)
            if pod and pod["metadata"]["uid"] == action.uid:
                pod["metadata"]["labels"] |= action.metadata["labels"]
                pod["metadata"]["annotations"] |= action.metadata["annotations"]
        elif isinstance(action, EmitEvent):
            self.events.append(action)
        else:
            assert isinstance(action, RequeueAt)

    def _create(self, action: Create) -> None:
        if action.resource == SERVICES:
            body = self._make(action.body)
            body["spec"]["clusterIP"] = str(IPv4Address("10.96.0.0") + next(self._numbers))
            self.services.setdefault(action.name, body)
        elif action.resource == ENDPOINT_SLICES:
            self.endpoint_slices.setdefault(action.name, self._make(action.body))
        elif action.resource != PODS:
            self.pod_group = self.pod_group or self._make(action.body)
        elif action.name not in self.pods:
            self.pods[action.name] = self._make(action.body)
            self.pods[action.name]["status"] = {"phase": "Pending"}
            self.created.append(self.pods[action.name])

    def _delete(self, action: Delete) -> None:
        if action.resource == MSJOBS:
            assert self.job is None or self.job["metadata"]["uid"] == action.uid
            self.job = None
        elif action.resource == PODS:
            pod = self.pods.get(action.name)
            if pod and pod["metadata"]["uid"] == action.uid:
                if action.grace_seconds == 0:
                    assert self.is_lost(action.name), "only pods of lost nodes are force-deleted"
                    del self.pods[action.name]
                else:
                    self._mark_deleted(pod)
        elif action.resource in (SERVICES, ENDPOINT_SLICES):
            objects = self.services if action.resource == SERVICES else self.endpoint_slices
            if action.name in objects and objects[action.name]["metadata"]["uid"] == action.uid:
                del objects[action.name]
        elif self.pod_group and self.pod_group["metadata"]["uid"] == action.uid:
            self.pod_group = None

    def settle(self, rounds: int = 6) -> None:
        """Reconcile until nothing more follows, and make sure that it ends."""
        for _ in range(rounds):
            before = copy.deepcopy(self.status)
            outcome = self.reconcile()
            if self.job is None:
                return
            if self.status == before and not significant(outcome):
                return
        raise AssertionError(f"still acts after {rounds} rounds: {outcome}")

    # Actions of others.

    def run_pods(self) -> None:
        """Let all pending pods run, and all terminating ones end."""
        for name in list(self.pods):
            if self.is_lost(name):
                continue
            if self.pods[name]["metadata"].get("deletionTimestamp"):
                del self.pods[name]
            elif self.pods[name]["status"]["phase"] == "Pending":
                self.run_pod(name)

    def run_pod(self, name: str) -> None:
        """Let a pod run, at an address of its own."""
        self.set_scheduled(name, True)
        self.pods[name]["status"] |= {"phase": "Running", "podIP": str(IPv4Address("10.244.0.0") + next(self._numbers))}

    def set_scheduled(self, name: str, is_scheduled: bool) -> None:
        """Let the scheduler find a node for a pod, or none."""
        condition: dict[str, Any] = {"type": "PodScheduled", "lastTransitionTime": format_time(self.now)}
        if is_scheduled:
            condition["status"] = "True"
        else:
            message = "0/3 nodes are available: 3 Insufficient cpu."
            condition |= {"status": "False", "reason": "Unschedulable", "message": message}
        self.pods[name]["status"]["conditions"] = [condition]

    def start(self) -> Cluster:
        """Bring the job to all pods running."""
        self.settle()
        self.run_pods()
        self.settle()
        return self

    def exit(
        self, name: str, code: int, *, reason: str = "", message: str = "", at: datetime.datetime | None = None
    ) -> None:
        pod = self.pods[name]
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "finishedAt": format_time(at or self.now),
        }
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        pod["status"]["containerStatuses"] = [{"name": "mindspore", "state": {"terminated": terminated}}]

    def disrupt(self, name: str, reason: str = "PreemptionByScheduler") -> None:
        pod = self.pods[name]
        pod["status"].setdefault("conditions", []).append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": reason,
                "lastTransitionTime": format_time(self.now),
            }
        )
        self._mark_deleted(pod)

    def lose_node(self, name: str) -> None:
        """Set the condition that the node's controller sets: the pod's kubelet no longer reports."""
        self.pods[name]["status"].setdefault("conditions", []).append({"type": "Ready", "status": "False"})

    def is_lost(self, name: str) -> bool:
        conditions = self.pods[name]["status"].get("conditions") or []
        return any(item["type"] == "Ready" and item["status"] == "False" for item in conditions)

    def delete_pod(self, name: str) -> None:
        self._mark_deleted(self.pods[name])

    def vanish(self, name: str) -> None:
        del self.pods[name]

    def change_spec(self, **policy: Any) -> None:
        assert self.job is not None
        workers = policy.pop("workers", None)
        if workers is not None:
            self.job["spec"]["msReplicaSpecs"]["Worker"]["replicas"] = workers
        self.job["spec"]["runPolicy"].update(policy)
        self.job["metadata"]["generation"] += 1
        self._touch()

    def wait(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)

    def has(self, condition: str) -> bool:
        return any(item["type"] == condition and item["status"] == "True" for item in self.status.get("conditions", []))

    def get_condition(self, condition: str) -> dict[str, Any]:
        found: dict[str, Any] = next(item for item in self.status["conditions"] if item["type"] == condition)
        return found

    @property
    def endpoint_addresses(self) -> list[str]:
        """The endpoint addresses of the job's Service."""
        return [
            address
            for item in self.endpoint_slices.values()
            for endpoint in item["endpoints"]
            for address in endpoint["addresses"]
        ]

    def _make(self, body: dict[str, Any]) -> dict[str, Any]:
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": f"uid-{next(self._numbers)}", "creationTimestamp": format_time(self.now)}
        return made

    def _mark_deleted(self, pod: dict[str, Any]) -> None:
        pod["metadata"].setdefault("deletionTimestamp", format_time(self.now))

    def _touch(self) -> None:
        assert self.job is not None
        self.job["metadata"]["resourceVersion"] = str(int(self.version) + 1)


def significant(outcome: Outcome) -> list[Action]:
    """Return the actions that change something."""
    return [action for action in outcome.actions if not isinstance(action, RequeueAt)]
