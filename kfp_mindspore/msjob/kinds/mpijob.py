"""MPIJob for the MPI operator (kubeflow.org/v2beta1): a launcher runs mpirun, workers run sshd.

mpirun starts a rank for each worker device, at least one. Each rank's entry point reads its rank, and rank 0's starts
the scheduler beside it, in worker 0. A process that sshd starts does not have the container's variables: mpirun passes
the template's on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.msjob.api.names import WORKER
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.topology import get_scheduler_port
from kfp_mindspore.msjob.kinds.common import (
    Fields,
    JobKind,
    Manifest,
    Notes,
    add_entrypoint,
    build_job_document,
    check_available,
    convert_restart_policy,
    copy_metadata,
    copy_template,
    count_devices,
    drop_empty,
    get_container,
    get_container_path,
    note_dropped,
    note_scheduler,
    read_container,
    read_scheduling,
    refuse_parameter_servers,
    remove_variables,
    set_pod_restart_policy,
    set_variables,
    unwrap_command,
)
from kfp_mindspore.settings import LAUNCHER_SCHEDULER_PORT, SCHEDULER_HOST_VARIABLE, SCHEDULER_PORT_VARIABLE

_NAME = "MPIJob"
_LAUNCHER = "Launcher"
_SPECS = "spec.msReplicaSpecs"
_KEPT = ("runPolicy",)
_OWN_CONTROLLER = "kubeflow.org/mpi-operator"
# Where an MPIJob has none.
_DEFAULT_RUN_POLICY = {"backoffLimit": 6, "cleanPodPolicy": "None"}
# mpirun uses no device and mounts no data.
_LAUNCHER_FIELDS = ("name", "image", "imagePullPolicy", "env", "envFrom", "securityContext")
_LAUNCHER_POD = ("imagePullSecrets", "nodeSelector", "securityContext", "serviceAccountName", "tolerations")
_FLAGS = ("--allow-run-as-root", "--tag-output", "-tag-output", "--oversubscribe", "-oversubscribe", "-v", "--verbose")
_COUNTS = ("-n", "-np", "--np", "-c")
_OPTIONS = {
    **dict.fromkeys(_FLAGS, 0),
    **dict.fromkeys((*_COUNTS, "-x", "-N", "-npernode", "--npernode", "-ppn"), 1),
    **dict.fromkeys(("-wdir", "--wdir", "-bind-to", "--bind-to", "-map-by", "--map-by", "--prefix"), 1),
    **dict.fromkeys(("-H", "-host", "--host", "-hostfile", "--hostfile"), 1),
    **dict.fromkeys(("-mca", "--mca", "-genv", "-env"), 2),
}


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return a job's MPIJob."""
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, _KEPT, notes)
    note_scheduler(job, _NAME, notes)
    worker = copy_template(job, WORKER)
    set_pod_restart_policy(worker, f"{_SPECS}.{WORKER}.template", notes)
    container = get_container(worker)
    # The operator sets up the first container.
    worker["spec"]["containers"].remove(container)
    worker["spec"]["containers"].insert(0, container)
    path = get_container_path(_SPECS, WORKER)
    if not container.get("command"):
        notes.errors.append(f"{path}.command: is required: mpirun starts it")
        return []
    if container.get("envFrom"):
        notes.change(
            f"{path}.envFrom", "not passed to the ranks", "mpirun passes on the variables that it knows by name"
        )
    slots = max(1, count_devices(container, path, notes))
    if slots > 1:
        ranks = f"{job.workers} workers are {job.workers * slots} ranks"
        notes.change(f"{_SPECS}.{WORKER}.replicas", ranks, "mpirun starts one for each device")
    command = [*container.pop("command"), *container.pop("args", [])]
    launcher_container = copy.deepcopy({name: container[name] for name in _LAUNCHER_FIELDS if name in container})
    variables = {
        SCHEDULER_HOST_VARIABLE: f"{job.name}-worker-0.{job.name}",
        SCHEDULER_PORT_VARIABLE: str(get_scheduler_port(job, LAUNCHER_SCHEDULER_PORT)),
    }
    set_variables(launcher_container, variables, path, notes)
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
    run_policy = {
        "cleanPodPolicy": job.effective_run_policy.clean_pod_policy,
        **job.to_dict()["spec"].get("runPolicy", {}),
        "backoffLimit": convert_restart_policy(job, _NAME, notes),
    }
    available = (run_policy.get("schedulingPolicy") or {}).get("minAvailable")
    check_available(available, job.workers + 1, "spec.runPolicy.schedulingPolicy", notes)
    return [
        {
            "apiVersion": KIND.api_version,
            "kind": KIND.kind,
            "metadata": copy_metadata(job.metadata),
            "spec": {
                "slotsPerWorker": slots,
                "mpiImplementation": "OpenMPI",
                "runPolicy": run_policy,
                "mpiReplicaSpecs": {
                    _LAUNCHER: {"replicas": 1, "restartPolicy": "Never", "template": launcher},
                    WORKER: {"replicas": job.workers, "restartPolicy": "Never", "template": worker},
                },
            },
        }
    ]


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the document for an MSJob that runs the launcher's mpirun command in each worker."""
    spec = notes.read(job["spec"], "spec")
    if spec.take("runLauncherAsWorker"):
        notes.errors.append("spec.runLauncherAsWorker: must be false: raise replicas of Worker by one in its place")
    spec.drop("workers need neither mpirun nor sshd", "sshAuthMountPath", mpiImplementation="OpenMPI")
    spec.drop("an MSJob has no launcher", launcherCreationPolicy="AtStartup")
    specs = spec.child("mpiReplicaSpecs")
    if set(specs.rest) != {_LAUNCHER, WORKER}:
        notes.errors.append(f"{specs.path}: must have {_LAUNCHER} and {WORKER}, got {', '.join(specs.rest)}")
        return {}
    launcher, worker = specs.child(_LAUNCHER), specs.child(WORKER)
    launcher.drop("an MSJob has no launcher", replicas=1, restartPolicy="Never")
    worker.drop("runPolicy.backoffLimit counts restarts", restartPolicy="Never")
    template, workers = worker.take_template(), worker.take("replicas", 1)
    command, settings = _read_launcher(launcher, template, notes)
    if notes.errors:
        return {}
    container = read_container(template, f"{worker.path}.template", notes, "worker")
    path = f"{worker.path}.template.spec.containers[0]"
    sshd = [*container.pop("command", []), *container.pop("args", [])]
    if sshd and not str(sshd[0]).endswith("sshd"):
        notes.change(f"{path}.command", f"{' '.join(map(str, sshd))} dropped", "a worker runs the launcher's program")
    container["command"] = unwrap_command(command)
    own = {item["name"]: item for item in container.get("env") or []}
    for item in settings.env:
        if own.setdefault(item["name"], item) != item:
            notes.change(f"{launcher.path}.template", f"variable {item['name']} dropped", "the workers have their own")
    container["env"] = list(own.values())
    set_variables(container, settings.variables, path, notes)
    remove_variables(container, path, notes)
    if settings.directory:
        container["workingDir"] = settings.directory
    slots = int(spec.take("slotsPerWorker", 1))
    ranks = int(settings.ranks or slots * workers)
    if slots != max(1, count_devices(container, path, notes)):
        notes.change("spec.slotsPerWorker", f"{slots} dropped", "a worker is one process; raise replicas for more")
    if ranks != workers:
        change = f"{ranks} ranks are {workers} processes"
        notes.change(f"{launcher.path}.template", change, "a worker is one process; raise replicas for more")
    run_policy = {**_DEFAULT_RUN_POLICY, **spec.take("runPolicy", {})}
    if run_policy.get("managedBy") == _OWN_CONTROLLER:
        notes.change("spec.runPolicy.managedBy", "dropped", "the operator of MSJob manages it")
        del run_policy["managedBy"]
    scheduling = run_policy.pop("schedulingPolicy", None) or {}
    run_policy["schedulingPolicy"] = read_scheduling(scheduling, workers + 1, "spec.runPolicy.schedulingPolicy", notes)
    policy = "OnFailure" if run_policy["backoffLimit"] else "Never"
    replica = {"replicas": workers, "restartPolicy": policy, "template": template}
    return build_job_document(job["metadata"], {WORKER: replica}, runPolicy=drop_empty(run_policy))


