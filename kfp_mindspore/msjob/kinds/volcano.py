"""Job of Volcano (batch.volcano.sh/v1alpha1): one task per replica type.

The plugin `svc` makes a headless Service with the job's name, so that the scheduler's host is
`<job>-scheduler-0.<job>`; the plugin `env` sets VC_TASK_INDEX, the rank.
"""

from __future__ import annotations

from typing import Any

from kfp_mindspore.msjob.kinds.common import (
    JobKind,
    Manifest,
    Notes,
    build_job_document,
    check_fields,
    copy_metadata,
    copy_template,
    drop_empty,
    find_container,
    note_dropped,
    read_template,
    restarts,
    set_cluster_variables,
)
from kfp_mindspore.msjob.names import REPLICA_TYPES, SCHEDULER, WORKER, resolve_replica_type
from kfp_mindspore.msjob.spec import JobManifest
from kfp_mindspore.msjob.topology import is_standalone

_NAME = "volcano"
_QUEUE = "default"
_KEPT = ("backoffLimit", "schedulingPolicy", "ttlSecondsAfterFinished")


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return the Volcano Job of a job."""
    note_dropped(job, _NAME, _KEPT, notes)
    alone = is_standalone(job, job.workers)
    types = [WORKER] if alone else [SCHEDULER, *(kind for kind in REPLICA_TYPES[1:] if kind in job.ms_replica_specs)]
    tasks = [_build_task(job, kind, notes, alone=alone) for kind in types]
    policy = job.effective_run_policy
    scheduling = policy.scheduling_policy
    total = sum(task["replicas"] for task in tasks)
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "minAvailable": (scheduling and scheduling.min_available) or total,
        # Set by Volcano's webhook, where it is installed.
        "queue": (scheduling and scheduling.queue) or _QUEUE,
        "priorityClassName": scheduling.priority_class if scheduling else None,
        "maxRetry": policy.backoff_limit if restarts(job) else 0,
        "ttlSecondsAfterFinished": policy.ttl_seconds_after_finished,
        # Workers resolve the scheduler's name before its pod is ready.
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
        "policies": [
            {"event": "PodEvicted", "action": "RestartJob"},
            {"event": "PodFailed", "action": "RestartJob" if restarts(job) else "AbortJob"},
        ],
        "tasks": tasks,
    }
    return [{
        "apiVersion": KIND.api_version, "kind": KIND.kind, "metadata": copy_metadata(job), "spec": drop_empty(spec),
    }]  # fmt: skip


def _build_task(job: JobManifest, kind: str, notes: Notes, *, alone: bool) -> Manifest:
    template = copy_template(job, kind)
    template["spec"]["restartPolicy"] = "Never"
    container = find_container(template)
    own = job.ms_replica_specs.get(kind)
    if not alone:
        set_cluster_variables(container, job, kind, f"{job.name}-{SCHEDULER.lower()}-0.{job.name}", notes)
    task: Manifest = {"name": kind.lower(), "replicas": (own.replicas if own else 1) or 1, "template": template}
    if kind == WORKER:
        task["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    return task


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the document of the MSJob of a Volcano Job whose tasks are scheduler, ps and worker."""
    spec = job["spec"]
    known = ("maxRetry", "minAvailable", "plugins", "policies", "priorityClassName", "queue", "schedulerName")
    check_fields(spec, "spec", (*known, "tasks", "ttlSecondsAfterFinished"), notes)
    tasks = {str(task.get("name")): task for task in spec.get("tasks") or []}
    kinds = {name: resolve_replica_type(name) or (WORKER if len(tasks) == 1 else "") for name in tasks}
    for name in (name for name, kind in kinds.items() if not kind):
        notes.errors.append(f"spec.tasks: {name!r} must be one of scheduler, ps and worker")
    if notes.errors:
        return {}
    for name in ("plugins", "policies"):
        if name in spec:
            notes.change(f"spec.{name}", "dropped", "MSJob sets addresses and ranks, and restartPolicy restarts it")
    actions = {item.get("action") for item in spec.get("policies") or []}
    maximum = spec.get("maxRetry", 3)
    policy = "ExitCode" if maximum and "RestartJob" in actions else "Never"
    replicas = {}
    for name, task in tasks.items():
        template = read_template(task["template"])
        replicas[kinds[name]] = {"replicas": task.get("replicas", 1), "restartPolicy": policy, "template": template}
    total = sum(item["replicas"] for item in replicas.values())
    available = spec.get("minAvailable")
    scheduling = {
        "minAvailable": available if available != total else None,
        "queue": None if spec.get("queue") == _QUEUE else spec.get("queue"),
        "priorityClass": spec.get("priorityClassName"),
    }
    run_policy = {
        "backoffLimit": maximum,
        "ttlSecondsAfterFinished": spec.get("ttlSecondsAfterFinished"),
        "schedulingPolicy": drop_empty(scheduling) or None,
    }
    return build_job_document(job["metadata"], replicas, runPolicy=drop_empty(run_policy))


KIND = JobKind(_NAME, "batch.volcano.sh/v1alpha1", "Job", "Volcano Job with a task per replica type", export, read)
