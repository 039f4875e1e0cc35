"""Parts that several kinds share: templates, commands, devices and the scheduler's address."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.changes import Change
from kfp_mindspore.msjob.names import API_VERSION, CONTAINER_NAME, KIND, PARAMETER_SERVER, WORKER
from kfp_mindspore.msjob.spec import JobManifest
from kfp_mindspore.msjob.topology import ROLES, VARIABLES, get_scheduler_port
from kfp_mindspore.settings import (
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    SERVER_COUNT_VARIABLE,
    WORKER_COUNT_VARIABLE,
)

Manifest = dict[str, Any]
_ENTRYPOINT = ["-m", "kfp_mindspore.msjob.entrypoint", "--"]
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_DEVICES = ("nvidia.com/", "amd.com/", "huawei.com/")
_RUN_POLICY = "spec.runPolicy"


@dataclass
class Notes:
    """Errors and changes of one conversion.

    Attributes:
        errors: Sentences that start with the path of the field.
        changes: Changes and losses.
    """

    errors: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def change(self, path: str, change: str, reason: str) -> None:
        """Record a change."""
        self.changes.append(Change(path, change, reason))


@dataclass(frozen=True)
class JobKind:
    """A kind of jobs.

    Attributes:
        name: Its name in `MSJob.to`.
        api_version: The apiVersion of its objects.
        kind: The kind of its objects.
        description: One line for the command line.
        export: Returns the manifests of an MSJob; those that the job refers to come first.
        read: Returns the document of the MSJob for manifests of this kind.
    """

    name: str
    api_version: str
    kind: str
    description: str
    export: Callable[[JobManifest, Notes], list[Manifest]]
    read: Callable[[Manifest, list[Manifest], Notes], Manifest]


def copy_metadata(job: JobManifest, labels: Mapping[str, str] | None = None) -> Manifest:
    """Return name, namespace, labels and annotations of a job."""
    names = ("name", "namespace", "labels", "annotations")
    metadata = {name: copy.deepcopy(job.metadata[name]) for name in names if job.metadata.get(name)}
    return {**metadata, "labels": {**metadata.get("labels", {}), **labels}} if labels else metadata


def copy_template(job: JobManifest, replica_type: str) -> Manifest:
    """Return a copy of a replica type's pod template; a scheduler without one has the workers', without devices."""
    own = job.ms_replica_specs.get(replica_type)
    template = copy.deepcopy((own or job.ms_replica_specs[WORKER]).template)
    if own is None:
        remove_devices(find_container(template))
    return template


def find_container(template: Manifest, name: str = CONTAINER_NAME) -> Manifest:
    """Return the container that trains; the first one where none has the name."""
    containers: list[Manifest] = template["spec"]["containers"]
    return next((item for item in containers if item.get("name") == name), containers[0])


def count_devices(container: Mapping[str, Any]) -> int:
    """Return the number of GPUs or NPUs that a container requests."""
    resources = container.get("resources") or {}
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return sum(int(amount) for name, amount in amounts.items() if name.startswith(_DEVICES))


def remove_devices(container: Manifest) -> None:
    """Remove the requests of GPUs and NPUs: a scheduler or launcher computes nothing."""
    resources = container.get("resources") or {}
    for key in ("requests", "limits"):
        if key in resources:
            resources[key] = {name: value for name, value in resources[key].items() if not name.startswith(_DEVICES)}


def wrap_command(container: Manifest, path: str, notes: Notes) -> None:
    """Put the entry point before a container's command."""
    if not container.get("command"):
        notes.errors.append(f"{path}.command: is required, since the entry point is put before it")
        return
    container["command"] = add_entrypoint(container["command"])


def add_entrypoint(command: Iterable[Any]) -> list[Any]:
    """Return a command with the entry point before it, run by the command's own Python where it has one."""
    words = list(command)
    python = words[0] if _PYTHON.fullmatch(str(words[0])) else "python"
    return [python, *_ENTRYPOINT, *words]


