"""TrainJob for Kubeflow Trainer (trainer.kubeflow.org/v1alpha1) and its ClusterTrainingRuntime.

The runtime is a JobSet of two replicated jobs: `scheduler`, and `node` with one pod per worker. An indexed Job sets
JOB_COMPLETION_INDEX, the rank. The scheduler's name is `<job>-scheduler-0-0.<job>`, from JobSet.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.msjob.api.names import SCHEDULER, WORKER
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.kinds.common import (
    Fields,
    JobKind,
    Manifest,
    Notes,
    build_job_document,
    convert_restart_policy,
    copy_metadata,
    copy_template,
    drop_empty,
    get_container,
    note_dropped,
    note_scheduler,
    read_container,
    refuse_parameter_servers,
    remove_variables,
    set_cluster_variables,
    set_pod_restart_policy,
    wrap_command,
)

_NAME = "TrainJob"
RUNTIME_KIND = "ClusterTrainingRuntime"
NODE, _SCHEDULER = "node", "scheduler"
_KEPT = tuple(
    f"runPolicy.{name}"
    for name in ("activeDeadlineSeconds", "backoffLimit", "managedBy", "suspend", "ttlSecondsAfterFinished")
)
_OWN_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
FRAMEWORK_LABELS = {"trainer.kubeflow.org/framework": "mindspore"}
STEP_LABELS = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
# Moved from the template into the TrainJob.
_TRAINER_FIELDS = ("image", "command", "args", "env")
# Fields that Trainer 2.3 lets a TrainJob patch in its runtime.
_POD_PATCHES = (
    *("serviceAccountName", "volumes", "imagePullSecrets", "securityContext", "nodeSelector", "affinity"),
    *("tolerations", "schedulingGates", "terminationGracePeriodSeconds"),
)
_CONTAINER_PATCHES = ("volumeMounts", "securityContext")
_MANAGER = "mindspore.gitee.com/kfp-mindspore"


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return the runtime and a job's TrainJob."""
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, _KEPT, notes)
    metadata = copy_metadata(job.metadata)
    # Runtimes have no namespace, so their names carry it.
    runtime_name = "-".join(word for word in (metadata.get("namespace"), job.name) if word)
    policy = job.effective_run_policy
    alone = job.workers == 1
    note_scheduler(job, _NAME, notes, policy_only=not alone)
    jobs = [] if alone else [_build_replicated_job(job, SCHEDULER, _SCHEDULER, notes)]
    node = _build_replicated_job(job, WORKER, NODE, notes)
    jobs.append(node)
    container = get_container(node["template"]["spec"]["template"], NODE)
    trainer = {name: copy.deepcopy(container[name]) for name in _TRAINER_FIELDS if name in container}
    for name in ("command", "args", "env"):
        container.pop(name, None)
    trainer["numNodes"] = job.workers
    if resources := container.get("resources"):
        trainer["resourcesPerNode"] = copy.deepcopy(resources)
    job_set: Manifest = {
        "replicatedJobs": jobs,
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [NODE]},
        "failurePolicy": {"maxRestarts": convert_restart_policy(job, _NAME, notes)},
        # Workers resolve the scheduler's name before it is ready.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
    }
    if policy.ttl_seconds_after_finished is not None:
        job_set["ttlSecondsAfterFinished"] = policy.ttl_seconds_after_finished
    runtime = {
        "apiVersion": KIND.api_version,
        "kind": RUNTIME_KIND,
        "metadata": {"name": runtime_name, "labels": FRAMEWORK_LABELS},
        "spec": {"mlPolicy": {"numNodes": job.workers}, "template": {"spec": job_set}},
    }
    spec: Manifest = {"runtimeRef": {"name": runtime_name, "kind": RUNTIME_KIND}, "trainer": trainer}
    if policy.suspend:
        spec["suspend"] = True
    if policy.managed_by:
        spec["managedBy"] = policy.managed_by
    return [runtime, {"apiVersion": KIND.api_version, "kind": _NAME, "metadata": metadata, "spec": spec}]


