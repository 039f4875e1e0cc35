"""Parts that several kinds share: templates, commands, devices and the scheduler's address."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.devices import drop_devices, read_devices
from kfp_mindspore.msjob.api.names import API_VERSION, CONTAINER_NAME, KIND, PARAMETER_SERVER, SCHEDULER, WORKER
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.topology import ROLES, VARIABLES, get_scheduler_port
from kfp_mindspore.msjob.kinds.changes import Change
from kfp_mindspore.settings import (
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    SERVER_COUNT_VARIABLE,
    WORKER_COUNT_VARIABLE,
)

Manifest = dict[str, Any]
_ENTRYPOINT = ["-m", "kfp_mindspore.podside.launchers", "--"]
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_SPECS = "spec.msReplicaSpecs"
_METADATA = ("name", "namespace", "labels", "annotations")
# Written by the API server and its clients.
_SERVER_METADATA = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
_QUEUE = "default"
# MSJob fields whose absence means this value.
_DEFAULTS = {"spec.runPolicy.suspend": False, "spec.successPolicy": "", "spec.warmSpares": 0}


@dataclass
class Notes:
    """Errors and changes in one conversion.

    Attributes:
        errors: Sentences that start with the field path.
        changes: Changes and losses.
        objects: Objects in the manifest that the conversion reads.
    """

    errors: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    objects: list[Fields] = field(default_factory=list)

    def change(self, path: str, change: str, reason: str) -> None:
        """Record a change."""
        self.changes.append(Change(path, change, reason))

    def read(self, document: Mapping[str, Any] | None, path: str) -> Fields:
        """Return an object's fields; those that the conversion does not use are refused when it ends."""
        self.objects.append(Fields(document or {}, path, self))
        return self.objects[-1]

    def refuse_rest(self) -> None:
        """Record an error for each field that the conversion has not used."""
        for item in self.objects:
            self.errors += [f"{item.path}.{name}: cannot be converted to an MSJob" for name in item.rest]


class Fields:
    """Object fields that a conversion reads: each is taken, or dropped with a reason.

    Attributes:
        path: Object path in the manifest.
        rest: The fields that are neither taken nor dropped yet.
    """

    def __init__(self, document: Mapping[str, Any], path: str, notes: Notes) -> None:
        self.path = path
        self.rest = {str(name): value for name, value in document.items() if value is not None}
        self._notes = notes

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field's value."""
        return self.rest.pop(name, default)

    def take_template(self) -> Manifest:
        """Return a copied pod template whose pods are restarted by the job only.

        Raises:
            ValidationError: There is none with containers.
        """
        template: Manifest = copy.deepcopy(self.take("template"))
        pod = template.get("spec") if isinstance(template, dict) else None
        if not isinstance(pod, dict) or not pod.get("containers"):
            raise ValidationError([f"{self.path}.template.spec.containers: is required"])
        set_pod_restart_policy(template, f"{self.path}.template", self._notes)
        del pod["restartPolicy"]
        return template

    def child(self, name: str) -> Fields:
        """Return the fields of an object in a field."""
        return self._notes.read(self.take(name), f"{self.path}.{name}")

    def drop(self, reason: str, *names: str, **defaults: object) -> None:
        """Record the fields that an MSJob does not have as changes.

        Args:
            reason: Their reason.
            *names: The fields.
            **defaults: Fields with a value that needs no equivalent.
        """
        for name in (*names, *defaults):
            if (value := self.take(name)) is not None and (name in names or value != defaults[name]):
                shown = f"{value!r} dropped" if isinstance(value, (str, int, bool)) else "dropped"
                self._notes.change(f"{self.path}.{name}", shown, reason)


@dataclass(frozen=True)
class JobKind:
    """A job kind.

    Attributes:
        name: The kind's name in `MSJob.to`.
        api_version: Its objects' apiVersion.
        kind: Its objects' kind.
        description: One line for the command line.
        export: Returns an MSJob's manifests; those that the job refers to come first.
        read: Returns the MSJob's document for this kind's manifests; None for a kind that is not read.
        has_queue: Whether Kueue manages the kind by a label on its object.
    """

    name: str
    api_version: str
    kind: str
    description: str
    export: Callable[[JobManifest, Notes], list[Manifest]]
    read: Callable[[Manifest, list[Manifest], Notes], Manifest] | None = None
    has_queue: bool = False


def copy_metadata(metadata: Mapping[str, Any]) -> Manifest:
    """Return a job's name, namespace, labels and annotations."""
    return {name: copy.deepcopy(metadata[name]) for name in _METADATA if metadata.get(name)}


def note_object_fields(document: Mapping[str, Any], notes: Notes) -> None:
    """Record the fields in an object's metadata and status, which no conversion carries."""
    for name, value in document["metadata"].items():
        if name not in (*_METADATA, *_SERVER_METADATA) and value:
            notes.change(f"metadata.{name}", "dropped", "it belongs to the object that is converted")
    if document.get("status"):
        notes.change("status", "dropped", "a new job has none")


