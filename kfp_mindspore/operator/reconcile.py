"""The controller's decisions: what the API server says → what to do, and the job's status. Pure.

The contract with whoever applies them:

1. The status, when it differs from what stands there, is written first, under the resourceVersion that was observed;
   the actions and events follow only when that has succeeded. So no restart is done that is not counted, whenever the
   operator dies. The attempt and the counted restarts also stand in each pod, and the higher number holds.
2. Actions may be lost, repeated or late: names are fixed, deletes carry a uid, and each action follows again from the
   state as long as it is needed.
3. Neither job nor pods are observed older than they were before, nor the job older than the operator's own last write.
   A new process begins with a consistent list.
4. A create that finds its name taken adds the object that has it to the observation.

A gang is launched in this order: PodGroup, Service (its cluster IP is the members' MS_SCHED_HOST), all pods, and only
when no pod of an earlier attempt is left, and the Service no longer leads to one. When the scheduler's pod has its
address, an EndpointSlice leads there. Until all members run, a missing pod is made; after that, it was deleted.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.names import (
    CLEAN_POD_POLICIES,
    CREATED,
    FAILED,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
)
from kfp_mindspore.msjob.restart import START_ERROR, compute_restart_delay, decide_job_phase
from kfp_mindspore.msjob.topology import get_scheduler_port, is_standalone
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import list_errors
from kfp_mindspore.operator.actions import (
    Action,
    CreateEndpointSlice,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteEndpointSlice,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    EmitEvent,
    RequeueAt,
)
from kfp_mindspore.operator.observed import Observed, PodView
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.pods import build_pod, find_refused_env, lay_out
from kfp_mindspore.operator.services import (
    admits_pods,
    build_endpoint_slice,
    build_pod_group,
    build_service,
    find_address,
    find_minimum,
    leads_astray,
    name_service,
)
from kfp_mindspore.operator.status import (
    count_replicas,
    describe_failure,
    read_status,
    set_condition,
    settle_replicas,
    write_status,
)
from kfp_mindspore.operator.terminations import find_endings

# Of what has a job's name without being its own nobody may tell when it goes.
_RETRY_SECONDS = 15
# Reasons of a failure whose peers have nothing left to save.
_ENDED_AT_ONCE = frozenset({"JobFailed", "BackoffLimitExceeded", START_ERROR})


class Outcome(NamedTuple):
    """A decision.

    Attributes:
        actions: What to do, in this order.
        status: The whole new status on the wire; None to leave it alone.
    """

    actions: tuple[Action, ...]
    status: dict[str, Any] | None


def reconcile(observed: Observed, now: datetime.datetime, options: Options | None = None) -> Outcome:
    """Decide what a job needs.

    Args:
        observed: What the API server says.
        now: The present time, with its zone.
        options: The operator's choices.
    """
    options = options or Options()
    job = observed.job
    if job is None or job["metadata"].get("deletionTimestamp") or not is_managed(job, options):
        return Outcome((), None)
    return _Reconciliation(job, observed, now, options).run()


def is_managed(job: Mapping[str, Any], options: Options) -> bool:
    """Tell whether a job is this operator's, and not left to another manager by `runPolicy.managedBy`."""
    return (_read_policy(job).get("managedBy") or options.manager) == options.manager