def export_with_runtime(job: JobManifest, runtime: Manifest, notes: Notes) -> Manifest:
    """Return a job's TrainJob with a runtime that the cluster has, which restarts by exit codes.

    Args:
        job: The job.
        runtime: The runtime, as `kfp_mindspore.msjob.training_runtime` builds it for several nodes.
        notes: Receives the changes, and an error for each field of the pods that a TrainJob cannot patch.
    """
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, [name for name in _KEPT if name != "runPolicy.ttlSecondsAfterFinished"], notes)
    note_scheduler(job, _NAME, notes)
    name = runtime["metadata"]["name"]
    reason = f"the {RUNTIME_KIND} {name} sets it"
    worker, run_policy = job.ms_replica_specs[WORKER], job.effective_run_policy
    if worker.effective_restart_policy != "ExitCode":
        path = f"spec.msReplicaSpecs.{WORKER}.restartPolicy"
        notes.change(path, f"{worker.effective_restart_policy} is now ExitCode", reason)
    maximum = runtime["spec"]["template"]["spec"].get("failurePolicy", {}).get("maxRestarts", 0)
    if (limit := run_policy.backoff_limit or 0) != maximum:
        notes.change("spec.runPolicy.backoffLimit", f"{limit} is now {maximum}", reason)
    template = copy_template(job, WORKER)
    path = f"spec.msReplicaSpecs.{WORKER}.template"
    set_pod_restart_policy(template, path, notes)
    pod = template["spec"]
    del pod["restartPolicy"]
    container = get_container(template)
    pod["containers"].remove(container)
    if job.workers > 1:
        wrap_command(container, f"{path}.spec.containers[0]", notes)
    trainer = {field: container.pop(field) for field in _TRAINER_FIELDS if field in container}
    trainer["numNodes"] = job.workers
    if resources := container.pop("resources", None):
        trainer["resourcesPerNode"] = resources
    container["name"] = NODE
    patched = {field: pod.pop(field) for field in _POD_PATCHES if field in pod}
    mounts = {field: container.pop(field) for field in ("name", *_CONTAINER_PATCHES) if field in container}
    if len(mounts) > 1:
        patched["containers"] = [mounts]
    left = [f"{path}.spec.{field}" for field, value in pod.items() if value]
    left += [f"{path}.spec.containers[0].{field}" for field, value in container.items() if value]
    notes.errors += [f"{item}: cannot be set with the {RUNTIME_KIND} {name}" for item in left]
    spec: Manifest = {"runtimeRef": {"name": name, "kind": RUNTIME_KIND}, "trainer": trainer}
    patch = drop_empty({"metadata": template.get("metadata") or None, "spec": patched or None})
    if patch:
        node = {"name": NODE, "template": {"spec": {"template": patch}}}
        runtime_patch = {"template": {"spec": {"replicatedJobs": [node]}}}
        spec["runtimePatches"] = [{"manager": _MANAGER, "trainingRuntimeSpec": runtime_patch}]
    policy = {"activeDeadlineSeconds": run_policy.active_deadline_seconds, "managedBy": run_policy.managed_by or None}
    spec |= drop_empty({**policy, "suspend": run_policy.suspend or None})
    return {"apiVersion": KIND.api_version, "kind": _NAME, "metadata": copy_metadata(job.metadata), "spec": spec}


