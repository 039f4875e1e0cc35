"""The rules that the API server has for a CustomResourceDefinition's schema, and a JSON schema of what it accepts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

_TYPES = {"array", "boolean", "integer", "number", "object", "string"}
_WORDS = {
    "additionalProperties", "anyOf", "default", "description", "enum", "format", "items", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "nullable", "pattern",
    "properties", "required", "type", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}  # fmt: skip
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def walk(schema: dict[str, Any], path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema inside a schema, with its path."""
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from walk(item, f"{path}.{name}")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*")
    if isinstance(schema.get("items"), dict):
        yield from walk(schema["items"], f"{path}[]")


def find_faults(root: dict[str, Any]) -> list[str]:
    """Return one sentence for each rule of structural schemas that is broken."""
    faults = []
    for path, schema in walk(root):
        faults += [f"{path}: {fault}" for fault in _check(schema)]
    metadata = root.get("properties", {}).get("metadata", {})
    if set(metadata) - {"type", "properties"} or set(metadata.get("properties", {})) - {"name", "generateName"}:
        faults.append("$.metadata: only name and generateName may be restricted")
    return faults


def _check(schema: dict[str, Any]) -> Iterator[str]:
    if unknown := set(schema) - _WORDS:
        yield f"words that are not allowed or not used here: {sorted(unknown)}"
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if kind is not None or schema.get("anyOf") != _INT_OR_STRING:
            yield "int-or-string must have no type, and anyOf integer and string"
    elif kind not in _TYPES or "anyOf" in schema:
        yield f"must have a type and no anyOf, has {kind!r}"
    if "properties" in schema and "additionalProperties" in schema:
        yield "properties and additionalProperties exclude each other"
    if ("properties" in schema or "additionalProperties" in schema) and kind != "object":
        yield "only an object has properties"
    if (kind == "array") != isinstance(schema.get("items"), dict):
        yield "an array, and nothing else, must have items of one schema"
    if missing := set(schema.get("required", [])) - set(schema.get("properties", {})):
        yield f"requires what it does not describe: {sorted(missing)}"
    yield from _check_lists(schema)
    if schema.get("x-kubernetes-map-type") not in (None, "atomic", "granular") or (
        "x-kubernetes-map-type" in schema and kind != "object"
    ):
        yield "only an object has a map type, atomic or granular"
    for rule in schema.get("x-kubernetes-validations", []):
        if not rule.get("rule") or not rule.get("message") or "\n" in rule["message"]:
            yield f"a rule must have a rule and a message of one line: {rule}"
        if "oldSelf" in rule["rule"] and "hasValue" in rule["rule"] and not rule.get("optionalOldSelf"):
            yield f"oldSelf.hasValue() needs optionalOldSelf: {rule['rule']}"
    if "default" in schema and "enum" in schema and schema["default"] not in schema["enum"]:
        yield "the default is none of the enum"


def _check_lists(schema: dict[str, Any]) -> Iterator[str]:
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", [])
    if kind is None and not keys:
        return
    if schema.get("type") != "array" or kind not in ("atomic", "set", "map") or (kind == "map") != bool(keys):
        yield "a list type is for arrays, and keys are for maps"
        return
    items = schema["items"]
    if kind == "set" and items.get("type") in ("array", "object") and items.get("x-kubernetes-map-type") != "atomic":
        yield "a set holds scalars"
    for key in keys:
        item = items.get("properties", {}).get(key)
        if item is None or item.get("type") in ("array", "object"):
            yield f"key {key} must be a scalar property of the items"
        elif key not in items.get("required", []) and "default" not in item:
            yield f"key {key} must be required or have a default"


def make_strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of what strict field validation lets through; rules in CEL are left out."""
    strict = copy.deepcopy(schema)
    for path, item in walk(strict):
        if "properties" in item:
            item["additionalProperties"] = False
        if path == "$.metadata" or item == {"type": "object"}:
            item["additionalProperties"] = True
        if item.pop("nullable", False):
            item["type"] = [item["type"], "null"]
    return strict


def fill_defaults(schema: dict[str, Any], value: Any) -> Any:
    """Return a document with the schema's defaults filled in, as the API server does."""
    if isinstance(value, dict):
        filled = dict(value)
        for name, item in schema.get("properties", {}).items():
            if "default" in item and filled.get(name) is None:
                filled[name] = copy.deepcopy(item["default"])
            if name in filled:
                filled[name] = fill_defaults(item, filled[name])
        if isinstance(inner := schema.get("additionalProperties"), dict):
            filled = {name: fill_defaults(inner, item) for name, item in filled.items()}
        return filled
    if isinstance(value, list):
        return [fill_defaults(schema.get("items", {}), item) for item in value]
    return value
