"""What an image is made of: a CycloneDX bill of materials, and SLSA provenance as an in-toto statement."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution
from typing import Any
from urllib.parse import quote

SOURCE = "https://github.com/kfp-mindspore/kfp-mindspore"
BILL_TYPE = "application/vnd.cyclonedx+json"
BILL_PREDICATE = "https://cyclonedx.org/bom"
PROVENANCE_PREDICATE = "https://slsa.dev/provenance/v1"


def make_bill(
    name: str, digest: str, created: str, python: Sequence[Distribution], debian: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return an image's CycloneDX bill of materials.

    Args:
        name: The image's name.
        digest: Its digest.
        created: Its time, RFC 3339.
        python: Its Python packages.
        debian: Packages of its base, from `list_debian_packages`.
    """
    components = [_describe_python(each) for each in python]
    for each in debian:
        query = f"arch={each['architecture']}&distro={each['distribution']}"
        address = f"pkg:deb/{each['vendor']}/{quote(each['name'])}@{quote(each['version'])}?{query}"
        components.append(_describe(each["name"], each["version"], address))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {"type": "container", "bom-ref": digest, "name": name, "version": digest},
        },
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
    }


def make_statement(name: str, digest: str, kind: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """Return an in-toto statement about an image."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": _split(digest)}],
        "predicateType": kind,
        "predicate": predicate,
    }


def make_provenance(
    parameters: Mapping[str, Any], commit: str, base: Mapping[str, str], files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the predicate of SLSA's provenance, version 1.

    Args:
        parameters: What the release was called with.
        commit: The commit that it is of.
        base: Name and digest of the base image.
        files: Digests of the files that it is made from, by name.
    """
    materials = [
        {"uri": f"git+{SOURCE}", "digest": {"gitCommit": commit}},
        {"uri": f"oci://{base['name']}", "digest": _split(base["digest"])},
        *({"name": name, "digest": _split(digest)} for name, digest in files.items()),
    ]
    return {
        "buildDefinition": {
            "buildType": f"{SOURCE}/blob/main/RELEASING.md",
            "externalParameters": parameters,
            "resolvedDependencies": materials,
        },
        # Neither time nor machine: the same commit gives the same bytes.
        "runDetails": {
            "builder": {"id": f"{SOURCE}/tree/{commit}/release"},
            "metadata": {"invocationId": f"make release VERSION={parameters['version']}"},
        },
    }


def _describe_python(package: Distribution) -> dict[str, Any]:
    fields = package.metadata
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    described = _describe(fields["Name"], package.version, f"pkg:pypi/{name}@{package.version}")
    expressions, texts = (fields.get_all(header) or [""] for header in ("License-Expression", "License"))
    if expressions[0]:
        described["licenses"] = [{"expression": expressions[0]}]
    elif texts[0] and len(texts[0]) < 80 and "\n" not in texts[0]:
        described["licenses"] = [{"license": {"name": texts[0]}}]
    return described


def _describe(name: str, version: str, address: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}


def _split(digest: str) -> dict[str, str]:
    algorithm, _, value = digest.partition(":")
    return {algorithm: value}
