"""MSJobs for ms-operator (mindspore.gitee.com/v1), and for its first generation from 2020 (kubeflow.org/v1)."""

from __future__ import annotations

import copy

from kfp_mindspore.msjob.api.names import API_VERSION, FIRST_API_VERSION, KIND, PARAMETER_SERVER, SCHEDULER, WORKER
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.topology import get_scheduler_port
from kfp_mindspore.msjob.kinds.common import (
    JobKind,
    Manifest,
    Notes,
    copy_metadata,
    copy_template,
    get_container,
    note_dropped,
    note_scheduler,
    refuse_parameter_servers,
    set_pod_restart_policy,
    wrap_command,
)

_RUN_POLICY = ("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "ttlSecondsAfterFinished")
_SCHEDULING = ("minAvailable", "minResources", "priorityClass", "queue")
_SPEC = ("successPolicy", "enableDynamicWorker")
_KEPT = (
    *(f"runPolicy.{name}" for name in _RUN_POLICY),
    *(f"runPolicy.schedulingPolicy.{name}" for name in _SCHEDULING),
    *_SPEC,
)


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return the MSJob with the fields in ms-operator's definition, and a scheduler, which it does not add itself."""
    note_dropped(job, "ms-operator", _KEPT, notes)
    document = job.to_dict()
    spec = {name: value for name, value in document["spec"].items() if name in (*_SPEC, "msReplicaSpecs")}
    if run_policy := document["spec"].get("runPolicy"):
        spec["runPolicy"] = {name: value for name, value in run_policy.items() if name in _RUN_POLICY}
        scheduling = run_policy.get("schedulingPolicy") or {}
        if kept := {name: value for name, value in scheduling.items() if name in _SCHEDULING}:
            spec["runPolicy"]["schedulingPolicy"] = kept
    replicas = spec["msReplicaSpecs"]
    if SCHEDULER not in replicas and (job.workers > 1 or PARAMETER_SERVER in replicas):
        policy = replicas[WORKER].get("restartPolicy", "Never")
        template = copy_template(job, SCHEDULER)
        spec["msReplicaSpecs"] = {SCHEDULER: {"replicas": 1, "restartPolicy": policy, "template": template}, **replicas}
    for name, replica in document["spec"]["msReplicaSpecs"].items():
        if replica["template"].get("metadata"):
            path = f"spec.msReplicaSpecs.{name}.template.metadata"
            notes.change(path, "has no effect", "the definition of ms-operator prunes it")
    return [{"apiVersion": API_VERSION, "kind": KIND, "metadata": copy_metadata(job.metadata), "spec": spec}]


def export_first(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return the first generation's MSJob: worker 0 is its MASTER.

    Its operator sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, from which the entry point sets MS_*.
    """
    refuse_parameter_servers(job, "the first generation of MSJob")
    note_dropped(job, "the first generation of MSJob", (), notes)
    note_scheduler(job, "MSJob of the first generation", notes)
    template = copy_template(job, WORKER)
    path = f"spec.msReplicaSpecs.{WORKER}"
    policy = job.ms_replica_specs[WORKER].effective_restart_policy
    if policy == "ExitCode":
        notes.change(f"{path}.restartPolicy", "ExitCode is now OnFailure", "its pods have no such policy")
        policy = "OnFailure"
    set_pod_restart_policy(template, f"{path}.template", notes, policy)
    port = get_scheduler_port(job)
    if job.workers > 1:
        wrap_command(get_container(template), f"spec.msReplicaSpecs.{WORKER}.template.spec.containers[0]", notes)
    replicas = [{"replicaType": "MASTER", "replicas": 1, "masterPort": port, "template": template}]
    if job.workers > 1:
        replicas.append({
            "replicaType": "WORKER", "replicas": job.workers - 1, "masterPort": port,
            "template": copy.deepcopy(template),
        })  # fmt: skip
    spec = {"replicaSpecs": replicas}
    return [{"apiVersion": FIRST_API_VERSION, "kind": KIND, "metadata": copy_metadata(job.metadata), "spec": spec}]


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the document itself: an ms-operator MSJob is valid here."""
    return job


LEGACY = JobKind("legacy", API_VERSION, KIND, "MSJob for ms-operator", export, read)
FIRST_GENERATION = JobKind(
    "first-generation", FIRST_API_VERSION, KIND, "MSJob of 2020 (kubeflow.org/v1)", export_first, read
)