@dataclass
class _Settings:
    """Launcher settings that apply to its ranks.

    Attributes:
        env: The launcher's own variables.
        variables: Variables that mpirun sets.
        directory: The ranks' working directory.
        ranks: Rank count, as given.
        dropped: Other options.
    """

    env: list[dict[str, Any]]
    variables: dict[str, str] = field(default_factory=dict)
    directory: str | None = None
    ranks: str | None = None
    dropped: list[str] = field(default_factory=list)


def _read_launcher(launcher: Fields, worker: Manifest, notes: Notes) -> tuple[list[Any], _Settings]:
    """Return the program that mpirun starts and its settings; record the fields that only the launcher has."""
    template, path = launcher.take_template(), launcher.path
    container = notes.read(get_container(template), f"{path}.template.spec.containers[0]")
    workers_own = get_container(worker)
    settings = _Settings(container.take("env", []))
    command = [*container.take("command", []), *container.take("args", [])]
    program = _split_mpirun(command, f"{container.path}.command", settings, notes)
    container.drop("an MSJob has no launcher", name="launcher")
    pod = notes.read(template["spec"], f"{path}.template.spec")
    containers = pod.take("containers")
    reason = "an MSJob has no launcher"
    container.drop(reason, **{name: workers_own.get(name) for name in container.rest})
    pod.drop(reason, **{name: worker["spec"].get(name) for name in pod.rest})
    notes.read({name: value for name, value in template.items() if name != "spec"}, f"{path}.template").drop(
        reason, metadata=worker.get("metadata")
    )
    for item in containers[1:]:
        notes.change(f"{pod.path}.containers", f"{item.get('name')} dropped", reason)
    notes.change(path, f"its program is now that of {WORKER}", "workers need neither mpirun nor sshd")
    return program, settings


