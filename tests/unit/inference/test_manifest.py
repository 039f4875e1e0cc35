from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference import Service, build_inference_service
from kfp_mindspore.inference.manifest import (
    SERVICE_ANNOTATION,
    build_canary,
    build_canary_graph,
    is_same_version,
    record_service,
    restore_service,
)
from kfp_mindspore.inference.scaling import keep_scaling
from kfp_mindspore.settings import POD_DEVICE_VARIABLE

CRDS = Path(__file__).parents[4] / "shared" / "crds"


def test_whole_manifest() -> None:
    resources = {"requests": {"cpu": 1, "memory": "2Gi"}}
    service = Service("digits", "s3://models/digits/v1", replicas=2, resources=resources, namespace="team")
    assert build_inference_service(service) == {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": "digits",
            "namespace": "team",
            "labels": {"app.kubernetes.io/managed-by": "kfp-mindspore"},
            "annotations": {SERVICE_ANNOTATION: record_service(service)},
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


SCALED = {"min_replicas": 1, "max_replicas": 4, "prometheus": "http://prometheus:9090"}
STANDARD = {"serving.kserve.io/deploymentMode": "Standard", "serving.kserve.io/autoscalerClass": "hpa"}
PLACED = {
    "env": {"OMP_NUM_THREADS": "2"},
    "env_from": ("secret/tokens", "configmap/settings"),
    "node_selector": {"accelerator": "npu"},
    "tolerations": ({"key": "npu", "operator": "Exists"},),
    "volumes": {"/mnt/adapters": {"persistentVolumeClaim": {"claimName": "adapters"}}},
    "image_pull_secrets": ("registry",),
    "annotations": {"team": "vision"},
    "priority_class": "serving",
    "spread": "topology.kubernetes.io/zone",
    "runtime": "kfp-mindspore-server-npu",
}


@pytest.mark.parametrize(
    ("options", "fields", "annotations"),
    [
        ({}, {"scaleMetric": "cpu", "scaleTarget": 80}, STANDARD),
        ({"scale_metric": "memory", "scale_target": 70}, {"scaleMetric": "memory", "scaleTarget": 70}, STANDARD),
        (
            {"min_replicas": 0, "scale_metric": "in_flight", "scale_target": 8},
            {"scaleMetric": "concurrency", "scaleTarget": 8},
            {"serving.kserve.io/deploymentMode": "Knative"},
        ),
    ],
    ids=["cpu", "memory", "zero"],
)
def test_bounds_and_metric(options: dict[str, Any], fields: dict[str, Any], annotations: dict[str, str]) -> None:
    service = Service("digits", "s3://b/m", **{**SCALED, **options})
    document = build_inference_service(service)
    predictor = document["spec"]["predictor"]
    assert {name: predictor[name] for name in fields} == fields
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (service.min_replicas, 4)
    assert document["metadata"]["annotations"] == {**annotations, SERVICE_ANNOTATION: record_service(service)}
    # KServe refuses a strategy in Knative mode.
    strategy = predictor.get("deploymentStrategy", {}).get("rollingUpdate", {})
    assert strategy.get("maxUnavailable") == (0 if service.min_replicas else None)


@pytest.mark.parametrize(
    ("options", "gauge", "target"),
    [
        ({"scale_metric": "in_flight"}, "mindsporeserver_in_flight", "32"),
        ({"scale_metric": "waiting", "model_format": "mindspore-lm"}, "vllm:num_requests_waiting", "4"),
    ],
)
def test_own_metrics_are_queried_for_each_services_pods(options: dict[str, Any], gauge: str, target: str) -> None:
    service = Service("digits", "s3://b/m", namespace="team", **SCALED, **options)
    for name, document in (
        ("digits", build_inference_service(service)),
        ("digits-canary", build_canary(service, 9, 2)),
    ):
        (metric,) = document["spec"]["predictor"]["autoScaling"]["metrics"]
        query = f'sum({gauge}{{namespace="team",inferenceservice="{name}"}})'
        server = {"backend": "prometheus", "serverAddress": "http://prometheus:9090", "query": query}
        assert metric == {
            "type": "External",
            "external": {"metric": server, "target": {"type": "Value", "value": target}},
        }
        assert document["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "keda"


@pytest.mark.parametrize(
    ("resource", "device"), [("huawei.com/Ascend910", "Ascend"), ("nvidia.com/gpu", "GPU"), ("memory", "")]
)
def test_requested_device_is_that_of_the_server(resource: str, device: str) -> None:
    document = build_inference_service(Service("digits", "s3://b/m", resources={"limits": {resource: 1}}))
    model = document["spec"]["predictor"]["model"]
    expected = [{"name": POD_DEVICE_VARIABLE, "value": device}] if device else []
    assert model.get("env", []) == expected


def test_queried_metrics_are_the_servers() -> None:
    from prometheus_client import CollectorRegistry

    from mindsporeserver.language.metrics import LanguageFamilies
    from mindsporeserver.observability.metrics import ServerMetrics

    registry = CollectorRegistry()
    ServerMetrics(registry), LanguageFamilies(registry)
    assert {"mindsporeserver_in_flight", "vllm:num_requests_waiting"} <= {family.name for family in registry.collect()}


def test_placement_of_pods() -> None:
    service = Service("digits", "s3://b/m", download="server", storage_secret="store", **PLACED)
    document = build_inference_service(service)
    predictor = document["spec"]["predictor"]
    model = predictor["model"]
    assert model["env"] == [{"name": "OMP_NUM_THREADS", "value": "2"}]
    assert model["envFrom"] == [
        {"secretRef": {"name": "store"}},
        {"secretRef": {"name": "tokens"}},
        {"configMapRef": {"name": "settings"}},
    ]
    assert model["volumeMounts"] == [{"name": "volume-0", "mountPath": "/mnt/adapters"}]
    assert predictor["volumes"] == [{"name": "volume-0", "persistentVolumeClaim": {"claimName": "adapters"}}]
    assert predictor["nodeSelector"] == {"accelerator": "npu"}
    assert predictor["tolerations"] == [{"key": "npu", "operator": "Exists"}]
    assert predictor["imagePullSecrets"] == [{"name": "registry"}]
    assert predictor["priorityClassName"] == "serving"
    assert model["runtime"] == "kfp-mindspore-server-npu"
    (spread,) = predictor["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["labelSelector"]["matchLabels"]["serving.kserve.io/inferenceservice"] == "digits"
    assert document["metadata"]["annotations"]["team"] == "vision"


def test_another_servers_runtime() -> None:
    service = Service("chat", "s3://b/gguf/", runtime="llama-cpp", model_format="gguf", server_args=["--ctx-size=512"])
    model = build_inference_service(service)["spec"]["predictor"]["model"]
    assert model == {
        "modelFormat": {"name": "gguf"},
        "runtime": "llama-cpp",
        "args": ["--ctx-size=512"],
        "storageUri": "s3://b/gguf/",
    }
    with pytest.raises(ValidationError, match="canary: needs model_name_flag, with which the server of 'gguf' names"):
        build_canary(service, 10, 2)
    named = dataclasses.replace(service, model_name_flag="--alias", openai_path="/v1")
    for document in (build_inference_service(named), build_canary(named, 10, 2)):
        assert document["spec"]["predictor"]["model"]["args"] == ["--ctx-size=512", "--alias", "chat"]
    nodes = build_canary_graph(named, 10, ("http://a", "http://b"))["spec"]["nodes"]
    assert [nodes[step["nodeName"]]["steps"][1]["serviceUrl"] for step in nodes["root"]["steps"]] == [
        "http://b/v1/chat/completions",
        "http://b/v1/completions",
        "http://b/v1/embeddings",
    ]


@pytest.mark.parametrize(
    ("service", "current", "expected"),
    [
        ({}, {"max_replicas": 4, "min_replicas": 2}, {"max_replicas": 4, "min_replicas": 2}),
        ({"replicas": 3}, {"max_replicas": 4}, {"max_replicas": 4, "replicas": 1}),
        ({"max_replicas": 2}, {"max_replicas": 4, "scale_target": 50}, {"max_replicas": 4, "scale_target": 50}),
        ({}, {"replicas": 3}, {"replicas": 3}),
        ({"replicas": 3}, {"replicas": 2}, {"replicas": 3}),
        ({"max_replicas": 4}, {"replicas": 3}, {"max_replicas": 4, "replicas": 1}),
    ],
)
def test_version_before_keeps_present_bounds(
    service: dict[str, int], current: dict[str, int], expected: dict[str, int]
) -> None:
    kept = keep_scaling(Service("digits", "s3://b/1", **service), Service("digits", "s3://b/2", **current))
    assert {name: getattr(kept, name) for name in expected} == expected
    assert kept.model_dir == "s3://b/1"
    kept.validate()


def test_named_ports_for_grpc() -> None:
    model = build_inference_service(Service("digits", "s3://b/m", grpc=True))["spec"]["predictor"]["model"]
    assert [(port["name"], port["containerPort"]) for port in model["ports"]] == [("http1", 8080), ("h2c", 8081)]


def test_service_account() -> None:
    predictor = build_inference_service(Service("digits", "s3://b/m", service_account="models"))["spec"]["predictor"]
    assert predictor["serviceAccountName"] == "models"


@pytest.mark.parametrize("build", [build_inference_service, lambda service: build_canary(service, 10, 2)])
def test_labels_and_annotations_of_pods_are_the_predictors(build: Any) -> None:
    labels = {"sidecar.istio.io/inject": "false", "fault-scheduling": "force"}
    annotations = {"huawei.com/vnpu-mode": "hami-core"}
    predictor = build(Service("d", "s3://b/m", pod_labels=labels, pod_annotations=annotations))["spec"]["predictor"]
    assert (predictor["labels"], predictor["annotations"]) == (labels, annotations)


def test_download_by_server_has_no_storage_initializer() -> None:
    service = Service("digits", "s3://b/m/", download="server", storage_secret="store", server_args=("--max_batch=1",))
    model = build_inference_service(service)["spec"]["predictor"]["model"]
    assert "storageUri" not in model
    # Without this field KServe adds the agent of multi-model servers.
    assert model["storage"] == {}
    assert model["args"] == ["--model_dir=s3://b/m/", "--max_batch=1"]
    assert model["envFrom"] == [{"secretRef": {"name": "store"}}]


@pytest.mark.parametrize("options", [{"service_account": "models"}, {"download": "server", "storage_secret": "store"}])
def test_minio_uri_becomes_s3_with_credentials(options: dict[str, Any]) -> None:
    model = build_inference_service(Service("digits", "minio://mlpipeline/m/", **options))["spec"]["predictor"]["model"]
    assert "s3://mlpipeline/m/" in (model.get("storageUri"), model.get("args", [""])[0].partition("=")[2])


def test_recorded_service_is_restored() -> None:
    resources = {"limits": {"cpu": "1"}}
    service = Service("digits", "s3://b/m", 2, resources, "team", server_args=["--max_batch=1"], grpc=True, digest="d")
    text = record_service(service)
    assert restore_service(text, "digits", "team") == service
    assert is_same_version(text, dataclasses.replace(service, run="another"))
    assert not is_same_version(text, dataclasses.replace(service, digest="e"))
    # Written by a later release with another field, and by an earlier one without `pod_annotations`.
    later = json.dumps({**json.loads(text), "unknown": 1})
    earlier = json.dumps({key: value for key, value in json.loads(text).items() if key != "pod_annotations"})
    assert all(is_same_version(other, service) for other in (later, earlier))


def test_canary_serves_under_name_of_service() -> None:
    document = build_canary(Service("digits", "s3://b/m", namespace="team"), 10, 3)
    assert document["metadata"]["name"] == "digits-canary"
    assert document["metadata"]["labels"]["kfp-mindspore/canary-of"] == "digits"
    assert document["spec"]["predictor"]["model"]["args"] == ["--model_name=digits"]
    with pytest.raises(ValidationError, match="must be at most 46 characters with a canary"):
        build_canary(Service("d" * 47, "s3://b/m"), 10, 3)


def test_graph_splits_both_protocols() -> None:
    graph = build_canary_graph(Service("digits", "s3://b/m"), 10, ("http://stable", "http://canary"))
    nodes = graph["spec"]["nodes"]
    assert [(step["condition"], step["nodeName"]) for step in nodes["root"]["steps"]] == [
        ("instances", "v1"),
        ("inputs", "v2"),
    ]
    for node, path in (("v1", "/v1/models/digits:predict"), ("v2", "/v2/models/digits/infer")):
        assert [(step["serviceUrl"], step["weight"]) for step in nodes[node]["steps"]] == [
            (f"http://stable{path}", 90),
            (f"http://canary{path}", 10),
        ]


def test_router_tolerates_what_the_pods_do() -> None:
    tolerations = ({"key": "npu", "operator": "Exists"},)
    graph = build_canary_graph(Service("digits", "s3://b/m", tolerations=tolerations), 10, ("http://a", "http://b"))
    assert graph["spec"]["tolerations"] == list(tolerations)


def test_flags_of_server() -> None:
    service = Service("digits", "s3://models/digits/v1", server_args=("--max_batch=32", "--nonfinite=allow"))
    model = build_inference_service(service)["spec"]["predictor"]["model"]
    assert model["args"] == ["--max_batch=32", "--nonfinite=allow"]


@pytest.mark.parametrize(
    ("uri", "hint"), [("/tmp/model", "Copy the bundle"), ("minio://b/model", "does not know minio"), ("s3://", "Copy")]
)
def test_model_must_be_where_cluster_can_read_it(uri: str, hint: str) -> None:
    with pytest.raises(ValidationError, match="model_dir: must be a URI with one of s3://") as caught:
        build_inference_service(Service("digits", uri))
    assert hint in caught.value.hint


def test_wrong_service_has_no_manifest() -> None:
    with pytest.raises(ValidationError, match="replicas"):
        build_inference_service(Service("digits", "s3://b/m", replicas=0))


@pytest.mark.skipif(not CRDS.is_dir(), reason="KServe's custom resource definitions are not beside this repository")
@pytest.mark.parametrize(
    "document",
    [
        build_inference_service(Service("digits", "pvc://models/digits", replicas=3)),
        build_inference_service(Service("digits", "s3://b/m", service_account="s", logger={"url": "s3://b/log"})),
        build_inference_service(
            Service("digits", "s3://b/m", resources={"limits": {"cpu": "1", "huawei.com/Ascend910": 1}}, grpc=True)
        ),
        build_canary(
            Service(
                "digits",
                "s3://b/m",
                download="server",
                storage_secret="s",
                service_account="a",
                pod_labels={"a": "b"},
                pod_annotations={"c": "d"},
            ),
            5,
            2,
        ),
        build_canary_graph(Service("digits", "s3://b/m"), 10, ("http://stable", "http://canary")),
        build_inference_service(Service("digits", "s3://b/m", **SCALED, **PLACED)),
        build_inference_service(Service("digits", "s3://b/m", scale_metric="in_flight", **SCALED)),
        build_inference_service(
            Service("digits", "s3://b/m", scale_metric="in_flight", **{**SCALED, "min_replicas": 0})
        ),
    ],
    ids=["claim", "log", "grpc", "canary", "graph", "placed", "keda", "zero"],
)
def test_manifest_has_fields_of_kserves_definition(document: dict[str, Any]) -> None:
    plural = f"{document['kind'].lower()}s"
    definition = json.loads((CRDS / f"{plural}.serving.kserve.io.json").read_text())
    name = document["apiVersion"].partition("/")[2]
    (version,) = [entry for entry in definition["spec"]["versions"] if entry["name"] == name]
    assert find_misfits(document, version["schema"]["openAPIV3Schema"], "") == []


def find_misfits(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Return the fields of a value that a schema lacks, or has with another type."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, int | str) else [path]
    types = {"object": dict, "string": str, "integer": int, "array": list, "boolean": bool}
    if not isinstance(value, types[schema["type"]]):
        return [f"{path}: {value!r} is no {schema['type']}"]
    if isinstance(value, list):
        return [misfit for entry in value for misfit in find_misfits(entry, schema["items"], f"{path}[]")]
    if not isinstance(value, dict) or path == ".metadata":
        return []
    misfits = [f"{path}.{name}: missing" for name in schema.get("required", []) if name not in value]
    for name, entry in value.items():
        below = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        misfits += find_misfits(entry, below, f"{path}.{name}") if below else [f"{path}.{name}: unknown"]
    return misfits
