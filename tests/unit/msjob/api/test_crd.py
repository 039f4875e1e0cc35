"""The generated CustomResourceDefinition, without an API server."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.validation import list_errors
from tests.support.kube.msjob_cases import INVALID, UPDATES, VALID, VALID_HERE, Invalid, Update, build_job
from tests.support.kube.structural import fill_defaults, find_faults, make_strict, walk

# The most that the annotation of a client-side apply may hold, with all other annotations.
LARGEST_ANNOTATION = 262_144
MS_OPERATOR = Path(__file__).parents[5] / "shared" / "crds" / "msjobs.mindspore.gitee.com.json"


@pytest.fixture(scope="module")
def crd() -> dict[str, Any]:
    return build_crd()


@pytest.fixture(scope="module")
def version(crd: dict[str, Any]) -> Any:
    (version,) = crd["spec"]["versions"]
    return version


@pytest.fixture(scope="module")
def schema(version: dict[str, Any]) -> Any:
    return version["schema"]["openAPIV3Schema"]


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> Any:
    return jsonschema.Draft202012Validator(make_strict(schema))


def test_it_is_of_group_and_has_short_names(crd: dict[str, Any]) -> None:
    assert crd["metadata"]["name"] == "msjobs.mindspore.gitee.com"
    names = crd["spec"]["names"]
    assert (names["kind"], names["listKind"], names["plural"], names["singular"]) == (
        "MSJob", "MSJobList", "msjobs", "msjob",
    )  # fmt: skip
    assert names["shortNames"] == ["msj"]
    assert "all" in names["categories"]


def test_its_schema_is_structural(schema: dict[str, Any]) -> None:
    assert find_faults(schema) == []


def test_client_side_apply_can_hold_it(crd: dict[str, Any]) -> None:
    assert len(json.dumps(crd, separators=(",", ":"))) < LARGEST_ANNOTATION * 0.8


def test_every_field_of_ours_is_explained(schema: dict[str, Any]) -> None:
    silent = [
        path
        for path, item in walk(schema)
        if "description" not in item
        and not path.endswith(("[]", "*"))
        and ".template." not in path
        and "abelSelector" not in path
        and path != "$.metadata"
    ]
    assert silent == []


def test_scale_and_columns_name_fields_that_exist(version: dict[str, Any], schema: dict[str, Any]) -> None:
    scale = version["subresources"]["scale"]
    paths = [*scale.values(), *(column["jsonPath"] for column in version["additionalPrinterColumns"])]
    for path in paths:
        place = schema
        for word in path.lstrip(".").split("."):
            if path.startswith(".metadata"):
                continue
            place = place["properties"][word] if "properties" in place else place["additionalProperties"]
        assert path.startswith(".metadata") or place["type"] in ("integer", "string"), path
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        "State", "Workers", "Restarts", "Progress", "Age",
    ]  # fmt: skip


def test_metadata_of_templates_is_kept(schema: dict[str, Any]) -> None:
    specs = schema["properties"]["spec"]["properties"]["msReplicaSpecs"]
    metadata = specs["additionalProperties"]["properties"]["template"]["properties"]["metadata"]
    assert {"labels", "annotations"} <= set(metadata["properties"])


def test_rules_over_replicas_have_bound(schema: dict[str, Any]) -> None:
    assert schema["properties"]["spec"]["properties"]["msReplicaSpecs"]["maxProperties"] == 3


@pytest.mark.parametrize("document", [*VALID.values(), *VALID_HERE.values()], ids=[*VALID, *VALID_HERE])
def test_valid_jobs_are_accepted_by_schema_and_client(validator: Any, document: dict[str, Any]) -> None:
    assert [error.message for error in validator.iter_errors(document)] == []
    assert list_errors(document) == []


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case.name)
def test_invalid_jobs_are_refused(validator: Any, case: Invalid) -> None:
    document = case.build()
    errors = list_errors(document)
    assert len(errors) == 1, errors
    assert errors[0].startswith(case.client)
    refused = not validator.is_valid(document)
    assert refused is not case.by_rule, "by the schema, or by a rule alone"


def test_messages_of_rules_are_those_of_table(schema: dict[str, Any]) -> None:
    messages = [rule["message"] for _, item in walk(schema) for rule in item.get("x-kubernetes-validations", [])]
    for case in INVALID:
        assert not case.by_rule or any(case.server in message for message in messages), case.name
    assert len(INVALID) >= 30


def test_defaults_are_those_of_types(schema: dict[str, Any]) -> None:
    for document in VALID.values():
        filled = fill_defaults(schema, copy.deepcopy(document))
        given, stored = MSJob.from_dict(document), MSJob.from_dict(filled)
        assert stored.effective_run_policy.backoff_limit == given.effective_run_policy.backoff_limit
        assert stored.effective_run_policy.clean_pod_policy == given.effective_run_policy.clean_pod_policy
        assert bool(stored.effective_run_policy.suspend) is bool(given.effective_run_policy.suspend)
        assert (stored.success_policy or "") == (given.success_policy or "")
        assert stored.workers == given.workers
        for name, replica in stored.ms_replica_specs.items():
            assert replica.restart_policy == (given.ms_replica_specs[name].restart_policy or "Never")


def test_defaults_are_applied_to_absent_fields(schema: dict[str, Any]) -> None:
    filled = fill_defaults(schema, build_job())["spec"]
    assert filled["runPolicy"] == {"backoffLimit": 3, "cleanPodPolicy": "Running", "suspend": False}
    assert filled["msReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"
    assert filled["successPolicy"] == ""


def test_status_as_it_is_written_is_kept(validator: Any) -> None:
    status = {
        "state": "Running",
        "workers": "1/2",
        "restarts": 1,
        "startTime": "2026-01-31T12:00:00Z",
        "conditions": [{"type": "Running", "status": "True", "reason": "JobRunning", "message": "It runs."}],
        "replicaStatuses": {
            "Worker": {
                "active": 1,
                "selector": "training.kubeflow.org/job-name=digits",
                "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": "digits"}},
            }
        },
    }
    assert [error.message for error in validator.iter_errors({**build_job(), "status": status})] == []


def test_faults_of_schemas_are_found() -> None:
    broken = {
        "type": "object",
        "properties": {
            "metadata": {"type": "object", "required": ["name"]},
            "untyped": {"description": "x"},
            "reference": {"$ref": "x"},
            "both": {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
            "list": {"type": "array"},
            "map": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "rule": {"type": "string", "x-kubernetes-validations": [{"rule": "true"}]},
        },
        "required": ["absent"],
    }
    faults = find_faults(broken)
    for path in ("$:", "$.metadata", "$.untyped", "$.reference", "$.both", "$.list", "$.map", "$.rule"):
        assert any(fault.startswith(path) for fault in faults), (path, faults)


@pytest.fixture(scope="module")
def published() -> Any:
    """Return the schema of ms-operator's own definition, where it lies beside the repository."""
    if not MS_OPERATOR.is_file():
        pytest.skip("ms-operator's definition is not here")
    (version,) = json.loads(MS_OPERATOR.read_text())["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("document", VALID.values(), ids=VALID)
def test_valid_jobs_are_accepted_by_published_definition_too(
    published: dict[str, Any], document: dict[str, Any]
) -> None:
    errors = jsonschema.Draft202012Validator(make_strict(published)).iter_errors(document)
    assert [error.message for error in errors] == []


def test_ours_names_every_field_that_published_one_names(published: dict[str, Any], schema: dict[str, Any]) -> None:
    ours = {path: item.get("type") for path, item in walk(schema)}
    missing = [path for path, item in walk(published) if ours.get(path, "?") != item.get("type")]
    # Removed before Kubernetes 1.21.
    assert {path.split(".template.spec.")[1] for path in missing} == {"volumes[].ephemeral.readOnly"}


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.name)
def test_jobs_are_valid_before_and_after_update(schema: dict[str, Any], validator: Any, case: Update) -> None:
    for document in case.build():
        assert list_errors(document) == []
        assert validator.is_valid(document)
    messages = [rule["message"] for _, item in walk(schema) for rule in item.get("x-kubernetes-validations", [])]
    assert any(case.server in message for message in messages)
