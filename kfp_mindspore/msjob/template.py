"""Checks a pod template as far as a job depends on it: the shape of what is read, and misspelt fields of containers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_mindspore.msjob.pod_schema import list_fields


def check_template(template: Mapping[str, Any], path: str) -> list[str]:
    """Return one sentence for each wrong field.

    Args:
        template: A PodTemplateSpec on the wire.
        path: Where it stands in the document.
    """
    errors = _check_unknown(template, path, frozenset({"metadata", "spec"}))
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        return [*errors, f"{path}.spec: is required" if spec is None else f"{path}.spec: must be a mapping"]
    path += ".spec"
    errors += _check_unknown(spec, path, list_fields("PodSpec"))
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool) or grace < 0):
        errors.append(f"{path}.terminationGracePeriodSeconds: must be a whole number ≥ 0, got {grace!r}")
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        return [*errors, f"{path}.containers: must be a list of at least one container"]
    for index, container in enumerate(containers):
        where = f"{path}.containers[{index}]"
        if isinstance(container, Mapping):
            errors += _check_container(container, where)
        else:
            errors.append(f"{where}: must be a mapping, got {container!r}")
    return errors


def _check_container(container: Mapping[str, Any], path: str) -> list[str]:
    errors = _check_unknown(container, path, list_fields("Container"))
    if not isinstance(container.get("name"), str):
        errors.append(f"{path}.name: must be text, got {container.get('name')!r}")
    for key in ("image", "workingDir"):
        if container.get(key) is not None and not isinstance(container[key], str):
            errors.append(f"{path}.{key}: must be text, got {container[key]!r}")
    for key in ("command", "args"):
        parts = container.get(key)
        if parts is None:
            continue
        if not isinstance(parts, list):
            errors.append(f"{path}.{key}: must be a list of text, got {parts!r}")
            continue
        errors += [
            f"{path}.{key}[{index}]: must be text (put it in quotes), got {part!r}"
            for index, part in enumerate(parts)
            if not isinstance(part, str)
        ]
    for key in ("envFrom", "volumeMounts"):
        errors += _check_mappings(container.get(key), f"{path}.{key}")
    return errors + _check_env(container.get("env"), f"{path}.env") + _check_ports(container, f"{path}.ports")


def _check_mappings(items: Any, path: str) -> list[str]:
    if items is not None and not isinstance(items, list):
        return [f"{path}: must be a list, got {items!r}"]
    return [
        f"{path}[{index}]: must be a mapping, got {item!r}"
        for index, item in enumerate(items or [])
        if not isinstance(item, Mapping)
    ]


def _check_sources(item: Mapping[str, Any], path: str) -> list[str]:
    return [
        f"{path}.{name}: must be a mapping, got {source!r}"
        for name, source in item.items()
        if source is not None and not isinstance(source, Mapping)
    ]


def _check_env(env: Any, path: str) -> list[str]:
    if env is None:
        return []
    if not isinstance(env, list):
        return [f"{path}: must be a list of name and value, got {env!r}"]
    errors = []
    for index, item in enumerate(env):
        where = f"{path}[{index}]"
        if not isinstance(item, Mapping):
            errors.append(f"{where}: must be a mapping, got {item!r}")
            continue
        errors += _check_unknown(item, where, list_fields("EnvVar"))
        if not isinstance(item.get("name"), str) or not item["name"]:
            errors.append(f"{where}.name: must be text, got {item.get('name')!r}")
        if item.get("value") is not None and not isinstance(item["value"], str):
            errors.append(f"{where}.value: must be text (put it in quotes), got {item['value']!r}")
        if isinstance(source := item.get("valueFrom"), Mapping):
            errors += _check_sources(source, f"{where}.valueFrom")
        elif source is not None:
            errors.append(f"{where}.valueFrom: must be a mapping, got {source!r}")
        if item.get("value") is not None and item.get("valueFrom") is not None:
            errors.append(f"{where}: must have value or valueFrom, got both")
    return errors


def _check_ports(container: Mapping[str, Any], path: str) -> list[str]:
    ports = container.get("ports")
    if ports is None:
        return []
    if not isinstance(ports, list):
        return [f"{path}: must be a list, got {ports!r}"]
    errors = []
    for index, port in enumerate(ports):
        where = f"{path}[{index}]"
        if not isinstance(port, Mapping):
            errors.append(f"{where}: must be a mapping, got {port!r}")
            continue
        errors += _check_unknown(port, where, list_fields("ContainerPort"))
        number = port.get("containerPort")
        if not isinstance(number, int) or isinstance(number, bool):
            errors.append(f"{where}.containerPort: must be a whole number, got {number!r}")
    return errors


def _check_unknown(document: Mapping[Any, Any], path: str, known: Iterable[str]) -> list[str]:
    """Name misspelt fields; one that resembles none may be of a newer Kubernetes, and is let through."""
    errors = []
    by_case = {word.lower(): word for word in known}
    for name in document:
        if name in by_case.values():
            continue
        close = difflib.get_close_matches(str(name).lower(), by_case, n=1, cutoff=0.8)
        if close:
            errors.append(f"{path}.{name}: unknown field; did you mean '{by_case[close[0]]}'?")
    return errors
