"""TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1) and its ClusterTrainingRuntime.

The runtime is a JobSet of two replicated jobs: `scheduler`, and `node` with one pod per worker. An indexed Job sets
JOB_COMPLETION_INDEX, the rank. The scheduler's name is `<job>-scheduler-0-0.<job>`, from JobSet.
"""

from __future__ import annotations

import copy
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
    refuse_parameter_servers,
    restarts,
    set_cluster_variables,
)
from kfp_mindspore.msjob.names import SCHEDULER, WORKER
from kfp_mindspore.msjob.spec import JobManifest

_NAME = "TrainJob"
_RUNTIME = "ClusterTrainingRuntime"
_NODE, _SCHEDULER = "node", "scheduler"
_KEPT = ("activeDeadlineSeconds", "backoffLimit", "suspend", "ttlSecondsAfterFinished")
_FRAMEWORK = {"trainer.kubeflow.org/framework": "mindspore"}
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
# Moved from the template into the TrainJob.
_TRAINER_FIELDS = ("image", "command", "args", "env")


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return the runtime and the TrainJob of a job."""
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, _KEPT, notes)
    metadata = copy_metadata(job)
    # Runtimes have no namespace, so their names carry it.
    runtime_name = "-".join(word for word in (metadata.get("namespace"), job.name) if word)
    policy = job.effective_run_policy
    alone = job.workers == 1
    jobs = [] if alone else [_build_replicated_job(job, SCHEDULER, _SCHEDULER, notes)]
    node = _build_replicated_job(job, WORKER, _NODE, notes)
    jobs.append(node)
    container = find_container(node["template"]["spec"]["template"], _NODE)
    trainer = {name: copy.deepcopy(container[name]) for name in _TRAINER_FIELDS if name in container}
    for name in ("command", "args", "env"):
        container.pop(name, None)
    trainer["numNodes"] = job.workers
    if resources := container.get("resources"):
        trainer["resourcesPerNode"] = copy.deepcopy(resources)
    job_set: Manifest = {
        "replicatedJobs": jobs,
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [_NODE]},
        "failurePolicy": {"maxRestarts": policy.backoff_limit if restarts(job) else 0},
        # Workers resolve the scheduler's name before it is ready.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
    }
    if policy.ttl_seconds_after_finished is not None:
        job_set["ttlSecondsAfterFinished"] = policy.ttl_seconds_after_finished
    runtime = {
        "apiVersion": KIND.api_version,
        "kind": _RUNTIME,
        "metadata": {"name": runtime_name, "labels": _FRAMEWORK},
        "spec": {"mlPolicy": {"numNodes": job.workers}, "template": {"spec": job_set}},
    }
    spec: Manifest = {"runtimeRef": {"name": runtime_name, "kind": _RUNTIME}, "trainer": trainer}
    if policy.suspend:
        spec["suspend"] = True
    return [runtime, {"apiVersion": KIND.api_version, "kind": _NAME, "metadata": metadata, "spec": spec}]


def _build_replicated_job(job: JobManifest, replica_type: str, name: str, notes: Notes) -> Manifest:
    template = copy_template(job, replica_type)
    container = find_container(template)
    container["name"] = _NODE
    template["spec"]["restartPolicy"] = "Never"
    template["spec"]["containers"].sort(key=lambda item: item is not container)
    if job.workers > 1:
        set_cluster_variables(container, job, replica_type, f"{job.name}-{_SCHEDULER}-0-0.{job.name}", notes)
    count = job.workers if name == _NODE else 1
    spec: Manifest = {
        "completionMode": "Indexed",
        "parallelism": count,
        "completions": count,
        "backoffLimit": 0,
        "template": template,
    }
    if (deadline := job.effective_run_policy.active_deadline_seconds) is not None:
        spec["activeDeadlineSeconds"] = deadline
    metadata = {"metadata": {"labels": _STEP}} if name == _NODE else {}
    return {"name": name, "replicas": 1, "template": {**metadata, "spec": spec}}


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the document of the MSJob of a TrainJob; its runtime must be among the other documents."""
    spec = job["spec"]
    check_fields(spec, "spec", ("runtimeRef", "trainer", "suspend", "managedBy"), notes)
    name = (spec.get("runtimeRef") or {}).get("name")
    runtimes = [item for item in others if item.get("kind") in (_RUNTIME, "TrainingRuntime")]
    runtime = next((item for item in runtimes if item["metadata"].get("name") == name), None)
    if runtime is None:
        notes.errors.append(f"spec.runtimeRef.name: the runtime {name!r} must be in the same file")
        return {}
    others.remove(runtime)
    job_set = runtime["spec"]["template"]["spec"]
    replicated = {item["name"]: item["template"]["spec"] for item in job_set.get("replicatedJobs") or []}
    if _NODE not in replicated:
        notes.errors.append(f"{_RUNTIME} {name}: must have the replicated job {_NODE!r}, got {', '.join(replicated)}")
        return {}
    trainer: dict[str, Any] = dict(spec.get("trainer") or {})
    maximum = (job_set.get("failurePolicy") or {}).get("maxRestarts", 0)
    policy = "ExitCode" if maximum else "Never"
    replicas: dict[str, Any] = {}
    for replica_type, key in ((SCHEDULER, _SCHEDULER), (WORKER, _NODE)):
        if key not in replicated:
            continue
        fields = {name: trainer[name] for name in _TRAINER_FIELDS if name in trainer} if key == _NODE else {}
        if key == _NODE and "resourcesPerNode" in trainer:
            fields["resources"] = trainer["resourcesPerNode"]
        count = trainer.get("numNodes") or (runtime["spec"].get("mlPolicy") or {}).get("numNodes") or 1
        replicas[replica_type] = {
            "replicas": count if key == _NODE else 1,
            "restartPolicy": policy,
            "template": read_template(replicated[key]["template"], _NODE, **fields),
        }
    run_policy = {
        "activeDeadlineSeconds": replicated[_NODE].get("activeDeadlineSeconds"),
        "backoffLimit": maximum,
        "suspend": spec.get("suspend"),
        "ttlSecondsAfterFinished": job_set.get("ttlSecondsAfterFinished"),
    }
    return build_job_document(job["metadata"], replicas, runPolicy=drop_empty(run_policy))


KIND = JobKind(
    _NAME, "trainer.kubeflow.org/v1alpha1", _NAME, "Kubeflow Trainer, with its ClusterTrainingRuntime", export, read
)
