"""First-generation MSJobs (kubeflow.org/v1) to current ones, with changes and reasons.

The first generation had a replica spec list, MASTER and WORKER, whose master trained as the first worker, a `backend`,
a `masterPort` and containers with any name. Here all that trains has one type, Worker.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from kfp_mindspore.errors import ValidationError, suggest
from kfp_mindspore.msjob.api.names import (
    API_VERSION,
    CONTAINER_NAME,
    DEFAULT_PORT,
    KIND,
    MAXIMUM_PORT,
    MINIMUM_PORT,
    PORT_NAME,
    WORKER,
)
from kfp_mindspore.msjob.kinds.changes import Change
from kfp_mindspore.msjob.kinds.common import rename_references
from kfp_mindspore.msjob.kinds.template_volumes import list_mappings, merge_volumes, move_volume_sources
from kfp_mindspore.settings import (
    NODE_ID_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    WORKER_COUNT_VARIABLE,
)

_MASTER, _WORKER = "MASTER", "WORKER"
_REPLICA_FIELDS = ("masterPort", "replicaType", "replicas", "template")
# Fields in both generations, with the same meaning.
_COMMON_FIELDS = ("runPolicy", "successPolicy")
# RuntimeId has no JSON name in the Go type, so any case was accepted.
_SPEC_FIELDS = (
    *("backend", "masterPort", "msImage", "replicaSpecs", "RuntimeId", "runtimeId", "schedulerName"),
    *("terminationPolicy", *_COMMON_FIELDS),
)
# Set by the first generation's operator; Kubernetes expands the references.
_VARIABLES = {
    "RANK": NODE_ID_VARIABLE,
    "WORLD_SIZE": WORKER_COUNT_VARIABLE,
    "MASTER_ADDR": SCHEDULER_HOST_VARIABLE,
    "MASTER_PORT": SCHEDULER_PORT_VARIABLE,
}
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
_SHOWN = 60


def convert_first_generation(document: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Change, ...]]:
    """Return the current generation's document, which is not validated yet, and the changes.

    Args:
        document: An MSJob in kubeflow.org/v1; it is not modified.

    Raises:
        ValidationError: It cannot be converted; the message names the fields.
    """
    errors = []
    if not isinstance(document.get("spec"), Mapping):
        errors.append("spec: must be a mapping" if "spec" in document else "spec: is required")
        raise ValidationError(errors, subject=name_job(document))
    reader = _Reader(copy.deepcopy(dict(document)))
    converted = reader.convert()
    if reader.errors:
        hint = "Change it in the file and convert it again."
        raise ValidationError(reader.errors, subject=name_job(document), hint=hint)
    return converted, tuple(reader.changes)


def name_job(document: Mapping[str, Any]) -> str:
    """Return `MSJob NAME`, or `MSJob` for a document without a name."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"MSJob {name}" if name else "MSJob"


