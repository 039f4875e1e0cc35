"""Volcano Job (batch.volcano.sh/v1alpha1): one task per replica type.

The plugin `svc` makes a headless Service with the job's name, so that the scheduler's host is
`<job>-scheduler-0.<job>`; the plugin `env` sets VC_TASK_INDEX, the rank.
"""

from __future__ import annotations

from typing import Any

from kfp_mindspore.msjob.api.names import REPLICA_TYPES, SCHEDULER, WORKER, resolve_replica_type
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.topology import is_standalone
from kfp_mindspore.msjob.kinds.common import (
    JobKind,
    Manifest,
    Notes,
    build_job_document,
    check_available,
    convert_restart_policy,
    copy_metadata,
    copy_template,
    drop_empty,
    get_container,
    note_dropped,
    note_scheduler,
    read_container,
    read_scheduling,
    remove_variables,
    set_cluster_variables,
    set_pod_restart_policy,
)

_NAME = "volcano"
_QUEUE = "default"
# Volcano 1.10 counts the first failure too, and its webhook replaces 0.
_DEFAULT_MAX_RETRY = 3
_KEPT = (
    *("runPolicy.backoffLimit", "runPolicy.ttlSecondsAfterFinished"),
    *(f"runPolicy.schedulingPolicy.{name}" for name in ("minAvailable", "priorityClass", "queue")),
)


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return a job's Volcano Job."""
    note_dropped(job, _NAME, _KEPT, notes)
    alone = is_standalone(job, job.workers)
    note_scheduler(job, _NAME, notes, policy_only=not alone)
    types = [WORKER] if alone else [SCHEDULER, *(kind for kind in REPLICA_TYPES[1:] if kind in job.ms_replica_specs)]
    tasks = [_build_task(job, kind, notes, alone=alone) for kind in types]
    policy = job.effective_run_policy
    scheduling = policy.scheduling_policy
    total = sum(task["replicas"] for task in tasks)
    available = (scheduling and scheduling.min_available) or total
    check_available(available, total, "spec.runPolicy.schedulingPolicy", notes)
    limit = convert_restart_policy(job, _NAME, notes)
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "minAvailable": available,
        # Set by Volcano's webhook, where it is installed.
        "queue": (scheduling and scheduling.queue) or _QUEUE,
        "priorityClassName": scheduling.priority_class if scheduling else None,
        "maxRetry": limit + 1,
        "ttlSecondsAfterFinished": policy.ttl_seconds_after_finished,
        # Workers resolve the scheduler's name before its pod is ready.
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
        "policies": [
            {"event": "PodEvicted", "action": "RestartJob"},
            {"event": "PodFailed", "action": "RestartJob" if limit else "AbortJob"},
        ],
        "tasks": tasks,
    }
    return [{
        "apiVersion": KIND.api_version, "kind": KIND.kind, "metadata": copy_metadata(job.metadata),
        "spec": drop_empty(spec),
    }]  # fmt: skip


def _build_task(job: JobManifest, kind: str, notes: Notes, *, alone: bool) -> Manifest:
    template = copy_template(job, kind)
    set_pod_restart_policy(template, f"spec.msReplicaSpecs.{kind}.template", notes)
    container = get_container(template)
    own = job.ms_replica_specs.get(kind)
    if not alone:
        set_cluster_variables(container, job, kind, f"{job.name}-{SCHEDULER.lower()}-0.{job.name}", notes)
    task: Manifest = {"name": kind.lower(), "replicas": (own.replicas if own else 1) or 1, "template": template}
    if kind == WORKER:
        task["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    return task


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the MSJob document for a Volcano Job whose tasks are scheduler, ps and worker."""
    spec = notes.read(job["spec"], "spec")
    policies = spec.take("policies", [])
    if policies:
        notes.change("spec.policies", "dropped", "restartPolicy of Worker restarts the job")
    spec.drop("MSJob sets addresses and ranks", "plugins")
    spec.drop("the operator of MSJob sets the scheduler of gangs", schedulerName="volcano")
    spec.drop("it is a hint to the scheduler", "runningEstimate")
    restarts = (spec.take("maxRetry", 0) or _DEFAULT_MAX_RETRY) - 1
    policy = _read_restart_policy(policies) if restarts else "Never"
    replicas: dict[str, Any] = {}
    tasks = spec.take("tasks", [])
    for index, item in enumerate(tasks):
        task = notes.read(item, f"spec.tasks[{index}]")
        name = task.take("name", "")
        kind = resolve_replica_type(name) or (WORKER if len(tasks) == 1 else "")
        if not kind or kind in replicas:
            notes.errors.append(f"spec.tasks: {name!r} must be one of scheduler, ps and worker, each once")
            return {}
        count = task.take("replicas", 1)
        task.drop("MSJob starts its pods together", "dependsOn", minAvailable=count)
        task.drop("restartPolicy of Worker restarts the job", "maxRetry", "policies")
        task.drop("MSJob has no field for it", topologyPolicy="none")
        template, path = task.take_template(), f"{task.path}.template"
        remove_variables(read_container(template, path, notes), f"{path}.spec.containers[0]", notes)
        replicas[kind] = {"replicas": count, "restartPolicy": policy, "template": template}
    scheduling = {
        "minAvailable": spec.take("minAvailable"),
        "queue": spec.take("queue"),
        "priorityClass": spec.take("priorityClassName"),
    }
    total = sum(item["replicas"] for item in replicas.values())
    run_policy = {
        "backoffLimit": restarts,
        "ttlSecondsAfterFinished": spec.take("ttlSecondsAfterFinished"),
        "schedulingPolicy": read_scheduling(scheduling, total, "spec", notes),
    }
    return build_job_document(job["metadata"], replicas, runPolicy=drop_empty(run_policy))


def _read_restart_policy(policies: list[Manifest]) -> str:
    events = {
        event
        for item in policies
        if item.get("action") == "RestartJob"
        for event in (*(item.get("events") or ()), item.get("event"))
    }
    if events & {"*", "PodFailed", "TaskFailed"}:
        return "OnFailure"
    # Evictions alone restart the job.
    return "ExitCode" if events else "Never"


KIND = JobKind(_NAME, "batch.volcano.sh/v1alpha1", "Job", "Volcano Job with a task per replica type", export, read)
