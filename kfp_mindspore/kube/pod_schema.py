"""PodTemplateSpec's structural schema, from one named Kubernetes release's OpenAPI.

`pod_schema.json` holds the definitions reachable from a pod template, with short descriptions; `make pod-schema`
extracts them from the Go module `k8s.io/kubernetes`.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

POD_TEMPLATE = "PodTemplateSpec"
_FILE = Path(__file__).with_name("pod_schema.json")

QUANTITY: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",  # noqa: E501
    "x-kubernetes-int-or-string": True,
}
_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
# The API server prunes fields that a CustomResourceDefinition does not name, so a template's metadata is named field by
# field; Go programs write `creationTimestamp: null`.
_METADATA: Schema = {
    "type": "object",
    "properties": {
        "annotations": _TEXTS,
        "creationTimestamp": {"type": "string", "format": "date-time", "nullable": True},
        "finalizers": {"type": "array", "items": _TEXT},
        "generateName": _TEXT,
        "labels": _TEXTS,
        "name": _TEXT,
        "namespace": _TEXT,
    },
}
_LEAVES: dict[str, Schema] = {
    "Quantity": QUANTITY,
    "IntOrString": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
    "ObjectMeta": _METADATA,
    "Time": {"type": "string", "format": "date-time"},
}
# Pods accept duplicate keys in these (the last one counts), and existing jobs have them: as maps they are refused.
_REPEATABLE = frozenset({"env", "hostAliases", "imagePullSecrets"})


@functools.cache
def load_release() -> dict[str, Any]:
    """Return `pod_schema.json`'s content: `release` (such as `v1.34.4`), `sum` and `definitions`."""
    release: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return release


@functools.cache
def list_fields(definition: str) -> frozenset[str]:
    """Return a definition's field names, such as `Container`'s."""
    return frozenset(load_release()["definitions"][definition]["properties"])


def build_pod_schema(definition: str) -> Schema:
    """Return a definition's structural schema, such as `PodTemplateSpec`, every reference written out."""
    if definition in _LEAVES:
        return dict(_LEAVES[definition])
    return _expand(load_release()["definitions"][definition])


def _expand(schema: Schema, *, key: str = "") -> Schema:
    if "$ref" in schema:
        expanded = build_pod_schema(schema["$ref"])
        return {**expanded, "description": schema["description"]} if "description" in schema else expanded
    expanded = dict(schema)
    if "properties" in schema:
        expanded["properties"] = {name: _expand(item, key=name) for name, item in schema["properties"].items()}
    for word in ("items", "additionalProperties"):
        if word in schema:
            expanded[word] = _expand(schema[word])
    if key in _REPEATABLE and expanded.pop("x-kubernetes-list-map-keys", None):
        expanded["x-kubernetes-list-type"] = "atomic"
    return expanded