def show(value: Any) -> str:
    """Return a value for an error message, shortened."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class _Reader:
    """Converts one document and collects errors and changes."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.spec: dict[str, Any] = document["spec"]
        self.errors: list[str] = []
        self.changes: list[Change] = []

    def convert(self) -> dict[str, Any]:
        """Return the converted document; invalid when there are errors."""
        self.note("apiVersion", f"now {API_VERSION}", "the second generation of MSJob has a group of its own")
        self._check_fields(self.spec, "spec", _SPEC_FIELDS)
        if "backend" in self.spec:
            self.note(
                "spec.backend",
                f"{show(self.spec['backend'])} left out",
                "MindSpore chooses its means of communication by itself",
            )
        for name in ("RuntimeId", "runtimeId"):
            if name in self.spec:
                self.note(f"spec.{name}", "left out", "it was part of the names of pods")
        self._check_termination()
        spec: dict[str, Any] = {"msReplicaSpecs": {}}
        worker = self._merge_replicas()
        if worker is not None:
            spec["msReplicaSpecs"][WORKER] = worker
        spec.update({name: self.spec[name] for name in _COMMON_FIELDS if name in self.spec})
        if "status" in self.document:
            self.note("status", "left out", "a new job has none")
        metadata = self.document.get("metadata")
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}

    def note(self, field: str, change: str, reason: str) -> None:
        """Record a change."""
        self.changes.append(Change(field, change, reason))

    def _merge_replicas(self) -> dict[str, Any] | None:
        replicas = self._read_replicas()
        if self.errors or not replicas:
            return None
        master, workers = replicas.get(_MASTER), replicas.get(_WORKER)
        if master is not None and master["replicas"] != 1:
            self.errors.append(f"{master['path']}.replicas: must be 1 for a {_MASTER}, got {master['replicas']}")
        for replica in replicas.values():
            for path in move_volume_sources(replica["template"]):
                self.note(f"{replica['path']}.{path}", "moved to spec.volumes", "it is a field of a volume")
            self._convert_template(replica)
        if self.errors:
            return None
        first = master or workers
        assert first is not None
        if master is not None and workers is not None:
            for path, added in merge_volumes(master["template"], workers["template"]):
                self.note(path, f"{added} added to all workers", f"{_MASTER} and {_WORKER} become one {WORKER}")
            self._compare(master, workers)
            self.note(
                "spec.replicaSpecs",
                f"{_MASTER} and {workers['replicas']} {_WORKER} are now {workers['replicas'] + 1} of {WORKER}",
                "the master trains as worker 0; a scheduler is added by whatever runs the job",
            )
        else:
            kind = _MASTER if master is not None else _WORKER
            self.note(
                f"{first['path']}.replicaType",
                f"{kind} is now msReplicaSpecs.{WORKER}",
                "all that trains is of one type, given as a mapping in place of a list",
            )
        count = sum(replica["replicas"] for replica in replicas.values())
        self._place_port(replicas, first["template"], count)
        self._set_pod_fields(first, count)
        worker: dict[str, Any] = {"replicas": count, "template": first["template"]}
        if first["restartPolicy"] is not None:
            worker["restartPolicy"] = first["restartPolicy"]
        return worker

    def _read_replicas(self) -> dict[str, dict[str, Any]]:
        items = self.spec.get("replicaSpecs")
        if not isinstance(items, list) or not items:
            found = "nothing" if "replicaSpecs" not in self.spec else show(items)
            self.errors.append(f"spec.replicaSpecs: must be a list of {_MASTER} and {_WORKER}, got {found}")
            return {}
        replicas: dict[str, dict[str, Any]] = {}
        for index, item in enumerate(items):
            path = f"spec.replicaSpecs[{index}]"
            if not isinstance(item, Mapping):
                self.errors.append(f"{path}: must be a mapping, got {show(item)}")
                continue
            self._check_fields(item, path, _REPLICA_FIELDS)
            kind = self._read_type(item, path, alone=len(items) == 1)
            if kind is None:
                continue
            if kind in replicas:
                self.errors.append(f"{path}.replicaType: {kind} is given twice, see {replicas[kind]['path']}")
                continue
            template = item.get("template")
            if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
                self.errors.append(f"{path}.template: must have a spec, got {show(template)}")
                continue
            count = self._read_number(item.get("replicas"), f"{path}.replicas", low=1)
            replicas[kind] = {
                "path": path,
                "replicas": 1 if count is None else count,
                # Copied: both may be the same object by a YAML alias.
                "template": copy.deepcopy(template),
                "masterPort": self._read_port(item.get("masterPort"), f"{path}.masterPort"),
                "restartPolicy": None,
            }
        return replicas

    def _read_type(self, item: Mapping[str, Any], path: str, *, alone: bool) -> str | None:
        kind = item.get("replicaType")
        if kind is None and alone:
            return _MASTER
        folded = str(kind).upper()
        if folded in (_MASTER, _WORKER):
            return folded
        self.errors.append(f"{path}.replicaType: must be {_MASTER} or {_WORKER}, got {show(kind)}")
        return None

    def _read_number(self, value: Any, path: str, *, low: int, high: int | None = None) -> int | None:
        bounds = f"≥ {low}" if high is None else f"from {low} to {high}"
        if value is None:
            return None
        number = value
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
            number = int(value)
            self.note(path, f"{show(value)} is now {number}", "it is a number")
        if not isinstance(number, int) or isinstance(number, bool) or number < low or (high and number > high):
            self.errors.append(f"{path}: must be a whole number {bounds}, got {show(value)}")
            return None
        return number

    def _read_port(self, value: Any, path: str) -> int | None:
        return self._read_number(value, path, low=MINIMUM_PORT, high=MAXIMUM_PORT)

    def _convert_template(self, replica: dict[str, Any]) -> None:
        """Rename the training container to `mindspore`, and extract the pod's restart policy."""
        path, pod = f"{replica['path']}.template.spec", replica["template"]["spec"]
        containers = pod.get("containers")
        if not isinstance(containers, list) or not all(isinstance(item, Mapping) for item in containers):
            self.errors.append(f"{path}.containers: must be a list of containers, got {show(containers)}")
            return
        names = [str(item.get("name")) for item in containers]
        if CONTAINER_NAME not in names:
            if len(names) != 1:
                self.errors.append(
                    f"{path}.containers: must have one named '{CONTAINER_NAME}' where there are several, "
                    f"got {', '.join(names) or 'none'}"
                )
                return
            containers[0]["name"] = CONTAINER_NAME
            rename_references(pod, names[0])
            self.note(
                f"{path}.containers[0].name",
                f"{show(names[0])} is now '{CONTAINER_NAME}'",
                "by this name the container that trains is found",
            )
        if "restartPolicy" in pod:
            replica["restartPolicy"] = pod.pop("restartPolicy")
            self.note(
                f"{path}.restartPolicy",
                f"{show(replica['restartPolicy'])} is now that of msReplicaSpecs.{WORKER}",
                "a process cannot rejoin a MindSpore cluster alone, so the whole job is restarted, or nothing",
            )

    def _check_termination(self) -> None:
        """Drop a terminationPolicy that is the current generation's success policy, and refuse any other."""
        if (policy := self.spec.get("terminationPolicy")) is None:
            return
        master = policy.get("master") if isinstance(policy, Mapping) else None
        found = (
            (str(master.get("replicaName")).upper(), master.get("replicaRank")) if isinstance(master, Mapping) else ()
        )
        if found == (_MASTER, 0):
            self.note("spec.terminationPolicy", "left out", "the job ends with worker 0 by default")
        else:
            self.errors.append(f"spec.terminationPolicy: must be the {_MASTER} of rank 0, got {show(policy)}")

    def _set_pod_fields(self, replica: dict[str, Any], count: int) -> None:
        """Set the scheduler, the image and the variables that the first generation's operator set."""
        pod = replica["template"]["spec"]
        container = next(item for item in pod["containers"] if item.get("name") == CONTAINER_NAME)
        path = f"{replica['path']}.template.spec"
        for name, owner, field in (("schedulerName", pod, "schedulerName"), ("msImage", container, "image")):
            if (value := self.spec.get(name)) is not None:
                used = owner.setdefault(field, value) == value
                change = f"{show(value)} is now {field} of the template" if used else f"{show(value)} left out"
                self.note(f"spec.{name}", change, "it applies to pods" if used else f"the template has its own {field}")
        own = {str(item.get("name")) for item in list_mappings(container, "env")}
        variables = {name: f"$({source})" for name, source in _VARIABLES.items()} if count > 1 else _ALONE
        added = [{"name": name, "value": value} for name, value in variables.items() if name not in own]
        if added and isinstance(container.get("env", []), list):
            container["env"] = [*added, *container.get("env", [])]
            names = ", ".join(item["name"] for item in added)
            self.note(f"{path}.containers[0].env", f"{names} added", "the operator of the first generation set them")

    def _compare(self, master: dict[str, Any], workers: dict[str, Any]) -> None:
        """Refuse different templates, with the differing field paths."""
        old = f"{_MASTER} ({master['path']}) and {_WORKER} ({workers['path']})"
        pairs = [
            *_list_differences(master["template"], workers["template"], "template"),
            *_list_differences(master["restartPolicy"], workers["restartPolicy"], "template.spec.restartPolicy"),
        ]
        for path, left, right in pairs:
            self.errors.append(
                f"{path}: must be the same in {old}, which become one {WORKER}: got {show(left)} and {show(right)}"
            )

    def _place_port(self, replicas: Mapping[str, dict[str, Any]], template: dict[str, Any], count: int) -> None:
        """Write the master's port into the scheduler's container port."""
        given = {replica["path"] + ".masterPort": replica["masterPort"] for replica in replicas.values()}
        given["spec.masterPort"] = self._read_port(self.spec.get("masterPort"), "spec.masterPort")
        given = {path: port for path, port in given.items() if port is not None}
        if len(set(given.values())) > 1:
            told = ", ".join(f"{path} {port}" for path, port in given.items())
            self.errors.append(f"spec.masterPort: must be the same wherever it is given, got {told}")
            return
        if not given:
            return
        path, port = next(iter(given.items()))
        if count == 1:
            self.note(path, "left out", "one worker runs without a scheduler, and needs no port")
            return
        container = next(item for item in template["spec"]["containers"] if item.get("name") == CONTAINER_NAME)
        ports = [item for item in container.get("ports") or [] if isinstance(item, Mapping)]
        named = next((item for item in ports if item.get("name") == PORT_NAME), None)
        if named is not None and named.get("containerPort") != port:
            found = show(named.get("containerPort"))
            self.errors.append(f"{path}: must be that of the container port '{PORT_NAME}' ({found}), got {port}")
        replaced = [item for item in ports if item.get("containerPort") == port and item.get("name") != PORT_NAME]
        if named is None:
            others = [item for item in ports if item not in replaced]
            container["ports"] = [*others, {"name": PORT_NAME, "containerPort": port}]
        names = "".join(f", in place of '{item['name']}'" for item in replaced if named is None and "name" in item)
        self.note(
            path,
            f"{port} is now the port '{PORT_NAME}' of the container '{CONTAINER_NAME}'{names}",
            f"there the scheduler's port is looked for; without one it is {DEFAULT_PORT}",
        )

    def _check_fields(self, document: Mapping[str, Any], path: str, known: tuple[str, ...]) -> None:
        self.errors += [
            f"{path}.{name}: unknown field{suggest(str(name), known, cutoff=0.75, listed=False)}"
            for name in document
            if name not in known
        ]


def _list_differences(left: Any, right: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in [*left, *(key for key in right if key not in left)]:
            yield from _list_differences(left.get(key), right.get(key), f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _list_differences(one, other, f"{path}[{index}]")
    elif left != right:
        yield path, left, right
