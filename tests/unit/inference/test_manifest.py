from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.inference import InferenceClient, KServeBackend, Service, build_inference_service

CRD = Path(__file__).parents[4] / "shared" / "crds" / "inferenceservices.serving.kserve.io.json"


def test_the_whole_manifest() -> None:
    resources = {"requests": {"cpu": 1, "memory": "2Gi"}}
    service = Service("digits", "s3://models/digits/v1", replicas=2, resources=resources, namespace="team")
    assert build_inference_service(service) == {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": "digits",
            "namespace": "team",
            "labels": {"app.kubernetes.io/managed-by": "kfp-mindspore"},
        },
        "spec": {
            "predictor": {
                "minReplicas": 2,
                "maxReplicas": 2,
                "model": {
                    "modelFormat": {"name": "mindspore"},
                    "protocolVersion": "v2",
                    "storageUri": "s3://models/digits/v1",
                    "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
                },
            }
        },
    }


def test_flags_of_the_server() -> None:
    service = Service("digits", "s3://models/digits/v1", server_args=("--max_batch=32", "--nonfinite=allow"))
    model = build_inference_service(service)["spec"]["predictor"]["model"]
    assert model["args"] == ["--max_batch=32", "--nonfinite=allow"]


@pytest.mark.parametrize(
    ("uri", "hint"), [("/tmp/model", "Copy the bundle"), ("minio://b/model", "does not know minio"), ("s3://", "Copy")]
)
def test_the_model_must_be_where_the_cluster_can_read_it(uri: str, hint: str) -> None:
    with pytest.raises(ValidationError, match="model_dir: must be a URI with one of s3://") as caught:
        build_inference_service(Service("digits", uri))
    assert hint in caught.value.hint


def test_a_wrong_service_has_no_manifest() -> None:
    with pytest.raises(ValidationError, match="replicas"):
        build_inference_service(Service("digits", "s3://b/m", replicas=0))


@pytest.mark.skipif(not CRD.is_file(), reason="KServe's custom resource definition is not beside this repository")
@pytest.mark.parametrize("resources", [{}, {"limits": {"cpu": "1", "huawei.com/Ascend910": 1}}])
def test_the_manifest_has_the_fields_of_kserves_definition(resources: dict[str, Any]) -> None:
    definition = json.loads(CRD.read_text())
    (version,) = [entry for entry in definition["spec"]["versions"] if entry["name"] == "v1beta1"]
    manifest = build_inference_service(Service("digits", "pvc://models/digits", replicas=3, resources=resources))
    assert find_misfits(manifest, version["schema"]["openAPIV3Schema"], "") == []
    assert manifest["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"


def find_misfits(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Return the fields of a value that a schema does not know, or knows with another type."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, int | str) else [path]
    types = {"object": dict, "string": str, "integer": int, "array": list, "boolean": bool}
    if not isinstance(value, types[schema["type"]]):
        return [f"{path}: {value!r} is no {schema['type']}"]
    if not isinstance(value, dict) or path == ".metadata":
        return []
    misfits = [f"{path}.{name}: missing" for name in schema.get("required", []) if name not in value]
    for name, entry in value.items():
        below = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        misfits += find_misfits(entry, below, f"{path}.{name}") if below else [f"{path}.{name}: unknown"]
    return misfits


def test_services_on_a_cluster_are_refused() -> None:
    client = InferenceClient(KServeBackend(context="here"))
    calls = (client.get, client.stop, client.delete, client.logs)
    for call in (
        lambda: client.deploy(Service("digits", "s3://b/m")),
        client.list,
        *(lambda c=c: c("x") for c in calls),
    ):
        with pytest.raises(UserError, match="services on a cluster are not in this version") as caught:
            call()
        for step in ("--backend local", "kubectl", "kfp-mindspore service runtime", "build_inference_service"):
            assert step in caught.value.hint
