"""Extraction of the pod template schema from a Kubernetes release: `make pod-schema` (requires Go).

The Go module `k8s.io/kubernetes` contains the OpenAPI document of the release's API server. Its checksum, verified by
Go, is written to the output. A release in Go's module cache is not downloaded again.
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
FILE = ROOT / "kfp_mindspore" / "kube" / "pod_schema.json"
OPENAPI = "api/openapi-spec/v3/api__v1_openapi.json"
ROOTS = ("PodTemplateSpec", "LabelSelector")
LONGEST_DESCRIPTION = 140
LEAVES = {"Quantity", "IntOrString", "ObjectMeta", "Time"}
KEPT = ("type", "format", "required", "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type")


def download_module(release: str = RELEASE, *, offline: bool = False) -> dict[str, str] | None:
    """Return the output of `go mod download -json` for a release, or None if it is not available."""
    environment = {**os.environ, "GOFLAGS": "-mod=mod", **({"GOPROXY": "off"} if offline else {})}
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{release}"]
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
    module: dict[str, str] = json.loads(done.stdout)
    return module


def render(module: dict[str, str]) -> str:
    """Return the content of `pod_schema.json`, one definition per line."""
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
    """Return the structural part of an OpenAPI schema; defaults only of fields in a list's key."""
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
    """Return the first sentence of a description, truncated at a word."""
    text = " ".join(text.split())
    first = re.split(r"(?<=[a-z0-9)\"'`])[.;:] (?=[A-Z\"(])", text, maxsplit=1)[0].rstrip(".:;")
    if len(first) > LONGEST_DESCRIPTION:
        first = first[: LONGEST_DESCRIPTION - 1].rsplit(" ", 1)[0].rstrip(",;:(") + "…"
    return first


def main() -> None:
    """Write the file."""
    module = download_module()
    if module is None:
        raise SystemExit(f"k8s.io/kubernetes {RELEASE} is not available (requires Go and its module proxy)")
    FILE.write_text(render(module), encoding="utf-8")
    print(FILE.relative_to(ROOT))


if __name__ == "__main__":
    main()
