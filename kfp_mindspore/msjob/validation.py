"""Finds what is wrong with an MSJob before anything starts, and names each field by its path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.names import (
    API_VERSION,
    CLEAN_POD_POLICIES,
    CONTAINER_NAME,
    FIRST_API_VERSION,
    JOB_NAME,
    KIND,
    MAXIMUM_NAME,
    MAXIMUM_PORT,
    MINIMUM_PORT,
    PORT_NAME,
    REPLICA_TYPES,
    RESTART_POLICIES,
    SCHEDULER,
    SUCCESS_POLICIES,
    TOPOLOGY_KEY,
    WORKER,
    resolve_replica_type,
)
from kfp_mindspore.msjob.status import JobStatus
from kfp_mindspore.msjob.template import list_template_errors

_LABEL = re.compile(JOB_NAME)
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PORTS = (MINIMUM_PORT, MAXIMUM_PORT)
# Pod templates have 20 levels at most; thousands would end in a RecursionError.
_MAX_DEPTH = 100

Check = Callable[[Any], str | None]

_SHOWN = 80


def validate_msjob(job: Any) -> None:
    """Check a job.

    Args:
        job: An MSJob, or its wire form.

    Raises:
        ValidationError: Its `errors` has one sentence a wrong field, such as
            `spec.msReplicaSpecs.Worker.replicas: must be ≥ 1, got 0`.
    """
    document = job if isinstance(job, Mapping) or not hasattr(job, "to_dict") else job.to_dict()
    errors = list_errors(document)
    if errors:
        metadata = document.get("metadata") if isinstance(document, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        first = isinstance(document, Mapping) and document.get("apiVersion") == FIRST_API_VERSION
        hint = "It is of the first generation; convert it with: kfp-mindspore job convert FILE" if first else ""
        raise ValidationError(errors, subject=f"MSJob {name}" if name else "MSJob", hint=hint)


def list_errors(document: Any) -> list[str]:
    """Return one sentence for each wrong field of a job's wire form."""
    if not isinstance(document, Mapping):
        return [f"document: must be a mapping, got {_show(document)}"]
    errors = _check_fields(
        document,
        "",
        {
            "apiVersion": _one_of((API_VERSION,)),
            "kind": _one_of((KIND,)),
            "metadata": _mapping,
            "spec": _mapping,
            "status": _mapping,
        },
        required=("apiVersion", "kind", "metadata", "spec"),
    )
    if isinstance(metadata := document.get("metadata"), Mapping):
        errors += _check_metadata(metadata)
    if isinstance(spec := document.get("spec"), Mapping):
        errors += _check_spec(spec)
    if isinstance(status := document.get("status"), Mapping):
        errors += _check_status(status)
    return errors


