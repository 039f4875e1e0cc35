"""MPIJob of the MPI operator (kubeflow.org/v2beta1): a launcher runs mpirun, workers run sshd.

mpirun starts a rank for each device of a worker, at least one. The entry point of each rank reads its rank, and that of
rank 0 starts the scheduler beside it, in worker 0. A process that sshd starts has none of the container's variables:
mpirun passes those of the template on.
"""

from __future__ import annotations

import copy
from typing import Any

from kfp_mindspore.msjob.entrypoint import DEFAULT_SCHEDULER_PORT
from kfp_mindspore.msjob.kinds.common import (
    JobKind,
    Manifest,
    Notes,
    add_entrypoint,
    build_job_document,
    check_fields,
    copy_metadata,
    copy_template,
    count_devices,
    drop_empty,
    find_container,
    note_dropped,
    refuse_parameter_servers,
    remove_variables,
    restarts,
    set_variables,
    unwrap_command,
)
from kfp_mindspore.msjob.names import CONTAINER_NAME, SCHEDULER, WORKER
from kfp_mindspore.msjob.spec import JobManifest
from kfp_mindspore.msjob.topology import get_scheduler_port
from kfp_mindspore.settings import SCHEDULER_HOST_VARIABLE, SCHEDULER_PORT_VARIABLE

