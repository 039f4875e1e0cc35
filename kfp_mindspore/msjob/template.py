"""Checks a pod template: misspelt fields and values of the wrong type at any depth, and what a job depends on."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kfp_mindspore.msjob.pod_schema import POD_TEMPLATE, Schema, build_schema

# What a value of a schema's type is in Python, and what a person calls it.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "array": ((list,), "a list"),
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "object": ((Mapping,), "a mapping"),
    "string": ((str,), "text"),
}
_NUMBER_OR_TEXT = ((int, str), "a whole number or text")
_SHOWN = 80


def list_template_errors(template: Mapping[str, Any], path: str) -> list[str]:
    """Return one sentence for each wrong field.

    Args:
        template: A PodTemplateSpec on the wire.
        path: Where it stands in the document.
    """
    errors = _check_pod(template.get("spec"), f"{path}.spec")
    named = [error.split(": ")[0] for error in errors]
    # One sentence a field: what a job depends on is said in its own words.
    return errors + [
        f"{where}: {problem}"
        for where, problem in _check_shape(template, _load_schema(), path)
        if not any(where == other or where.startswith((f"{other}.", f"{other}[")) for other in named)
    ]


def _check_pod(spec: Any, path: str) -> list[str]:
    errors: list[str] = []
    if not isinstance(spec, Mapping):
        return [f"{path}: is required" if spec is None else f"{path}: must be a mapping"]
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
    errors: list[str] = []
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
        number = port.get("containerPort")
        if not isinstance(number, int) or isinstance(number, bool):
            errors.append(f"{where}.containerPort: must be a whole number, got {number!r}")
    return errors


@functools.cache
def _load_schema() -> Schema:
    return build_schema(POD_TEMPLATE)


def _check_shape(value: Any, schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Yield each wrong field with what is wrong; nothing at all is as good as a field that is left out."""
    kinds, name = _NUMBER_OR_TEXT if "anyOf" in schema else _KINDS[schema["type"]]
    if value is None:
        return
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        quotes = " (put it in quotes)" if str in kinds and isinstance(value, (bool, int, float)) else ""
        yield path, f"must be {name}{quotes}, got {_show(value)}"
    elif isinstance(value, Mapping):
        fields = schema.get("properties", {})
        for key, item in value.items():
            known = fields.get(key) or schema.get("additionalProperties")
            if known is not None:
                yield from _check_shape(item, known, f"{path}.{key}")
            elif (meant := _find_meant(str(key), fields)) is not None:
                yield f"{path}.{key}", f"unknown field; did you mean '{meant}'?"
        yield from ((f"{path}.{key}", "is required") for key in schema.get("required", []) if value.get(key) is None)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_shape(item, schema["items"], f"{path}[{index}]")


def _find_meant(name: str, known: Iterable[str]) -> str | None:
    """Return the field that is misspelt; a name that resembles none may be of a newer Kubernetes, and is no mistake."""
    by_case = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=0.8)
    return by_case[close[0]] if close else None


def _show(value: Any) -> str:
    text = "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