def unwrap_command(command: Iterable[Any]) -> list[Any]:
    """Return a command without the entry point."""
    words = list(command)
    return words[4:] if words[1:4] == _ENTRYPOINT else words


def set_variables(container: Manifest, variables: Mapping[str, str]) -> None:
    """Put variables before those of a container, which they replace."""
    own = [item for item in container.get("env") or [] if item.get("name") not in variables]
    container["env"] = [*({"name": name, "value": value} for name, value in variables.items()), *own]


def set_cluster_variables(container: Manifest, job: JobManifest, replica_type: str, host: str, notes: Notes) -> None:
    """Set role, number of workers and scheduler of a replica type, and put the entry point before its command."""
    variables = {
        ROLE_VARIABLE: ROLES[replica_type],
        SCHEDULER_HOST_VARIABLE: host,
        SCHEDULER_PORT_VARIABLE: str(get_scheduler_port(job)),
        WORKER_COUNT_VARIABLE: str(job.workers),
    }
    if (servers := job.ms_replica_specs.get(PARAMETER_SERVER)) is not None:
        variables[SERVER_COUNT_VARIABLE] = str(servers.replicas or 1)
    set_variables(container, variables)
    wrap_command(container, f"spec.msReplicaSpecs.{replica_type}.template.spec.containers[0]", notes)


def read_template(given: Mapping[str, Any], container_name: str = CONTAINER_NAME, **fields: Any) -> Manifest:
    """Return the template of an MSJob for that of another kind.

    Args:
        given: The template.
        container_name: Name of the container that trains.
        **fields: Fields of this container that replace the template's.
    """
    template = copy.deepcopy(dict(given))
    template["spec"].pop("restartPolicy", None)
    container = find_container(template, container_name)
    container.update(copy.deepcopy(fields), name=CONTAINER_NAME)
    if "command" in container:
        container["command"] = unwrap_command(container["command"])
    remove_variables(container)
    return template


def remove_variables(container: Manifest, extra: Iterable[str] = ()) -> None:
    """Remove the variables of the cluster, which each backend sets itself."""
    names = {*VARIABLES, *extra}
    env = [item for item in container.get("env") or [] if item.get("name") not in names]
    container.pop("env", None)
    if env:
        container["env"] = env


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
    """Record the fields of spec and spec.runPolicy that a kind has no equivalent for.

    Args:
        job: The job.
        kind: Name of the kind.
        kept: Names of the fields that are converted.
        notes: Receives the changes.
    """
    spec = job.to_dict()["spec"]
    del spec["msReplicaSpecs"]
    fields = {f"{_RUN_POLICY}.{name}": value for name, value in (spec.pop("runPolicy", None) or {}).items()}
    fields.update({f"spec.{name}": value for name, value in spec.items()})
    for path, value in fields.items():
        if path.rpartition(".")[2] not in kept and value not in (None, "", False, 0):
            notes.change(path, "dropped", f"{kind} has no such field")


def restarts(job: JobManifest) -> bool:
    """Return whether failures of workers restart the job."""
    return job.ms_replica_specs[WORKER].restart_policy not in (None, "Never")


def build_job_document(metadata: Mapping[str, Any], replicas: Mapping[str, Any], **spec: Any) -> Manifest:
    """Return the document of an MSJob; fields that are None or empty are left out."""
    names = ("name", "namespace", "labels", "annotations")
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {name: metadata[name] for name in names if metadata.get(name)},
        "spec": {
            **{name: value for name, value in spec.items() if value not in (None, "", {})},
            "msReplicaSpecs": replicas,
        },
    }


def drop_empty(document: Mapping[str, Any]) -> Manifest:
    """Return a mapping without fields that are None."""
    return {name: value for name, value in document.items() if value is not None}


def check_fields(document: Mapping[str, Any], path: str, known: Iterable[str], notes: Notes) -> None:
    """Record an error for each field that the conversion does not know."""
    notes.errors += [f"{path}.{name}: cannot be converted to an MSJob" for name in document if name not in known]
