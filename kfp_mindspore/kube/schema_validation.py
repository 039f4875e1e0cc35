"""Validation by a structural schema, as an API server does: one sentence for each invalid field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from kfp_mindspore.errors import suggest
from kfp_mindspore.kube.pod_schema import QUANTITY, Schema

_SHOWN = 80
_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}
_QUANTITIES = {QUANTITY["pattern"]: "must be a quantity such as 2, 500m or 4Gi"}


def drop_nulls(value: Any) -> Any:
    """Return a document without null values, which count as absent fields in Kubernetes."""
    if isinstance(value, Mapping):
        return {str(key): drop_nulls(item) for key, item in value.items() if item is not None}
    return [drop_nulls(item) for item in value] if isinstance(value, (list, tuple)) else value


def is_integer(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def show(value: Any) -> str:
    """Return a short form of a found value for a message."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def format_path(path: Iterable[str | int]) -> str:
    """Return a field's path such as `containers[0].image`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def build_validator(schema: Schema, patterns: Mapping[str, str] | None = None) -> Any:
    """Return a jsonschema validator whose errors' messages start with `must`.

    Args:
        schema: The schema.
        patterns: Messages by pattern.
    """
    # Imported on first use: it takes 0.1 s, which a supervisor does not need.
    import jsonschema

    error, patterns = jsonschema.ValidationError, {**_QUANTITIES, **(patterns or {})}

    def check_type(_: Any, kind: str, value: Any, schema: Schema) -> Iterator[Any]:
        if "enum" in schema or validator.is_type(value, kind):
            return
        expected = f"must be {_TYPES[kind]}"
        if "minimum" in schema:
            expected += f" ≥ {schema['minimum']}"
        elif kind == "array" and schema["items"].get("type") == "string":
            expected += " of text"
        elif kind == "string" and isinstance(value, (bool, int, float)):
            expected += " (put it in quotes)"
        yield error(f"{patterns.get(schema.get('pattern', ''), expected)}, got {show(value)}")

    def check_int_or_string(_: Any, __: Any, value: Any, ___: Schema) -> Iterator[Any]:
        if not validator.is_type(value, "integer") and not isinstance(value, str):
            yield error(f"must be a whole number or text (put it in quotes), got {show(value)}")

    def check_enum(_: Any, words: list[str], value: Any, __: Schema) -> Iterator[Any]:
        if value not in words or not isinstance(value, str):
            listed = ", ".join(map(repr, words))
            yield error(f"must be {'one of ' if len(words) > 1 else ''}{listed}, got {show(value)}")

    def check_pattern(_: Any, pattern: str, value: Any, __: Schema) -> Iterator[Any]:
        if isinstance(value, str) and not re.fullmatch(pattern, value):
            yield error(f"{patterns.get(pattern, f'must match {pattern}')}, got {show(value)}")

    def check_minimum(_: Any, minimum: int, value: Any, __: Schema) -> Iterator[Any]:
        if is_integer(value) and value < minimum:
            yield error(f"must be ≥ {minimum}, got {value}")

    def check_length(_: Any, maximum: int, value: Any, __: Schema) -> Iterator[Any]:
        if isinstance(value, str) and len(value) > maximum:
            yield error(f"must have at most {maximum} characters, got {len(value)} ({show(value)})")

    def check_properties(node: Any, fields: Schema, value: Any, schema: Schema) -> Iterator[Any]:
        closed = schema.get("additionalProperties") is False
        for key, item in _mapping(value).items():
            if key in fields:
                yield from node.descend(item, fields[key], path=key, schema_path=key)
            elif (hint := suggest(key, fields, cutoff=0.75 if closed else 0.8, listed=False)) or closed:
                yield error(f"unknown field{hint}", path=[key])

    def check_additional(node: Any, inner: Any, value: Any, _: Schema) -> Iterator[Any]:
        for key, item in _mapping(value).items() if inner else ():
            yield from node.descend(item, inner, path=key)

    def check_required(_: Any, names: list[str], value: Any, __: Schema) -> Iterator[Any]:
        if isinstance(value, dict):
            yield from (error("is required", path=[name]) for name in names if name not in value)

    draft = jsonschema.Draft202012Validator
    checks = {
        "type": check_type,
        "anyOf": check_int_or_string,
        "enum": check_enum,
        "pattern": check_pattern,
        "minimum": check_minimum,
        "maxLength": check_length,
        "properties": check_properties,
        "additionalProperties": check_additional,
        "required": check_required,
    }
    integers = draft.TYPE_CHECKER.redefine("integer", lambda _, value: is_integer(value))
    validator = jsonschema.validators.extend(draft, checks, type_checker=integers)(schema)
    return validator


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
