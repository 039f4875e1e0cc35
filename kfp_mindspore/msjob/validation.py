"""MSJob document validation: the CRD's schema, and the rules that the CRD expresses in CEL.

Every error is one sentence that starts with the field path, such as `spec.msReplicaSpecs.Worker.replicas: must be ≥ 1,
got 0`. A null value counts as an absent field, as in Kubernetes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.names import LABEL_KEY, NAMESPACE, SERVICE_NAME
from kfp_mindspore.kube.pod_schema import Schema
from kfp_mindspore.kube.schema_validation import build_validator, drop_nulls, format_path, is_integer, show
from kfp_mindspore.msjob.api.names import (
    API_VERSION,
    CONTAINER_NAME,
    FIRST_API_VERSION,
    KIND,
    MAXIMUM_NAME,
    MAXIMUM_PORT,
    MINIMUM_PORT,
    PORT_NAME,
    REPLICA_TYPES,
    SCHEDULER,
    WORKER,
    resolve_replica_type,
)
from kfp_mindspore.msjob.api.status import JobStatus

_SPECS = "spec.msReplicaSpecs"
_PATTERNS = {
    SERVICE_NAME: "must be lower-case letters, digits and '-', starting with a letter and not ending with '-'",
    NAMESPACE: "must be a DNS label of at most 63 characters",
    f"^{LABEL_KEY}$": "must be the key of a node's label, such as 'topology.kubernetes.io/zone'",
}


def validate_msjob(job: Any) -> None:
    """Validate a job.

    Args:
        job: An MSJob, or its document.

    Raises:
        ValidationError: `errors` holds one sentence for each invalid field.
    """
    document = job if isinstance(job, Mapping) or not hasattr(job, "to_dict") else job.to_dict()
    if errors := list_errors(document):
        metadata = document.get("metadata") if isinstance(document, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        hint = get_convert_hint(document) if isinstance(document, Mapping) else ""
        raise ValidationError(errors, subject=f"MSJob {name}" if name else "MSJob", hint=hint)


def get_convert_hint(document: Mapping[str, Any], source: str = "") -> str:
    """Return the hint for a job of another kind or generation; empty for other documents.

    Args:
        document: The document.
        source: File name.
    """
    from kfp_mindspore.msjob.kinds import resolve_kind

    is_first = (document.get("apiVersion"), document.get("kind")) == (FIRST_API_VERSION, KIND)
    if not is_first and resolve_kind(document) is None:
        return ""
    what = "of the first generation" if is_first else f"a job of {document['apiVersion']}"
    return f"It is {what}; convert it with: kfp-mindspore job convert {source or 'FILE'}"


def list_errors(document: Any) -> list[str]:
    """Return one sentence for each invalid field in a job's document; empty when it is valid."""
    if not isinstance(document, Mapping):
        return [f"document: must be a mapping, got {show(document)}"]
    status = document.get("status")
    document = drop_nulls({key: value for key, value in document.items() if key != "status"})
    errors = dict(_resolve_replica_types(document))
    errors.update(_list_rule_errors(document))
    for error in _load_validator().iter_errors(document):
        errors.setdefault(format_path(error.absolute_path), error.message)
    return [f"{path}: {message}" for path, message in errors.items()] + _list_status_errors(status)