_NAME = "MPIJob"
_LAUNCHER = "Launcher"
_RUN_POLICY = ("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy", "suspend")
_KEPT = (*_RUN_POLICY, "schedulingPolicy", "ttlSecondsAfterFinished")
# mpirun uses no device and mounts no data.
_LAUNCHER_FIELDS = ("name", "image", "imagePullPolicy", "env", "envFrom", "securityContext")
_LAUNCHER_POD = ("imagePullSecrets", "nodeSelector", "securityContext", "serviceAccountName", "tolerations")
_FLAGS = ("--allow-run-as-root", "--tag-output", "-tag-output", "--oversubscribe", "-oversubscribe", "-v", "--verbose")
_OPTIONS = {
    **dict.fromkeys(("-n", "-np", "--np", "-c", "-x", "-N", "-npernode", "--npernode"), 1),
    **dict.fromkeys(("-wdir", "--wdir", "-bind-to", "--bind-to", "-map-by", "--map-by", "--prefix"), 1),
    **dict.fromkeys(("-H", "-host", "--host", "-hostfile", "--hostfile", "-genv", "-ppn", "-env"), 1),
    **dict.fromkeys(("-mca", "--mca"), 2),
}


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return the MPIJob of a job."""
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, _KEPT, notes)
    if SCHEDULER in job.ms_replica_specs:
        notes.change(f"spec.msReplicaSpecs.{SCHEDULER}", "dropped", "the scheduler runs in worker 0, beside rank 0")
    worker = copy_template(job, WORKER)
    container = find_container(worker)
    # The operator sets up the first container.
    worker["spec"]["containers"].remove(container)
    worker["spec"]["containers"].insert(0, container)
    path = f"spec.msReplicaSpecs.{WORKER}.template.spec.containers[0]"
    if not container.get("command"):
        notes.errors.append(f"{path}.command: is required: mpirun starts it")
        return []
    if container.get("envFrom"):
        notes.change(
            f"{path}.envFrom", "not passed to the ranks", "mpirun passes on the variables that it knows by name"
        )
    slots = max(1, count_devices(container))
    command = [*container.pop("command"), *container.pop("args", [])]
    launcher_container = copy.deepcopy({name: container[name] for name in _LAUNCHER_FIELDS if name in container})
    variables = {
        SCHEDULER_HOST_VARIABLE: f"{job.name}-worker-0.{job.name}",
        SCHEDULER_PORT_VARIABLE: str(get_scheduler_port(job, DEFAULT_SCHEDULER_PORT)),
    }
    set_variables(launcher_container, variables)
    names = ["PATH", *(item["name"] for item in launcher_container["env"])]
    words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", str(job.workers * slots)]
    if directory := container.pop("workingDir", None):
        words += ["--wdir", directory]
    launcher_container["command"] = [
        *words,
        *(word for name in names for word in ("-x", name)),
        *add_entrypoint(command),
    ]
    pod = {name: copy.deepcopy(worker["spec"][name]) for name in _LAUNCHER_POD if name in worker["spec"]}
    launcher = {"spec": {**pod, "containers": [launcher_container]}}
    policy = job.effective_run_policy
    run_policy = {name: value for name, value in job.to_dict()["spec"].get("runPolicy", {}).items() if name in _KEPT}
    if not restarts(job):
        run_policy["backoffLimit"] = 0
    return [
        {
            "apiVersion": KIND.api_version,
            "kind": KIND.kind,
            "metadata": copy_metadata(job),
            "spec": {
                "slotsPerWorker": slots,
                "mpiImplementation": "OpenMPI",
                "runPolicy": {"cleanPodPolicy": policy.clean_pod_policy, "backoffLimit": policy.backoff_limit}
                | run_policy,
                "mpiReplicaSpecs": {
                    _LAUNCHER: {"replicas": 1, "restartPolicy": "Never", "template": launcher},
                    WORKER: {"replicas": job.workers, "restartPolicy": "Never", "template": worker},
                },
            },
        }
    ]


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the document of an MSJob that runs the command of the launcher's mpirun in each worker."""
    spec = job["spec"]
    known = ("slotsPerWorker", "mpiImplementation", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath")
    check_fields(spec, "spec", (*known, "launcherCreationPolicy", "runLauncherAsWorker"), notes)
    replicas = spec.get("mpiReplicaSpecs") or {}
    if set(replicas) != {_LAUNCHER, WORKER}:
        notes.errors.append(f"spec.mpiReplicaSpecs: must have {_LAUNCHER} and {WORKER}, got {', '.join(replicas)}")
        return {}
    launcher = find_container(replicas[_LAUNCHER]["template"])
    template = copy.deepcopy(replicas[WORKER]["template"])
    container = find_container(template)
    path = f"spec.mpiReplicaSpecs.{_LAUNCHER}.template.spec.containers[0].command"
    command, settings = _split_mpirun([*launcher.get("command", ()), *launcher.get("args", ())], path, notes)
    if notes.errors:
        return {}
    container.pop("args", None)
    container["command"] = unwrap_command(command)
    known_names = {item.get("name") for item in container.get("env") or []}
    passed = [item for item in launcher.get("env") or [] if item.get("name") not in known_names]
    set_variables(container, settings["env"])
    container["env"] += passed
    remove_variables(container)
    if directory := settings["directory"]:
        container["workingDir"] = directory
    container["name"] = CONTAINER_NAME
    slots = int(spec.get("slotsPerWorker") or 1)
    if slots != max(1, count_devices(container)):
        notes.change("spec.slotsPerWorker", f"{slots} dropped", "a worker is one process; raise replicas for more")
    notes.change(f"spec.mpiReplicaSpecs.{_LAUNCHER}", "dropped", "workers need neither mpirun nor sshd")
    run_policy = dict(spec.get("runPolicy") or {})
    policy = "ExitCode" if run_policy.get("backoffLimit", 6) else "Never"
    worker = {"replicas": replicas[WORKER].get("replicas", 1), "restartPolicy": policy, "template": template}
    return build_job_document(job["metadata"], {WORKER: worker}, runPolicy=drop_empty(run_policy))


def _split_mpirun(words: list[Any], path: str, notes: Notes) -> tuple[list[Any], dict[str, Any]]:
    """Split a command line of mpirun into the program's and the settings that matter to it."""
    settings: dict[str, Any] = {"env": {}, "directory": None}
    if not words or str(words[0]).rpartition("/")[2] not in ("mpirun", "mpiexec"):
        notes.errors.append(f"{path}: must start with mpirun or mpiexec, got {words[:1] or 'nothing'}")
        return [], settings
    position = 1
    while position < len(words) and str(words[position]).startswith("-"):
        word = str(words[position])
        count = 0 if word in _FLAGS else _OPTIONS.get(word)
        if count is None:
            notes.errors.append(f"{path}: unknown option of mpirun {word!r}, remove it")
            return [], settings
        values = [str(value) for value in words[position + 1 : position + 1 + count]]
        if word == "-x" and "=" in values[0]:
            name, _, value = values[0].partition("=")
            settings["env"][name] = value
        elif word in ("-wdir", "--wdir"):
            settings["directory"] = values[0]
        position += 1 + count
    if position >= len(words):
        notes.errors.append(f"{path}: mpirun has no program to start")
    return words[position:], settings


KIND = JobKind(_NAME, "kubeflow.org/v2beta1", _NAME, "MPI operator: mpirun over ssh", export, read)
