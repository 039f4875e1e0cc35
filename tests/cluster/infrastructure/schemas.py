"""JSON schemas of Kubernetes' objects, as kubeconform reads them, from the API documents of released Go modules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cluster.infrastructure.paths import make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError, check_go
from tests.golden.pod_schema import download_module

Document = dict[str, Any]
RELEASES = ("v1.31.14", "v1.32.10", "v1.33.6", "v1.34.4", "v1.35.0")
_OPENAPI = "api/openapi-spec/swagger.json"
_SHARED = "_definitions.json"
_METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
# The API documents have one type only.
_MIXED = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ["integer", "string"],
    "io.k8s.apimachinery.pkg.api.resource.Quantity": ["number", "string"],
}


def download_releases() -> None:
    """Download the releases' modules into Go's cache: 100 MB each.

    Raises:
        UnavailableError: Go or its module proxy is missing.
    """
    check_go()
    for release in RELEASES:
        _get_sources(release, offline=False)


def write_schemas(folder: Path, release: str, definitions: Iterable[Document]) -> None:
    """Write a file for each kind of a release and of CustomResourceDefinitions; no schema admits unknown fields.

    Args:
        folder: kubeconform's `-schema-location`.
        release: One of `RELEASES`.
        definitions: CustomResourceDefinitions.

    Raises:
        UnavailableError: The release is not in Go's module cache.
    """
    target = make_directory(folder / f"{release}-standalone-strict")
    document = json.loads((_get_sources(release, offline=True) / _OPENAPI).read_text())
    shared = {name: _close(schema) for name, schema in document["definitions"].items()}
    for name, types in _MIXED.items():
        shared[name] = {"type": types}
    (target / _SHARED).write_text(json.dumps({"definitions": shared}))
    for name, schema in shared.items():
        # Several are options of all kinds.
        if len(kinds := schema.get("x-kubernetes-group-version-kind", ())) == 1:
            _write(target, **kinds[0], schema=_refer(name))
    for definition in definitions:
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = _close(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = _refer(_METADATA)
            _write(target, spec["group"], version["name"], spec["names"]["kind"], schema)


def _get_sources(release: str, *, offline: bool) -> Path:
    module = download_module(release, offline=offline)
    if module is None:
        raise UnavailableError(f"k8s.io/kubernetes {release} is not there; run `python -m tests.cluster build --helm`")
    return Path(module["Dir"])


def _write(target: Path, group: str, version: str, kind: str, schema: Document) -> None:
    words = [kind, group.partition(".")[0], version] if group else [kind, version]
    (target / f"{'-'.join(words).lower()}.json").write_text(json.dumps(schema))


def _refer(name: str) -> Document:
    return {"$ref": f"{_SHARED}#/definitions/{name}"}


def _close(schema: Document) -> Document:
    """Return a schema without unknown fields, except where they are kept."""
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {name: _close(item) for name, item in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    for word in ("items", "additionalProperties"):
        if isinstance(closed.get(word), dict):
            closed[word] = _close(closed[word])
    return closed
