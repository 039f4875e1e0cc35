"""The Helm chart's objects by kubeconform, against the schemas of each supported Kubernetes release."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.runs.cluster.access import CAPABILITIES
from release.chart import SECTIONS, Section, to_value_name
from tests.cluster.conftest import skip_without_helm, start
from tests.cluster.infrastructure.binaries import CUSTOM_RESOURCES, KUBECONFORM, get_binaries
from tests.cluster.infrastructure.schemas import RELEASES, write_schemas
from tests.support.kube.helm import CHART, Document, Helm

Judge = Callable[[str], dict[str, str]]
IMAGE = "registry.example.com/team/image@sha256:1"


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without_helm()
    folder = tmp_path_factory.mktemp("schemas")
    files = start(lambda: get_binaries(CUSTOM_RESOURCES))
    definitions = [yaml.load((files / name).read_text(), yaml.CSafeLoader) for name in CUSTOM_RESOURCES.names]
    for release in RELEASES:
        start(lambda release=release: write_schemas(folder, release, [build_crd(), *definitions]))
    return folder


@pytest.fixture(params=RELEASES)
def judge(schemas: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Judge:
    """Return a function that returns kubeconform's message by object; empty for a valid one."""
    program = start(lambda: get_binaries(KUBECONFORM)) / "kubeconform"
    words = ["-strict", "-verbose", "-output", "json", "-kubernetes-version", request.param.removeprefix("v")]

    def call(text: str) -> dict[str, str]:
        # A file: from its input version 0.6.7 reads the next object into the same buffer while it validates one.
        file = tmp_path / "objects.yaml"
        file.write_text(text)
        command = [str(program), *words, "-schema-location", str(schemas), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        # A document without an object has no status.
        found = [item for item in json.loads(done.stdout)["resources"] if item["status"]]
        messages = {
            f"{index} {item['kind']} {item['name']}": ""
            if item["status"] == "statusValid"
            else item["msg"] or "skipped"
            for index, item in enumerate(found)
        }
        assert bool(done.returncode) == any(messages.values())
        return messages

    return call


def choose_values(section: Section, *, has_more: bool) -> Document:
    """Return values that install each object: for the cluster, or for namespaces with the last of each choice."""
    values: Document = {"image": IMAGE}
    for entry in section.options:
        name = to_value_name(entry.name)
        if entry.kind is bool:
            values[name] = True
        elif "enum" in entry.limits:
            values[name] = entry.limits["enum"][-1 if has_more else -2]
        elif name == "capabilities":
            values[name] = list(CAPABILITIES)
        elif entry.kind is list and has_more:
            values[name] = ["team-a", "team-b"]
        elif entry.is_required or (entry.kind is str and has_more):
            values.setdefault(name, "team-a")
    allowed = {to_value_name(entry.name) for entry in section.options}
    return {name: value for name, value in values.items() if name in allowed}


@pytest.mark.parametrize("has_more", [False, True], ids=["cluster", "namespaces"])
def test_every_object_is_valid(has_more: bool, helm: Helm, judge: Judge) -> None:
    sections = {section.name: choose_values(section, has_more=has_more) for section in SECTIONS}
    text = helm.run("template", "kfp", str(CHART), **sections)
    messages = judge(text)
    assert len(messages) == sum(bool(item) for item in yaml.load_all(text, yaml.CSafeLoader))
    assert {name: message for name, message in messages.items() if message} == {}


def add_unknown_fields(document: Document) -> Iterator[Document]:
    """Yield an object with an unknown field at its top, and in each mapping below it."""
    yield {**document, "unknownField": 1}
    for key, value in document.items():
        if isinstance(value, dict):
            yield {**document, key: {**value, "unknownField": 1}}
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield {**document, key: [{**value[0], "unknownField": 1}, *value[1:]]}


def test_unknown_field_of_any_object_is_found(helm: Helm, judge: Judge) -> None:
    documents = helm.render(**{section.name: choose_values(section, has_more=False) for section in SECTIONS})
    changed = [item for document in documents for item in add_unknown_fields(document)]
    messages = judge("\n---\n".join(map(json.dumps, changed)))
    assert len(messages) == len(changed) > 2 * len(documents)
    assert {name: message for name, message in messages.items() if "unknownField" not in message} == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  replicas: 2\n", "  replicas: two\n", "expected integer, but got string"),
        ("  replicas: 2\n", "  replicas: 2\n  replicas: 2\n", 'key "replicas" already set'),
        ("apiVersion: apps/v1\n", "apiVersion: apps/v1beta1\n", "could not find schema for Deployment"),
        ("    runAsNonRoot: true\n", "    runAsNonroot: true\n", "'runAsNonroot' not allowed"),
    ],
)
def test_wrong_value_is_found(old: str, new: str, message: str, helm: Helm, judge: Judge) -> None:
    text = helm.run("template", "kfp", str(CHART), operator={"image": IMAGE})
    (found,) = filter(None, judge(text.replace(old, new, 1)).values())
    assert message in found