def _split_mpirun(words: list[Any], path: str, settings: _Settings, notes: Notes) -> list[Any]:
    """Return the program in an mpirun command line, and read its options into settings."""
    if not words or str(words[0]).rpartition("/")[2] not in ("mpirun", "mpiexec"):
        notes.errors.append(f"{path}: must start with mpirun or mpiexec, got {words[:1] or 'nothing'}")
        return []
    position = 1
    while position < len(words) and str(words[position]).startswith("-"):
        word = str(words[position])
        count = _OPTIONS.get(word)
        if count is None:
            notes.errors.append(f"{path}: unknown option of mpirun {word!r}, remove it")
            return []
        values = [str(value) for value in words[position + 1 : position + 1 + count]]
        if word in _COUNTS:
            settings.ranks = values[0]
        elif word == "-x":
            # A name alone passes the launcher's variable on.
            name, equals, value = values[0].partition("=")
            settings.variables.update({name: value} if equals else {})
        elif word in ("-genv", "-env"):
            settings.variables[values[0]] = values[1]
        elif word in ("-wdir", "--wdir"):
            settings.directory = values[0]
        else:
            settings.dropped.append(" ".join([word, *values]))
        position += 1 + count
    if settings.dropped:
        notes.change(path, f"{', '.join(settings.dropped)} dropped", "a worker is one process in a pod of its own")
    if position >= len(words):
        notes.errors.append(f"{path}: mpirun has no program to start")
    return words[position:]


KIND = JobKind(_NAME, "kubeflow.org/v2beta1", _NAME, "MPI operator: mpirun over ssh", export, read, has_queue=True)