def copy_template(job: JobManifest, replica_type: str) -> Manifest:
    """Return a copied pod template for a replica type; a scheduler without one has the workers', without devices."""
    own = job.ms_replica_specs.get(replica_type)
    template = copy.deepcopy((own or job.ms_replica_specs[WORKER]).template)
    if own is None:
        drop_devices(template["spec"])
    return template


def get_container(template: Manifest, name: str = CONTAINER_NAME) -> Manifest:
    """Return the container that trains; the first one where none has the name."""
    containers: list[Manifest] = template["spec"]["containers"]
    return next((item for item in containers if item.get("name") == name), containers[0])


def count_devices(container: Mapping[str, Any], path: str, notes: Notes) -> int:
    """Return how many GPUs or NPUs a container requests; a name that is not known is recorded and counts as 0.

    Raises:
        ValidationError: A device's amount is not a whole number.
    """
    request = read_devices(container, path)
    for name in request.unknown:
        reason = "it is no device or share of one that MSJob knows; set the number of processes yourself"
        notes.change(f"{path}.resources", f"{name} is counted as no device", reason)
    return request.count


def get_container_path(specs: str, replica_type: str) -> str:
    """Return the training container's path, for messages."""
    return f"{specs}.{replica_type}.template.spec.containers[0]"


def wrap_command(container: Manifest, path: str, notes: Notes) -> None:
    """Put the entry point before a container's command."""
    if not container.get("command"):
        notes.errors.append(f"{path}.command: is required, since the entry point is put before it")
        return
    container["command"] = add_entrypoint(container["command"])


def add_entrypoint(command: Iterable[Any]) -> list[Any]:
    """Return a command with the entry point before it, run by the command's own Python where it has one."""
    words = list(command)
    python = words[0] if is_python(words[0]) else "python"
    return [python, *_ENTRYPOINT, *words]


def is_python(word: Any) -> bool:
    """Return whether a command's first word is a Python interpreter."""
    return bool(_PYTHON.fullmatch(str(word)))


def unwrap_command(command: Iterable[Any]) -> list[Any]:
    """Return a command without the entry point."""
    words = list(command)
    return words[4:] if words[1:4] == _ENTRYPOINT else words


def set_variables(container: Manifest, variables: Mapping[str, str], path: str, notes: Notes) -> None:
    """Put variables before a container's, which they replace."""
    own = container.get("env") or []
    for item in own:
        if item.get("name") in variables and item.get("value") != variables[item["name"]]:
            notes.change(
                f"{path}.env", f"{item['name']} is now {variables[item['name']]}", "the kind of the job sets it"
            )
    rest = [item for item in own if item.get("name") not in variables]
    container["env"] = [*({"name": name, "value": value} for name, value in variables.items()), *rest]


def set_cluster_variables(container: Manifest, job: JobManifest, replica_type: str, host: str, notes: Notes) -> None:
    """Set role, worker count and scheduler for a replica type, and put the entry point before its command."""
    variables = {
        ROLE_VARIABLE: ROLES[replica_type],
        SCHEDULER_HOST_VARIABLE: host,
        SCHEDULER_PORT_VARIABLE: str(get_scheduler_port(job)),
        WORKER_COUNT_VARIABLE: str(job.workers),
    }
    if (servers := job.ms_replica_specs.get(PARAMETER_SERVER)) is not None:
        variables[SERVER_COUNT_VARIABLE] = str(servers.replicas or 1)
    path = get_container_path(_SPECS, replica_type)
    set_variables(container, variables, path, notes)
    wrap_command(container, path, notes)


def set_pod_restart_policy(template: Manifest, path: str, notes: Notes, policy: str = "Never") -> None:
    """Set the restart policy for a template's pods: MSJobs restart pods by their replicas' restartPolicy."""
    if template["spec"].get("restartPolicy") not in (None, policy):
        found = template["spec"]["restartPolicy"]
        notes.change(f"{path}.spec.restartPolicy", f"{found!r} is now {policy!r}", "containers are not restarted alone")
    template["spec"]["restartPolicy"] = policy


def read_container(template: Manifest, path: str, notes: Notes, usual_name: str = CONTAINER_NAME) -> Manifest:
    """Return the training container in another kind's template, with the name that it has in an MSJob.

    Args:
        template: The template, which is changed.
        path: The template's path, for messages.
        notes: Receives the changes.
        usual_name: The container's name in that kind.
    """
    container = get_container(template, usual_name)
    name = container.get("name")
    if name not in (usual_name, CONTAINER_NAME):
        notes.change(f"{path}.spec.containers", f"{name!r} is now {CONTAINER_NAME!r}", "this container trains")
    container["name"] = CONTAINER_NAME
    rename_references(template["spec"], name)
    if "command" in container:
        container["command"] = unwrap_command(container["command"])
    return container