def _resolve_replica_types(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Replace msReplicaSpecs keys, which are case-insensitive, by the replica types; yield the wrong ones."""
    replicas = _mapping(_mapping(document.get("spec")).get("msReplicaSpecs"))
    given: dict[str, str] = {}
    for key in list(replicas):
        replica, kind = replicas.pop(key), resolve_replica_type(key)
        if kind is None:
            yield f"{_SPECS}.{key}", f"unknown replica type, must be one of {', '.join(REPLICA_TYPES)}"
        elif kind in given:
            yield f"{_SPECS}.{key}", f"the same as {given[kind]}; give each replica type once"
        else:
            given[kind] = key
            replicas[kind] = replica


def _list_rule_errors(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and message for each violated rule that JSON schema cannot express."""
    spec = _mapping(document.get("spec"))
    replicas = spec.get("msReplicaSpecs")
    if isinstance(replicas, Mapping):
        if WORKER not in replicas:
            yield f"{_SPECS}.{WORKER}", "is required; a job without a worker would never end"
        count = _mapping(replicas.get(SCHEDULER)).get("replicas", 1)
        if is_integer(count) and count != 1:
            yield f"{_SPECS}.{SCHEDULER}.replicas", f"must be 1, got {count}"
        for kind, replica in replicas.items():
            template = _mapping(_mapping(replica).get("template"))
            if isinstance(pod := template.get("spec"), Mapping):
                yield from _list_pod_errors(pod, f"{_SPECS}.{kind}.template.spec")
    elastic = _mapping(spec.get("elasticPolicy"))
    low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if is_integer(low) and is_integer(high) and low > high:
        yield "spec.elasticPolicy.minReplicas", f"must be ≤ maxReplicas ({high}), got {low}"


def _list_pod_errors(pod: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    grace = pod.get("terminationGracePeriodSeconds", 0)
    if not is_integer(grace) or grace < 0:
        yield f"{path}.terminationGracePeriodSeconds", f"must be a whole number ≥ 0, got {show(grace)}"
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers:
        yield f"{path}.containers", "must be a list of at least one container"
        return
    names = [_mapping(container).get("name") for container in containers]
    if CONTAINER_NAME not in names and all(isinstance(name, str) for name in names):
        yield f"{path}.containers", f"must have one named '{CONTAINER_NAME}', got {', '.join(map(str, names))}"
    volumes = [_mapping(volume).get("name") for volume in _list(pod.get("volumes"))]
    for index, container in enumerate(containers):
        yield from _list_container_errors(_mapping(container), f"{path}.containers[{index}]")
        for number, mount in enumerate(_list(_mapping(container).get("volumeMounts"))):
            name = _mapping(mount).get("name")
            if isinstance(name, str) and name not in volumes:
                known = f"one of the pod's volumes ({', '.join(map(str, volumes)) or 'none'})"
                yield f"{path}.containers[{index}].volumeMounts[{number}].name", f"must be {known}, got {name!r}"


def _list_container_errors(container: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for index, variable in enumerate(_list(container.get("env"))):
        name = _mapping(variable).get("name")
        if name == "" or (isinstance(name, str) and "=" in name):
            yield f"{path}.env[{index}].name", f"must be text without '=', got {name!r}"
        if {"value", "valueFrom"} <= _mapping(variable).keys():
            yield f"{path}.env[{index}]", "must have value or valueFrom, got both"
    for index, port in enumerate(_list(container.get("ports"))):
        low = MINIMUM_PORT if _mapping(port).get("name") == PORT_NAME else 1
        number = _mapping(port).get("containerPort", low)
        if is_integer(number) and not low <= number <= MAXIMUM_PORT:
            yield f"{path}.ports[{index}].containerPort", f"must be from {low} to {MAXIMUM_PORT}, got {number}"


def _list_status_errors(status: Any) -> list[str]:
    if status is None:
        return []
    if not isinstance(status, Mapping):
        return [f"status: must be a mapping, got {show(status)}"]
    try:
        conditions = JobStatus.from_dict(status).conditions
    except (AttributeError, TypeError, ValueError) as error:
        return [f"status: must be the status of a job ({error})"]
    return [
        f"status.conditions[{index}].{name}: must be text, got {show(getattr(condition, name))}"
        for index, condition in enumerate(conditions)
        for name in ("type", "status")
        if not isinstance(getattr(condition, name), str)
    ]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _build_schema() -> Schema:
    """Return the CRD's schema without the status, and with what the API server validates by itself."""
    from kfp_mindspore.msjob.api.crd import build_job_schema

    schema = build_job_schema()
    fields = schema["properties"]
    del fields["status"]
    _close(schema)
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    fields["apiVersion"]["enum"], fields["kind"]["enum"] = [API_VERSION], [KIND]
    text = {"type": "object", "additionalProperties": {"type": "string"}}
    fields["metadata"] = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "pattern": SERVICE_NAME, "maxLength": MAXIMUM_NAME},
            "namespace": {"type": "string", "pattern": NAMESPACE},
            "labels": text,
            "annotations": text,
        },
    }
    return schema


def _close(schema: Schema) -> None:
    """Allow no unknown field; pod templates stay open, since a newer Kubernetes may have more fields."""
    properties = schema.get("properties", {})
    if properties:
        schema["additionalProperties"] = False
    elif isinstance(inner := schema.get("additionalProperties"), dict):
        _close(inner)
    for name, field in properties.items():
        if name != "template":
            _close(field)


@functools.cache
def _load_validator() -> Any:
    return build_validator(_build_schema(), _PATTERNS)