class _Reconciliation:
    """One pass over one job; `status` and `actions` are what comes out."""

    def __init__(self, document: Mapping[str, Any], observed: Observed, now: datetime.datetime, options: Options):
        self.document = document
        self.observed = observed
        self.now = now
        self.options = options
        self.uid = str(document["metadata"].get("uid", ""))
        self.name = str(document["metadata"]["name"])
        self.status = read_status(document.get("status"))
        self.pods = tuple(pod for pod in observed.pods if pod.owner == self.uid)
        named = name_service(self.name)
        services = [item for item in observed.services if item.name == named]
        self.service = next((item for item in services if item.owner == self.uid), None)
        endpoints = [item for item in observed.endpoint_slices if item.name == named]
        self.endpoint = next((item for item in endpoints if item.owner == self.uid), None)
        self.foreign = [
            f"{kind} {item.name}"
            for kind, items in (("Service", services), ("EndpointSlice", endpoints))
            for item in items
            if item.owner != self.uid
        ]
        self.attempt = max([self.status.attempt or 0, *(pod.attempt for pod in self.pods)])
        self.restarts = max([self.status.restarts or 0, *(pod.restarts for pod in self.pods)])
        self.actions: list[Action] = []
        self.waiting: str | None = None

    def run(self) -> Outcome:
        if not self.status.is_finished:
            self._proceed()
            if self.waiting and self.waiting != self.status.waiting:
                self._tell("Warning", "Waiting", self.waiting)
            self.status.waiting = self.waiting
        if self.status.is_finished:
            self._clean_up()
        self.status.attempt, self.status.restarts = self.attempt, self.restarts
        return Outcome(tuple(self.actions), write_status(self.status))

    def _proceed(self) -> None:
        document = {key: value for key, value in self.document.items() if key != "status"}
        generation = document["metadata"].get("generation")
        is_validated = generation is not None and generation == self.status.observed_generation
        self.status.observed_generation = generation
        if not is_validated and (errors := list_errors(document)):
            self._fail("InvalidSpec", ValidationError(errors, subject=f"MSJob {self.name}").message)
            return
        self.job = MSJob.from_dict(document, validate=False)
        self.policy = self.job.effective_run_policy
        self.port = get_scheduler_port(self.job)
        self.host = self.service.cluster_ip if self.service and not is_standalone(self.job) else ""
        self.members = lay_out(self.job, self.host, self.port)
        if self.status.get_condition(CREATED) is None:
            message = f"MSJob {self.name} is created"
            set_condition(self.status, CREATED, "JobCreated", message, self.now)
            self._tell("Normal", "JobCreated", message)
            for sentence in find_refused_env(self.job, self.members):
                self._tell("Warning", "EnvReplaced", sentence)
        if self.policy.suspend:
            self._suspend()
            return
        if self.status.has(SUSPENDED):
            self._change(SUSPENDED, "JobResumed", f"MSJob {self.name} is resumed", holds=False)
        if self.status.start_time is None:
            self.status.start_time = self.now
        if self._is_past_deadline():
            seconds = self.policy.active_deadline_seconds
            self._fail("DeadlineExceeded", f"MSJob {self.name} ran longer than {seconds} s")
            return
        self._judge()
        if not self.status.is_finished:
            self._launch()

    def _current(self) -> dict[str, PodView]:
        names = {member.name for member in self.members}
        return {pod.name: pod for pod in self.pods if pod.attempt == self.attempt and pod.name in names}

    def _is_past_deadline(self) -> bool:
        seconds, start = self.policy.active_deadline_seconds, self.status.start_time
        if seconds is None or start is None:
            return False
        end = start + datetime.timedelta(seconds=seconds)
        if self.now < end:
            self.actions.append(RequeueAt(end))
        return self.now >= end

    def _judge(self) -> None:
        current = self._current()
        sizes = {pod.workers for pod in current.values() if pod.workers is not None} - {self.job.workers}
        if sizes:
            was = ", ".join(str(size) for size in sorted(sizes))
            message = f"MSJob {self.name} has {self.job.workers} workers instead of {was}: all members start again"
            self._restart("JobScaled", message, counted=False)
            return
        endings = find_endings(self.members, current, launched=self.status.has(RUNNING), host=self.host)
        decision = decide_job_phase(
            [
                (ending, member.spec.restart_policy or "Never")
                for ending, member in zip(endings, self.members, strict=True)
            ],
            success_policy=self.job.success_policy or "",
            restarts=self.restarts,
            backoff_limit=self.policy.backoff_limit or 0,
        )
        if decision.action == "continue":
            return
        message = decision.message
        if decision.action == "succeed":
            count_replicas(self.status, self.job, self.members, current)
            self._finish(SUCCEEDED, decision.reason, message)
            return
        failures = [
            describe_failure(ending, current[ending.name].log if ending.name in current else (), self.attempt)
            for ending in endings
            if ending.exit_code is not None
        ]
        failure = next(item for item in failures if message.startswith(item.message))
        failure.log = list(failure.log)[-self.options.log_lines :]
        self.status.failure = failure
        if failure.log:
            message = f"{message}; its last line: {failure.log[-1]}"
        if decision.action == "fail":
            count_replicas(self.status, self.job, self.members, current)
            self._fail(decision.reason, message)
        else:
            self._restart(decision.reason, message, counted=decision.counted)

    def _launch(self) -> None:
        current = self._current()
        if not self.status.has(RUNNING):
            count_replicas(self.status, self.job, self.members, {})
        is_led_astray = self.endpoint is not None and leads_astray(self.endpoint, self.pods, self.host, self.port)
        if is_led_astray:
            self._delete_endpoint()
        leftovers = [pod for pod in self.pods if current.get(pod.name) is not pod]
        if leftovers:
            restarting = self.status.get_condition(RESTARTING)
            failed = restarting is not None and restarting.status == "True" and restarting.reason == "JobRestarting"
            for pod in leftovers:
                self._delete_pod(pod, self.options.failure_grace_seconds if failed else None)
            return
        self.waiting = self.observed.refusal or None
        if self._must_pause() or self._is_name_taken() or not self._is_admitted() or not self._has_service():
            return
        scheduler = current.get(name_service(self.name))
        if scheduler is not None and scheduler.is_over:
            # Nobody to lead to any more.
            scheduler = None
        elif is_led_astray:
            return
        if scheduler is not None:
            self._lead_to(scheduler)
        for member in self.members:
            if member.name not in current:
                body = build_pod(
                    self.job,
                    member,
                    host=self.host,
                    attempt=self.attempt,
                    restarts=self.restarts,
                    options=self.options,
                )
                self.actions.append(CreatePod(body))
        if not self.status.has(RUNNING):
            pods = [current[member.name] for member in self.members if member.name in current]
            started = [pod for pod in pods if pod.phase == "Running" or pod.exit_code is not None]
            if len(started) == len(self.members):
                self._change(RUNNING, "JobRunning", f"MSJob {self.name} is running")
            troubles = [f"{pod.name}: {pod.waits_for}" for pod in pods if pod.waits_for]
            if troubles:
                # Of several, what was told already is no news, whichever pod comes to it next.
                self.waiting = self.status.waiting if self.status.waiting in troubles else troubles[0]
        if self.status.has(RUNNING):
            count_replicas(self.status, self.job, self.members, current)

    def _must_pause(self) -> bool:
        condition = self.status.get_condition(RESTARTING)
        if condition is None or condition.status != "True" or condition.reason != "JobRestarting":
            return False
        start = (condition.last_update_time or self.now) + datetime.timedelta(
            seconds=compute_restart_delay(self.restarts)
        )
        if self.now < start:
            self.actions.append(RequeueAt(start))
        return self.now < start

    def _is_name_taken(self) -> bool:
        names = {member.name for member in self.members}
        taken = [f"pod {pod.name}" for pod in self.observed.pods if pod.name in names and pod.owner != self.uid]
        if not is_standalone(self.job):
            taken += self.foreign
        group = self.observed.pod_group
        if group is not None and group.owner != self.uid and self.options.gang_scheduler != "none":
            taken.append(f"PodGroup {group.name}")
        if taken:
            self.waiting = f"{', '.join(taken)}: exists and does not belong to this job; delete or rename it"
            self.actions.append(RequeueAt(self.now + datetime.timedelta(seconds=_RETRY_SECONDS)))
        return bool(taken)

    def _is_admitted(self) -> bool:
        if self.options.gang_scheduler == "none":
            return True
        group = self.observed.pod_group
        if group is None:
            self.actions.append(CreatePodGroup(build_pod_group(self.job, self.members, self.options)))
            # Without a PodGroup nobody counts pods; a Service does no harm meanwhile.
            self._has_service()
            return False
        if group.deleting:
            return False
        if group.minimum != find_minimum(self.job, len(self.members)) and not self._current():
            self.actions.append(DeletePodGroup(group.name, group.uid))
            return False
        return bool(self._current()) or admits_pods(group, self.options)

    def _has_service(self) -> bool:
        if is_standalone(self.job):
            return True
        if self.service is None:
            self.actions.append(CreateService(build_service(self.job, self.port)))
            return False
        if self.service.deleting:
            return False
        if self.service.port != self.port and not self._current():
            self.actions.append(DeleteService(self.service.name, self.service.uid))
            return False
        return bool(self.service.cluster_ip)

    def _lead_to(self, scheduler: PodView) -> None:
        if self.endpoint is None and self.host and (address := find_address(scheduler, self.host)):
            body = build_endpoint_slice(self.job, scheduler, address, self.port)
            self.actions.append(CreateEndpointSlice(body))

    def _restart(self, reason: str, message: str, *, counted: bool) -> None:
        self.attempt += 1
        self.restarts += counted
        self._change(RESTARTING, reason, message)

    def _suspend(self) -> None:
        if not self.status.has(SUSPENDED):
            if self.status.start_time is not None or self._current():
                # What still ends of this gang must not be taken for the one after the suspension.
                self.attempt += 1
            self._change(SUSPENDED, "JobSuspended", f"MSJob {self.name} is suspended")
        self.status.start_time = None
        count_replicas(self.status, self.job, self.members, {})
        for pod in self.pods:
            self._delete_pod(pod, None)
        self._delete_endpoint()
        self._delete_service()
        self._delete_pod_group()

    def _fail(self, reason: str, message: str) -> None:
        self._finish(FAILED, reason, message)

    def _finish(self, condition: str, reason: str, message: str) -> None:
        self._change(condition, reason, message)
        self.status.completion_time = self.now
        settle_replicas(self.status, succeeded=condition == SUCCEEDED)

    def _clean_up(self) -> None:
        raw = _read_policy(self.document)
        # An invalid job has a policy that may say anything.
        policy = raw.get("cleanPodPolicy") if raw.get("cleanPodPolicy") in CLEAN_POD_POLICIES else "Running"
        failed = self.status.get_condition(FAILED)
        at_once = failed is not None and failed.status == "True" and failed.reason in _ENDED_AT_ONCE
        for pod in self.pods:
            if pod.attempt < self.attempt or policy == "All" or (policy == "Running" and not pod.is_over):
                self._delete_pod(pod, self.options.failure_grace_seconds if at_once else None)
        if policy != "None":
            self._delete_endpoint()
            self._delete_service()
        elif self.endpoint is not None and leads_astray(self.endpoint, self.pods):
            self._delete_endpoint()
        self._delete_pod_group()
        seconds, end = raw.get("ttlSecondsAfterFinished"), self.status.completion_time
        if isinstance(seconds, int) and not isinstance(seconds, bool) and end is not None:
            end += datetime.timedelta(seconds=seconds)
            self.actions.append(RequeueAt(end) if self.now < end else DeleteJob(self.name, self.uid))

    def _delete_pod(self, pod: PodView, grace_seconds: int | None) -> None:
        if not pod.deleting:
            self.actions.append(DeletePod(pod.name, pod.uid, grace_seconds))

    def _delete_endpoint(self) -> None:
        if self.endpoint is not None and not self.endpoint.deleting:
            self.actions.append(DeleteEndpointSlice(self.endpoint.name, self.endpoint.uid))

    def _delete_service(self) -> None:
        if self.service is not None and not self.service.deleting:
            self.actions.append(DeleteService(self.service.name, self.service.uid))

    def _delete_pod_group(self) -> None:
        group = self.observed.pod_group
        if group is not None and group.owner == self.uid and not group.deleting:
            self.actions.append(DeletePodGroup(group.name, group.uid))

    def _change(self, condition: str, reason: str, message: str, *, holds: bool = True) -> None:
        set_condition(self.status, condition, reason, message, self.now, holds=holds)
        self._tell("Warning" if condition in (FAILED, RESTARTING) else "Normal", reason, message)

    def _tell(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        self.actions.append(EmitEvent(kind, reason, message))


def _read_policy(job: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = job.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    return policy if isinstance(policy, Mapping) else {}
