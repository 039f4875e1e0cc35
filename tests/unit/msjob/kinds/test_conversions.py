"""Each field of the published definitions is converted, listed as a change, or refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.api.crd import build_job_schema
from kfp_mindspore.msjob.convert import convert_msjob
from kfp_mindspore.msjob.kinds import KINDS, export_job
from tests.support.controllers.definitions import read_definition

JOB = yaml.safe_load((Path(__file__).parents[3] / "golden" / "kinds" / "job.yaml").read_text())
# A scheduler of its own, and a restart policy that every kind has.
REPLICAS = JOB["spec"]["msReplicaSpecs"]
REPLICAS["Worker"]["restartPolicy"] = "OnFailure"
REPLICAS["Scheduler"] = {**copy.deepcopy(REPLICAS["Worker"]), "replicas": 1}
Key = tuple[str | int, ...]
Outcome = tuple[str, str | frozenset[str]]


def load_schema(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = read_definition(kind)["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def list_fields(
    schema: dict[str, Any], value: Any, key: Key, *, deep: bool = True
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield the fields of a schema: of pods and containers the first level only."""
    value = value if isinstance(value, (dict, list)) else {}
    for name, field in schema.get("properties", {}).items():
        here = (*key, name)
        if name == "containers":
            for index, container in enumerate(value.get(name, [])):
                yield from list_fields(field["items"], container, (*here, index), deep=False)
            continue
        # The fields of an object that is there are set one by one.
        if not (field.get("properties") and isinstance(value, dict) and value.get(name)):
            yield here, field
        if deep and name != "env":
            is_pod = "containers" in field.get("properties", {})
            yield from list_fields(field, value.get(name) if isinstance(value, dict) else None, here, deep=not is_pod)
    for name in value if deep and isinstance(schema.get("additionalProperties"), dict) else ():
        yield from list_fields(schema["additionalProperties"], value[name], (*key, name))
    for index, item in enumerate(value if deep and "items" in schema else ()):
        yield from list_fields(schema["items"], item, (*key, index))


def build_sample(schema: dict[str, Any], number: int) -> Any:
    """Return one of two values of a field."""
    if "enum" in schema:
        words = sorted(schema["enum"])
        return words[number % len(words)]
    kind = schema.get("type")
    if kind == "object" or (kind is None and "properties" in schema):
        if fields := schema.get("properties"):
            names = [*schema.get("required", ()), *fields][: max(1, len(schema.get("required", ())))]
            return {name: build_sample(fields[name], number) for name in names}
        inner = schema.get("additionalProperties")
        return {f"key-{number}": build_sample(inner if isinstance(inner, dict) else {"type": "string"}, number)}
    if kind == "array":
        return [build_sample(schema["items"], number)]
    if kind == "boolean":
        return number == 0
    return number + 5 if kind in ("integer", "number") or schema.get("x-kubernetes-int-or-string") else f"text-{number}"


def set_field(document: dict[str, Any], key: Key, value: Any) -> None:
    place: Any = document
    for word in key[:-1]:
        if isinstance(place, dict) and place.get(str(word)) is None:
            place[word] = {}
        place = place[word]
    place[key[-1]] = value


def run_export(documents: list[dict[str, Any]], kind: str) -> Outcome:
    try:
        export = export_job(MSJob.from_dict(documents[0]), kind)
    except ValidationError as error:
        return "refused", str(error)
    return json.dumps(export.manifests, sort_keys=True), frozenset(map(str, export.changes))


def run_read(documents: list[dict[str, Any]], _: str) -> Outcome:
    try:
        conversion = convert_msjob(documents[-1], documents[:-1])
    except ValidationError as error:
        return "refused", str(error)
    return json.dumps(conversion.job.to_dict(), sort_keys=True), frozenset(map(str, conversion.changes))


CASES = [
    *(pytest.param("MSJob", kind, id=f"to-{kind}") for kind in KINDS),
    *(pytest.param(kind, "MSJob", id=f"from-{kind}") for kind in ("MPIJob", "TrainJob", "AscendJob", "volcano")),
]


def get_first_new(document: dict[str, Any], key: Key) -> str:
    """Return the name of the first object or field of a path that a document lacks; else of the last."""
    place: Any = document
    for word in key:
        if isinstance(place, dict) and place.get(str(word)) is None:
            return str(word)
        place = place[word]
    return str(key[-1])


@pytest.mark.parametrize(("source", "target"), CASES)
def test_each_field_is_converted_listed_or_refused(source: str, target: str) -> None:
    documents = [JOB] if source == "MSJob" else MSJob.from_dict(JOB).to(source)
    run = run_export if source == "MSJob" else run_read
    base = run(documents, target)
    assert base[0] != "refused", base[1]
    dropped = [change.partition(": dropped: ")[0] for change in base[1] if ": dropped: " in change]
    dropped = [item.rpartition(": ")[2] for item in dropped]
    silent = []
    for index, document in enumerate(documents):
        schema = build_job_schema() if source == "MSJob" else load_schema(document["kind"])
        for key, field in list_fields(schema["properties"]["spec"], document["spec"], ("spec",)):
            path = "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in key).lstrip(".")
            if any(path == item or path.startswith((f"{item}.", f"{item}[")) for item in dropped):
                continue
            outcomes = []
            for number in (0, 1):
                changed = copy.deepcopy(documents)
                set_field(changed[index], key, build_sample(field, number))
                outcomes.append(run(changed, target))
            refused = [str(outcome[1]) for outcome in outcomes if outcome[0] == "refused"]
            if any(get_first_new(document, key) in message or "text-0" in message for message in refused):
                continue
            is_carried = outcomes[0][0] != outcomes[1][0]
            is_listed = any(set(changes) - set(base[1]) for _, changes in outcomes)
            if refused or not (is_carried or is_listed):
                silent.append((path, *refused))
    assert silent == [], "\n".join(" ".join(item) for item in silent)