def parse_msjob_yaml(text: str, *, source: str = "") -> dict[str, Any]:
    """Parse the YAML of one job; what it says is not checked here. Dates stay text, as in Kubernetes.

    Args:
        text: The YAML.
        source: Name of its file, for messages.

    Raises:
        ValidationError: It is no YAML, with line and column, gives a key twice, or is not one mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own class attribute
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_node(self, parent: Any, index: Any) -> Any:
            reader: Any = self
            if (depth := getattr(self, "depth", 0)) >= _MAX_DEPTH:
                raise yaml.MarkedYAMLError(
                    problem=f"is nested deeper than {_MAX_DEPTH} levels", problem_mark=reader.peek_event().start_mark
                )
            self.depth = depth + 1
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth = depth

        def compose_mapping_node(self, anchor: Any) -> Any:
            # Here, since merges (<<) are keys still: what they bring may be given again.
            node: Any = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
                if name is None or key.tag == "tag:yaml.org,2002:merge":
                    continue
                if name in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add(name)
            return node

    where = f"{source}: " if source else ""
    try:
        documents = [item for item in yaml.load_all(text, Loader) if item is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValidationError([f"{where}{place}{error.problem or error.context}"], subject="YAML") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValidationError([f"{where}{error}"], subject="YAML") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = f"{len(documents)} documents" if len(documents) != 1 else _show(documents[0])
        raise ValidationError([f"{where}must hold one MSJob, got {found}"], subject="YAML")
    document: dict[str, Any] = documents[0]
    return document


def _check_metadata(metadata: Mapping[str, Any]) -> list[str]:
    errors = []
    name = metadata.get("name")
    if name is None:
        errors.append("metadata.name: is required")
    elif not isinstance(name, str) or not _LABEL.fullmatch(name):
        errors.append(
            "metadata.name: must be lower-case letters, digits and '-', starting with a letter and not ending "
            f"with '-', got {_show(name)}"
        )
    elif len(name) > MAXIMUM_NAME:
        errors.append(f"metadata.name: must have at most {MAXIMUM_NAME} characters, got {len(name)} ({name!r})")
    namespace = metadata.get("namespace")
    if namespace is not None and (
        not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace) or len(namespace) > 63
    ):
        errors.append(f"metadata.namespace: must be a DNS label of at most 63 characters, got {_show(namespace)}")
    for key in ("labels", "annotations"):
        errors += _check_strings(metadata.get(key), f"metadata.{key}")
    return errors


def _check_strings(value: Any, path: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, Mapping):
        return [f"{path}: must be a mapping, got {_show(value)}"]
    return [f"{path}.{key}: must be text, got {_show(item)}" for key, item in value.items() if not _is_text(item)]


def _check_spec(spec: Mapping[str, Any]) -> list[str]:
    errors = _check_fields(
        spec,
        "spec",
        {
            "msReplicaSpecs": _mapping,
            "runPolicy": _mapping,
            "successPolicy": _one_of(SUCCESS_POLICIES),
            "enableDynamicWorker": _boolean,
            "elasticPolicy": _mapping,
            "topologyKey": _label_key,
        },
        required=("msReplicaSpecs",),
    )
    if isinstance(replicas := spec.get("msReplicaSpecs"), Mapping):
        errors += _check_replicas(replicas)
    if isinstance(policy := spec.get("runPolicy"), Mapping):
        errors += _check_run_policy(policy)
    if isinstance(policy := spec.get("elasticPolicy"), Mapping):
        errors += _check_elastic_policy(policy)
    return errors


def _check_status(status: Mapping[str, Any]) -> list[str]:
    try:
        conditions = JobStatus.from_dict(status).conditions
    except (AttributeError, TypeError, ValueError) as error:
        return [f"status: must be the status of a job ({error})"]
    return [
        f"status.conditions[{index}].{name}: must be text, got {_show(getattr(condition, name))}"
        for index, condition in enumerate(conditions)
        for name in ("type", "status")
        if not _is_text(getattr(condition, name))
    ]


def _check_replicas(replicas: Mapping[Any, Any]) -> list[str]:
    path = "spec.msReplicaSpecs"
    errors = []
    seen: dict[str, Any] = {}
    for key, spec in replicas.items():
        kind = resolve_replica_type(str(key))
        if kind is None:
            errors.append(f"{path}.{key}: unknown replica type, must be one of {', '.join(REPLICA_TYPES)}")
            continue
        if kind in seen:
            errors.append(f"{path}.{key}: the same as {seen[kind]}; give each replica type once")
            continue
        seen[kind] = key
        if isinstance(spec, Mapping):
            errors += _check_replica(spec, f"{path}.{kind}", kind)
        else:
            errors.append(f"{path}.{kind}: must be a mapping, got {_show(spec)}")
    if WORKER not in seen and not errors:
        errors.append(f"{path}.{WORKER}: is required; a job without a worker would never end")
    return errors


def _check_replica(spec: Mapping[str, Any], path: str, kind: str) -> list[str]:
    replicas = _exactly(1) if kind == SCHEDULER else _at_least(1)
    errors = _check_fields(
        spec,
        path,
        {"replicas": replicas, "restartPolicy": _one_of(RESTART_POLICIES), "template": _mapping},
        required=("template",),
    )
    template = spec.get("template")
    if not isinstance(template, Mapping):
        return errors
    problems = list_template_errors(template, f"{path}.template")
    if not problems:
        containers = template["spec"]["containers"]
        names = [container.get("name") for container in containers]
        if CONTAINER_NAME not in names:
            errors.append(
                f"{path}.template.spec.containers: must have one named '{CONTAINER_NAME}', got {', '.join(names)}"
            )
        for index, container in enumerate(containers):
            errors += _check_port(container, f"{path}.template.spec.containers[{index}]")
    return errors + problems


def _check_port(container: Mapping[str, Any], path: str) -> list[str]:
    errors = []
    for index, port in enumerate(container.get("ports") or []):
        low, high = _PORTS if port.get("name") == PORT_NAME else (1, _PORTS[1])
        number = port.get("containerPort")
        if isinstance(number, int) and not low <= number <= high:
            errors.append(f"{path}.ports[{index}].containerPort: must be from {low} to {high}, got {number}")
    return errors


def _check_run_policy(policy: Mapping[str, Any]) -> list[str]:
    path = "spec.runPolicy"
    errors = _check_fields(
        policy,
        path,
        {
            "activeDeadlineSeconds": _at_least(1),
            "backoffLimit": _at_least(0),
            "cleanPodPolicy": _one_of(CLEAN_POD_POLICIES),
            "managedBy": _text,
            "schedulingPolicy": _mapping,
            "suspend": _boolean,
            "ttlSecondsAfterFinished": _at_least(0),
        },
    )
    if isinstance(scheduling := policy.get("schedulingPolicy"), Mapping):
        errors += _check_fields(
            scheduling,
            f"{path}.schedulingPolicy",
            {
                "minAvailable": _at_least(1),
                "minResources": _mapping,
                "priorityClass": _text,
                "queue": _text,
                "scheduleTimeoutSeconds": _at_least(0),
            },
        )
    return errors


def _check_elastic_policy(policy: Mapping[str, Any]) -> list[str]:
    path = "spec.elasticPolicy"
    errors = _check_fields(policy, path, {"minReplicas": _at_least(1), "maxReplicas": _at_least(1)})
    low, high = policy.get("minReplicas"), policy.get("maxReplicas")
    if not errors and low is not None and high is not None and low > high:
        errors.append(f"{path}.minReplicas: must be ≤ maxReplicas ({high}), got {low}")
    return errors


def _check_fields(
    document: Mapping[Any, Any], path: str, checks: Mapping[str, Check], required: Iterable[str] = ()
) -> list[str]:
    prefix = f"{path}." if path else ""
    errors = [f"{prefix}{name}: is required" for name in required if document.get(name) is None]
    for name, value in document.items():
        check = checks.get(name)
        if check is None:
            errors.append(f"{prefix}{name}: unknown field{suggest(str(name), checks)}")
        elif value is not None and (problem := check(value)):
            errors.append(f"{prefix}{name}: {problem}, got {_show(value)}")
    return errors


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean '…'?` when a known word is close, or nothing."""
    by_case = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=0.75)
    return f"; did you mean '{by_case[close[0]]}'?" if close else ""


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _mapping(value: Any) -> str | None:
    return None if isinstance(value, Mapping) else "must be a mapping"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be text"


def _label_key(value: Any) -> str | None:
    valid = isinstance(value, str) and re.fullmatch(TOPOLOGY_KEY, value) and len(value) <= 317
    return None if valid else "must be the key of a node's label, such as 'topology.kubernetes.io/zone'"


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _at_least(minimum: int) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return f"must be a whole number ≥ {minimum}"
        return f"must be ≥ {minimum}" if value < minimum else None

    return check


def _exactly(number: int) -> Check:
    return lambda value: None if value == number and not isinstance(value, bool) else f"must be {number}"


def _one_of(words: tuple[str, ...]) -> Check:
    spelled = ", ".join(repr(word) for word in words)
    text = f"must be {spelled}" if len(words) == 1 else f"must be one of {spelled}"
    return lambda value: None if isinstance(value, str) and value in words else text