def rename_references(value: Any, old: Any) -> None:
    """Rename the container in references from variables and volumes to its resources."""
    if isinstance(value, list):
        for item in value:
            rename_references(item, old)
    elif isinstance(value, dict):
        reference = value.get("resourceFieldRef")
        if isinstance(reference, dict) and reference.get("containerName") == old:
            reference["containerName"] = CONTAINER_NAME
        for item in value.values():
            rename_references(item, old)


def remove_variables(container: Manifest, path: str, notes: Notes, extra: Iterable[str] = ()) -> None:
    """Remove the cluster variables, which each backend sets itself."""
    names = {*VARIABLES, *extra}
    own = container.pop("env", None) or []
    if removed := [item for item in own if item.get("name") in names]:
        listed = ", ".join(f"{item['name']}={item.get('value', '')}" for item in removed)
        notes.change(f"{path}.env", f"{listed} dropped", "whatever runs an MSJob sets them")
    if rest := [item for item in own if item not in removed]:
        container["env"] = rest


def refuse_parameter_servers(job: JobManifest, kind: str) -> None:
    """Raise a ValidationError for a job with parameter servers.

    Raises:
        ValidationError: It has PS replicas.
    """
    if PARAMETER_SERVER in job.ms_replica_specs:
        raise ValidationError(
            [f"spec.msReplicaSpecs.{PARAMETER_SERVER}: must be absent, {kind} has no parameter servers"],
            subject=f"MSJob {job.name}",
            hint="The kinds volcano and legacy have them.",
        )


def note_dropped(job: JobManifest, kind: str, kept: Iterable[str], notes: Notes) -> None:
    """Record job fields that a kind has no equivalent for; templates and replica counts are converted.

    Args:
        job: The job.
        kind: Kind name.
        kept: Paths below `spec` to the converted fields, such as `runPolicy.backoffLimit`.
        notes: Receives the changes.
    """
    known = {f"spec.{name}" for name in (*kept, "msReplicaSpecs")}

    def walk(document: Mapping[str, Any], path: str) -> None:
        for name, value in document.items():
            place = f"{path}.{name}"
            if place in known or value is None or value == {}:
                continue
            if isinstance(value, dict) and any(item.startswith(f"{place}.") for item in known):
                walk(value, place)
            elif place not in _DEFAULTS or value != _DEFAULTS[place]:
                notes.change(place, "dropped", f"{kind} has no such field")

    walk(job.to_dict()["spec"], "spec")


def note_scheduler(job: JobManifest, kind: str, notes: Notes, *, policy_only: bool = False) -> None:
    """Record that a kind has no job Scheduler, or no restart policies for replicas other than Worker."""
    worker = job.ms_replica_specs[WORKER].effective_restart_policy
    for name, replica in job.ms_replica_specs.items():
        if name == SCHEDULER and not policy_only:
            notes.change(f"{_SPECS}.{name}", "dropped", f"a {kind} of this job needs none")
        elif replica.effective_restart_policy != worker:
            notes.change(f"{_SPECS}.{name}.restartPolicy", "dropped", f"{kind} has one policy for the job")


def convert_restart_policy(job: JobManifest, kind: str, notes: Notes) -> int:
    """Return the restart count for a kind that restarts a job after any failure or never."""
    policy, limit = job.ms_replica_specs[WORKER].effective_restart_policy, job.effective_run_policy.backoff_limit or 0
    path = f"{_SPECS}.{WORKER}.restartPolicy"
    if policy == "Never":
        if job.run_policy is not None and job.run_policy.backoff_limit:
            notes.change("spec.runPolicy.backoffLimit", f"{limit} is now 0", "restartPolicy is Never")
        return 0
    if limit == 0:
        notes.change(path, f"{policy} is now Never", "backoffLimit is 0")
    elif policy != "OnFailure":
        notes.change(path, f"{policy} is now OnFailure", f"{kind} restarts a job after any failure")
    return limit


def check_available(available: Any, pods: int, path: str, notes: Notes) -> None:
    """Record an error for a gang with more pods than the job has: it would never be scheduled."""
    if isinstance(available, int) and available > pods:
        notes.errors.append(f"{path}.minAvailable: must be at most the number of pods ({pods}), got {available}")


def read_scheduling(policy: Mapping[str, Any], pods: int, path: str, notes: Notes) -> Manifest | None:
    """Return an MSJob's scheduling policy without the values that equal its defaults."""
    check_available(policy.get("minAvailable"), pods, path, notes)
    defaults = {"minAvailable": pods, "queue": _QUEUE}
    return {name: value for name, value in policy.items() if value != defaults.get(name)} or None


def build_job_document(metadata: Mapping[str, Any], replicas: Mapping[str, Any], **spec: object) -> Manifest:
    """Return an MSJob's document; fields that are None or empty are left out."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": copy_metadata(metadata),
        "spec": {
            **{name: value for name, value in spec.items() if value not in (None, "", {})},
            "msReplicaSpecs": replicas,
        },
    }


def drop_empty(document: Mapping[str, Any]) -> Manifest:
    """Return a mapping without fields that are None."""
    return {name: value for name, value in document.items() if value is not None}
