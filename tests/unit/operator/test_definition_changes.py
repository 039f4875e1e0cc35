"""`operator install` over another definition: what it prints, and the fields that it refuses to drop."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore import __version__
from kfp_mindspore.cli.main import run
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.api.names import VERSION_LABEL
from kfp_mindspore.operator.install.changes import list_missing
from tests.support.kube.fake_api_server import FakeApiServer

Document = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = "msjobs.mindspore.gitee.com"


def get_fields(definition: Document, *path: str) -> Document:
    """Return the properties of a field of MSJob."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path:
        schema = schema["properties"][name]
    fields: Document = schema["properties"]
    return fields


def make_newer() -> Document:
    """Return the definition of a version that has more fields."""
    definition = copy.deepcopy(build_crd())
    definition["metadata"]["labels"][VERSION_LABEL] = "9.0.0"
    get_fields(definition, "spec")["colour"] = {"type": "string", "default": "grey"}
    get_fields(definition, "status")["mood"] = {"type": "object", "properties": {"level": {"type": "integer"}}}
    return definition


def make_older() -> Document:
    definition = copy.deepcopy(build_crd())
    definition["metadata"].pop("labels")
    get_fields(definition, "spec").pop("topologyKey")
    get_fields(definition, "status").pop("progress")
    return definition


@pytest.fixture
def install(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """A function that installs the present definition, and returns exit code and output."""

    def install_definition(*flags: str) -> tuple[int, str]:
        code = run(["operator", "install", "--definition-only", "--kubeconfig", str(kubeconfig), *flags])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return install_definition


def put_job(server: FakeApiServer, name: str, fields: Document, status: Document | None = None) -> None:
    job = {"metadata": {"name": name, "namespace": "team-a"}, "spec": {"msReplicaSpecs": {}, **fields}}
    server.put("/apis/mindspore.gitee.com/v1/namespaces/team-a/msjobs", {**job, "status": status or {}})


def test_first_and_repeated_install_print_no_change(
    server: FakeApiServer, install: Callable[..., tuple[int, str]]
) -> None:
    applied = (0, f"customresourcedefinition/{NAME} applied\n")
    assert [install(), install()] == [applied, applied]
    stored = server.find(DEFINITIONS, NAME)
    assert stored is not None
    assert stored["metadata"]["labels"] == {VERSION_LABEL: __version__}


def test_upgrade_prints_versions_and_new_fields(server: FakeApiServer, install: Callable[..., tuple[int, str]]) -> None:
    server.put(DEFINITIONS, make_older())
    put_job(server, "old", {})
    code, output = install()
    assert code == 0
    assert output.splitlines() == [
        f"definition of MSJob: version unknown → {__version__}",
        "  added: spec.topologyKey, status.progress",
        f"customresourcedefinition/{NAME} applied",
    ]
    # No request lists jobs where no field is removed.
    assert server.count("GET", "msjobs?") == 0


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"colour": "red"}, {}, "spec.colour (team-a/job)"),
        ({}, {"mood": {"level": 1}}, "status.mood (team-a/job)"),
        ({"colour": "red"}, {"mood": {}}, "spec.colour (team-a/job); status.mood (team-a/job)"),
    ],
)
def test_downgrade_is_refused_where_jobs_would_lose_fields(
    server: FakeApiServer,
    install: Callable[..., tuple[int, str]],
    fields: Document,
    status: Document,
    named: str,
) -> None:
    stored = server.put(DEFINITIONS, make_newer())
    put_job(server, "job", fields, status)
    code, output = install()
    assert code == 2
    assert f"definition of MSJob {__version__}: lacks fields that jobs have by the installed one (9.0.0)" in output
    assert named in output
    assert server.find(DEFINITIONS, NAME) == stored
    assert server.count("PATCH") == 0


def test_refusal_names_three_jobs_of_many(server: FakeApiServer, install: Callable[..., tuple[int, str]]) -> None:
    server.put(DEFINITIONS, make_newer())
    for number in range(5):
        put_job(server, f"job-{number}", {"colour": "red"})
    assert "spec.colour (team-a/job-0, team-a/job-1, team-a/job-2 and 2 more)" in install()[1]


def test_downgrade_without_jobs_that_lose_anything_is_applied(
    server: FakeApiServer, install: Callable[..., tuple[int, str]]
) -> None:
    server.put(DEFINITIONS, make_newer())
    # A default returns with its field.
    put_job(server, "job", {"colour": "grey"})
    code, output = install()
    assert code == 0
    assert f"definition of MSJob: version 9.0.0 → {__version__}\n" in output
    assert "  removed, which no job has: spec.colour, status.mood\n" in output
    stored = server.find(DEFINITIONS, NAME)
    assert stored is not None
    assert "colour" not in get_fields(stored, "spec")


def test_json_has_versions_and_fields(server: FakeApiServer, install: Callable[..., tuple[int, str]]) -> None:
    server.put(DEFINITIONS, make_newer())
    code, output = install("--json")
    assert code == 0
    change = {"old": "9.0.0", "new": __version__, "added": [], "removed": ["spec.colour", "status.mood"]}
    assert json.loads(output) == {"applied": [f"customresourcedefinition/{NAME}"], "definition": change}


LEAF: Document = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "other", "missing"),
    [
        ({"properties": {"a": LEAF}}, {"properties": {"a": LEAF}}, []),
        ({"properties": {"a": {"properties": {"b": LEAF}}}}, {"properties": {}}, ["a"]),
        ({"properties": {"a": {"properties": {"b": LEAF}}}}, {"properties": {"a": {"properties": {}}}}, ["a.b"]),
        ({"items": {"properties": {"a": LEAF}}}, {"items": {}}, ["[].a"]),
        ({"additionalProperties": {"properties": {"a": LEAF}}}, {"additionalProperties": {}}, ["*.a"]),
        ({"properties": {"a": LEAF}}, {"x-kubernetes-preserve-unknown-fields": True}, []),
        # A map takes any name.
        ({"properties": {"a": {"properties": {"b": LEAF}}}}, {"additionalProperties": {"properties": {}}}, ["a.b"]),
        ({"properties": {"a": LEAF}}, {"additionalProperties": True}, []),
    ],
)
def test_outermost_missing_fields_are_listed(schema: Document, other: Document, missing: list[str]) -> None:
    assert [".".join(path) for path, _ in list_missing(schema, other)] == missing
