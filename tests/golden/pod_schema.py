"""Takes the definitions of a pod template from a Kubernetes release: `make pod-schema` (needs Go).

The Go module `k8s.io/kubernetes` carries the OpenAPI that the release's API server publishes. Its checksum, which Go
verifies, is written beside the definitions. Nothing but Go's module cache is touched when the release is there already.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.goldens import ROOT

RELEASE = "v1.34.4"
FILE = ROOT / "kfp_mindspore" / "msjob" / "pod_schema.json"
OPENAPI = "api/openapi-spec/v3/api__v1_openapi.json"
ROOTS = ("PodTemplateSpec", "LabelSelector")
LONGEST_DESCRIPTION = 140
LEAVES = {"Quantity", "IntOrString", "ObjectMeta", "Time"}
KEPT = ("type", "format", "required", "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type")


def find_module(*, offline: bool = False) -> dict[str, str] | None:
    """Return what `go mod download -json` says of the release, or None when it cannot be had."""
    environment = {**os.environ, "GOFLAGS": "-mod=mod", **({"GOPROXY": "off"} if offline else {})}
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{RELEASE}"]
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
    found: dict[str, str] = json.loads(done.stdout)
    return found


def render(module: dict[str, str]) -> str:
    """Return the text of `pod_schema.json`, one definition a line."""
    document = json.loads(Path(module["Dir"], OPENAPI).read_text())
    schemas = {name.rsplit(".", 1)[1]: item for name, item in document["components"]["schemas"].items()}
    definitions: dict[str, Any] = {}
    pending = list(ROOTS)
    while pending:
        name = pending.pop()
        if name not in definitions and name not in LEAVES:
            definitions[name] = reduce_schema(schemas[name])
            pending += re.findall(r'"\$ref": "(\w+)"', json.dumps(definitions[name]))
    lines = [f"{json.dumps(name)}: {json.dumps(definitions[name], sort_keys=True)}" for name in sorted(definitions)]
    head = {"module": "k8s.io/kubernetes", "release": RELEASE, "sum": module["Sum"]}
    opening = "\n".join(f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items())
    return "{\n" + opening + '\n"definitions": {\n' + ",\n".join(lines) + "\n}\n}\n"


def reduce_schema(schema: dict[str, Any], keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a structural schema keeps of one of OpenAPI; a default only where it is part of a list's key."""
    reduced = {word: schema[word] for word in KEPT if word in schema}
    if text := shorten(schema.get("description", "")):
        reduced["description"] = text
    reference = schema.get("$ref") or next((item["$ref"] for item in schema.get("allOf", [])), None)
    if reference:
        reduced["$ref"] = reference.rsplit(".", 1)[1]
    if "properties" in schema:
        reduced["properties"] = {name: reduce_schema(item) for name, item in schema["properties"].items()}
        if (protocol := schema["properties"].get("protocol")) and protocol.get("default"):
            reduced["properties"]["protocol"]["default"] = protocol["default"]
    for word in ("items", "additionalProperties"):
        if word in schema:
            item = reduce_schema(schema[word])
            item.pop("description", None)
            reduced[word] = item
    return reduced


def shorten(text: str) -> str:
    """Return the first sentence of a description, cut at a word when it is long."""
    text = " ".join(text.split())
    first = re.split(r"(?<=[a-z0-9)\"'`])[.;:] (?=[A-Z\"(])", text, maxsplit=1)[0].rstrip(".:;")
    if len(first) > LONGEST_DESCRIPTION:
        first = first[: LONGEST_DESCRIPTION - 1].rsplit(" ", 1)[0].rstrip(",;:(") + "…"
    return first


def main() -> None:
    """Write the file."""
    module = find_module()
    if module is None:
        raise SystemExit(f"k8s.io/kubernetes {RELEASE} cannot be had: is Go installed, and its module proxy reachable?")
    FILE.write_text(render(module), encoding="utf-8")
    print(FILE.relative_to(ROOT))


if __name__ == "__main__":
    main()