def _build_replicated_job(job: JobManifest, replica_type: str, name: str, notes: Notes) -> Manifest:
    template = copy_template(job, replica_type)
    container = get_container(template)
    container["name"] = NODE
    set_pod_restart_policy(template, f"spec.msReplicaSpecs.{replica_type}.template", notes)
    template["spec"]["containers"].sort(key=lambda item: item is not container)
    if job.workers > 1:
        set_cluster_variables(container, job, replica_type, f"{job.name}-{_SCHEDULER}-0-0.{job.name}", notes)
    count = job.workers if name == NODE else 1
    spec: Manifest = {
        "completionMode": "Indexed",
        "parallelism": count,
        "completions": count,
        "backoffLimit": 0,
        "template": template,
    }
    if (deadline := job.effective_run_policy.active_deadline_seconds) is not None:
        spec["activeDeadlineSeconds"] = deadline
    metadata = {"metadata": {"labels": STEP_LABELS}} if name == NODE else {}
    return {"name": name, "replicas": 1, "template": {**metadata, "spec": spec}}


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the MSJob document for a TrainJob; its runtime must be among the other documents."""
    spec = notes.read(job["spec"], "spec")
    reference = spec.child("runtimeRef")
    name, kind = reference.take("name"), reference.take("kind", RUNTIME_KIND)
    reference.drop("the runtime becomes part of the job", apiGroup=KIND.api_version.partition("/")[0])
    found = [item for item in others if (item.get("kind"), item["metadata"].get("name")) == (kind, name)]
    if not found:
        notes.errors.append(f"spec.runtimeRef.name: the {kind} {name!r} must be in the same file")
        return {}
    others.remove(found[0])
    runtime = notes.read(found[0]["spec"], f"{kind} {name}: spec")
    notes.change(f"{kind} {name}", "dropped", "it becomes part of the job")
    runtime.drop("the operator of MSJob chooses the scheduler of gangs", "podGroupPolicy")
    policy = runtime.child("mlPolicy")
    policy.drop("MSJob sets MS_*, and a worker is one process", "torch")
    template = runtime.child("template")
    template.drop("an MSJob has one object", "metadata")
    job_set = template.child("spec")
    job_set.drop("whatever runs an MSJob connects its pods and starts them together", "network", "startupPolicy")
    job_set.drop("an MSJob has a successPolicy of its own", "successPolicy")
    job_set.drop("that of the TrainJob is used", "managedBy", "suspend")
    failures = job_set.child("failurePolicy")
    failures.drop("the job is restarted as a whole", restartStrategy="Recreate")
    maximum = failures.take("maxRestarts", 0)
    trainer = spec.child("trainer")
    trainer.drop("a worker is one process", numProcPerNode=1)
    count = trainer.take("numNodes") or policy.take("numNodes")
    if replaced := policy.take("numNodes"):
        notes.change(f"{policy.path}.numNodes", f"{replaced} dropped", "that of the TrainJob is used")
    replicas: dict[str, Any] = {}
    deadlines = [spec.take("activeDeadlineSeconds")]
    for index, item in enumerate(job_set.take("replicatedJobs", [])):
        replica_type = {_SCHEDULER: SCHEDULER, NODE: WORKER}.get(item["name"])
        path = f"{job_set.path}.replicatedJobs[{index}]"
        if replica_type is None or replica_type in replicas:
            notes.errors.append(f"{path}: must be {NODE!r} or {_SCHEDULER!r}, each once, got {item['name']!r}")
            continue
        pods = _read_replicated_job(notes.read(item, path), notes)
        deadlines.append(pods.deadline)
        is_worker = replica_type == WORKER
        container_path = f"{pods.path}.spec.containers[0]"
        if is_worker:
            _read_trainer(trainer, get_container(pods.template, NODE), container_path, notes)
        remove_variables(read_container(pods.template, pods.path, notes, NODE), container_path, notes)
        replicas[replica_type] = {
            "replicas": (count or pods.count) if is_worker else 1,
            "restartPolicy": "OnFailure" if maximum else "Never",
            "template": pods.template,
        }
    if WORKER not in replicas:
        notes.errors.append(f"{job_set.path}.replicatedJobs: must have one named {NODE!r}")
        return {}
    managed_by = spec.take("managedBy")
    run_policy = {
        "activeDeadlineSeconds": min((item for item in deadlines if item is not None), default=None),
        "backoffLimit": maximum,
        "managedBy": None if managed_by == _OWN_CONTROLLER else managed_by,
        "suspend": spec.take("suspend"),
        "ttlSecondsAfterFinished": job_set.take("ttlSecondsAfterFinished"),
    }
    return build_job_document(job["metadata"], replicas, runPolicy=drop_empty(run_policy))


@dataclass(frozen=True)
class _Pods:
    """A replicated job's pods.

    Attributes:
        template: Their template.
        path: The template's path.
        count: Their number.
        deadline: Maximum run time in seconds, or None.
    """

    template: Manifest
    path: str
    count: int
    deadline: int | None


def _read_replicated_job(item: Fields, notes: Notes) -> _Pods:
    item.take("name")
    item.drop("an MSJob starts its pods together", "dependsOn", groupName="default")
    if (replicas := item.take("replicas", 1)) != 1:
        notes.errors.append(f"{item.path}.replicas: must be 1, got {replicas}: numNodes is the number of workers")
    template = item.child("template")
    metadata = template.child("metadata")
    metadata.drop("an MSJob has labels and annotations of its own", "annotations", labels=STEP_LABELS)
    spec = template.child("spec")
    spec.drop("that of the TrainJob is used", suspend=False)
    spec.drop("the job is restarted as a whole", "backoffLimitPerIndex", "maxFailedIndexes", backoffLimit=0)
    spec.drop("the job is restarted as a whole", "podFailurePolicy", "podReplacementPolicy", "successPolicy")
    spec.drop("workers have ranks", completionMode="Indexed")
    count = spec.take("parallelism", 1)
    spec.drop("it is the number of workers", completions=count)
    return _Pods(spec.take_template(), f"{spec.path}.template", count, spec.take("activeDeadlineSeconds"))


def _read_trainer(trainer: Fields, container: Manifest, path: str, notes: Notes) -> None:
    """Replace the runtime container's fields by a trainer's; variables replace one by one."""
    fields = {name: trainer.take(name) for name in _TRAINER_FIELDS if name in trainer.rest}
    if resources := trainer.take("resourcesPerNode"):
        fields["resources"] = resources
    for name, value in fields.items():
        own = container.get(name)
        if name == "env":
            variables = {item["name"]: item for item in value}
            replaced = [item for item in own or [] if variables.get(item["name"], item) != item]
            container[name] = [*(item for item in own or [] if item["name"] not in variables), *value]
        else:
            replaced = [own] if own not in (None, value) else []
            container[name] = value
        if replaced:
            notes.change(f"{path}.{name}", "replaced", f"that of spec.trainer is used in place of {replaced}")


KIND = JobKind(
    _NAME,
    "trainer.kubeflow.org/v1alpha1",
    _NAME,
    "Kubeflow Trainer, with its ClusterTrainingRuntime",
    export,
    read,
    has_queue=True,
)
