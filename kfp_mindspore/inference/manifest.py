"""A service's InferenceService, and a canary's InferenceGraph."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference.logger import build_logger_flag, build_logger_spec, read_logger, uses_agent
from kfp_mindspore.inference.pod_checks import ENV_SOURCES
from kfp_mindspore.inference.scaling import build_annotations, build_scaling
from kfp_mindspore.inference.service import MAXIMUM_NAME, MODEL_FORMAT, OPENAI_PATH, SERVER, Service
from kfp_mindspore.kube.devices import set_device
from kfp_mindspore.settings import AUTO

API_VERSION = "serving.kserve.io/v1beta1"
GRAPH_API_VERSION = "serving.kserve.io/v1alpha1"
HTTP_PORT = 8080
GRPC_PORT = 8081
MANAGER_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "kfp-mindspore"
# On a canary's InferenceService and graph: the service name.
CANARY_LABEL = "kfp-mindspore/canary-of"
# KServe copies annotations to the pod template, so they also identify a version's pods.
VERSION_ANNOTATION = "kfp-mindspore/version"
SERVICE_ANNOTATION = "kfp-mindspore/service"
PREVIOUS_ANNOTATION = "kfp-mindspore/previous"
# The version's deployment time, in seconds since the epoch: the object's own is the first version's.
DEPLOYED_ANNOTATION = "kfp-mindspore/deployed"
PERCENT_ANNOTATION = "kfp-mindspore/canary-percent"
STOP_ANNOTATION = "serving.kserve.io/stop"
# URI schemes for KServe's storage initializer and mounts; a cluster's ClusterStorageContainers list further formats.
URI_SCHEMES = ("s3", "gs", "pvc", "http", "https", "hdfs", "webhdfs", "oci", "oci+native", "hf", "abfs", "abfss")
# A request's field and its path at the server, by graph node.
TENSOR_ROUTES = {"v1": ("instances", "v1/models/{}:predict"), "v2": ("inputs", "v2/models/{}/infer")}
_OPENAI_ROUTES = {
    "chat": ("messages", "chat/completions"),
    "completions": ("prompt", "completions"),
    "embeddings": ("input", "embeddings"),
}
_URI = re.compile(r"([a-z][a-z0-9+.-]*)://.+")
# Service fields that identify a version on a cluster; name and namespace are the object's, and the run that deploys the
# same version again makes no new one.
_RECORDED = (
    "model_dir", "replicas", "resources", "server_args", "grpc", "service_account", "download", "storage_secret",
    "pod_labels", "pod_annotations", "min_replicas", "max_replicas", "scale_metric", "scale_target", "prometheus",
    "env", "env_from", "node_selector", "tolerations", "volumes", "image_pull_secrets", "annotations",
    "priority_class", "spread", "runtime", "logger", "model_format", "model_name_flag", "openai_path", "digest", "run",
)  # fmt: skip


def build_inference_service(service: Service, uri_formats: Sequence[Mapping[str, str]] | None = ()) -> dict[str, Any]:
    """Return a service as an InferenceService (serving.kserve.io/v1beta1).

    Without `runtime` the cluster selects one with autoSelect for the model format.

    Args:
        service: Its `model_dir` must be a URI that the cluster can read. `minio://bucket/path` becomes
            `s3://bucket/path` when `service_account` or `storage_secret` names the store.
        uri_formats: The cluster's further URI formats, each {"prefix": …} or {"regex": …}; None for any.

    Raises:
        ValidationError: Naming each field that is wrong.
    """
    return _build_inference_service(service, service.name, uri_formats)


def _build_inference_service(
    service: Service, name: str, uri_formats: Sequence[Mapping[str, str]] | None
) -> dict[str, Any]:
    service.validate()
    uri = _resolve_uri(service, uri_formats)
    model: dict[str, Any] = {"modelFormat": {"name": service.model_format}}
    if service.has_own_format:
        model["protocolVersion"] = "v2"
    if service.runtime:
        model["runtime"] = service.runtime
    # KServe appends args to the runtime's; the server's later --model_dir replaces the runtime's default.
    args = list(service.server_args)
    if service.download == SERVER:
        args.insert(0, f"--model_dir={uri}")
        # KServe 0.20 adds the multi-model servers' agent to a model with neither storageUri nor storage. A storage
        # without a path is not downloaded.
        model["storage"] = {}
    else:
        model["storageUri"] = uri
    if service.model_name_flag:
        # Two words: llama.cpp's server has no --flag=value. A canary's model has the service's name.
        args += [service.model_name_flag, service.name]
    log_fields, log_flags = _build_logger(service, name)
    args += log_flags
    if args:
        model["args"] = args
    if service.env:
        model["env"] = [{"name": key, "value": value} for key, value in service.env.items()]
    sources = [f"secret/{service.storage_secret}"] if service.storage_secret else []
    if sources := [*sources, *service.env_from]:
        named = [source.split("/", 1) for source in sources]
        model["envFrom"] = [{ENV_SOURCES[kind]: {"name": source}} for kind, source in named]
    if service.volumes:
        mounts = enumerate(service.volumes)
        model["volumeMounts"] = [{"name": f"volume-{index}", "mountPath": path} for index, path in mounts]
    if service.grpc:
        # KServe's Service sends port 80 to the first port and gives each further one its own number.
        model["ports"] = [
            {"name": "http1", "containerPort": HTTP_PORT, "protocol": "TCP"},
            {"name": "h2c", "containerPort": GRPC_PORT, "protocol": "TCP"},
        ]
    if service.resources:
        # Quantities are text in Kubernetes' own objects; a bare number is accepted from YAML.
        model["resources"] = {
            kind: {name: str(quantity) for name, quantity in entries.items()}
            for kind, entries in service.resources.items()
        }
    # On a node with the requested device the server never computes on the CPU in silence.
    set_device(model, AUTO)
    predictor = {**build_scaling(service, name), "model": model, **_build_pod_fields(service, name), **log_fields}
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": service.namespace or "default",
            "labels": {MANAGER_LABEL: MANAGER},
            "annotations": {**build_annotations(service), SERVICE_ANNOTATION: record_service(service)},
        },
        "spec": {"predictor": predictor},
    }


def _build_logger(service: Service, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the predictor's fields with which KServe's agent logs, or the flags with which the server does."""
    if (options := read_logger(service.logger)) is None:
        return {}, []
    if not options.scheme and not options.url.startswith("/"):
        raise ValidationError(
            [f"logger.url: must be an absolute path on a cluster, in one of volumes, got {options.url!r}"],
            subject=f"service {service.name}",
        )
    is_language = service.model_format != MODEL_FORMAT
    has_account = bool(service.service_account)
    if uses_agent(options, is_own=service.has_own_format, is_language=is_language, has_account=has_account):
        return {"logger": build_logger_spec(options, service.service_account)}, []
    is_canary = name != service.name
    return {}, [build_logger_flag(service.logger, service.name, service.namespace or "default", is_canary=is_canary)]


def _build_pod_fields(service: Service, name: str) -> dict[str, Any]:
    """Return the predictor's fields that are its pods', without empty ones."""
    fields: dict[str, Any] = {
        "serviceAccountName": service.service_account,
        "labels": dict(service.pod_labels),
        "annotations": dict(service.pod_annotations),
        "nodeSelector": dict(service.node_selector),
        "tolerations": [dict(toleration) for toleration in service.tolerations],
        "volumes": [{"name": f"volume-{index}", **source} for index, source in enumerate(service.volumes.values())],
        "imagePullSecrets": [{"name": secret} for secret in service.image_pull_secrets],
        "priorityClassName": service.priority_class,
    }
    if service.spread:
        selector = {"serving.kserve.io/inferenceservice": name, "component": "predictor"}
        fields["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": service.spread,
                # A rollout's first pod must not wait for a node in another zone.
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector},
                "matchLabelKeys": ["pod-template-hash"],
            }
        ]
    return {field: value for field, value in fields.items() if value}


def name_canary(name: str) -> str:
    """Return a canary InferenceService's name.

    Raises:
        ValidationError: The service's name leaves no room for the suffix.
    """
    suffix = "-canary"
    if len(name) + len(suffix) > MAXIMUM_NAME:
        raise ValidationError(
            [f"name: must be at most {MAXIMUM_NAME - len(suffix)} characters with a canary, got {name!r}"],
            subject="service",
        )
    return f"{name}{suffix}"


def name_graph(name: str) -> str:
    """Return the name for the InferenceGraph that splits requests."""
    return f"{name}-traffic"


def build_canary(
    service: Service, percent: int, version: int, uri_formats: Sequence[Mapping[str, str]] | None = ()
) -> dict[str, Any]:
    """Return a service's canary as a separate InferenceService, whose model has the service's name in URLs.

    Raises:
        ValidationError: A field is wrong, or another server is to serve it.
    """
    if not service.has_own_format and not service.model_name_flag:
        raise ValidationError(
            [f"canary: needs model_name_flag, with which the server of {service.model_format!r} names its model"],
            subject=f"service {service.name}",
        )
    document = _build_inference_service(service, name_canary(service.name), uri_formats)
    if service.has_own_format:
        document["spec"]["predictor"]["model"].setdefault("args", []).append(f"--model_name={service.name}")
    metadata = document["metadata"]
    metadata["labels"][CANARY_LABEL] = service.name
    metadata["annotations"] |= {VERSION_ANNOTATION: str(version), PERCENT_ANNOTATION: str(percent)}
    return document


def build_canary_graph(service: Service, percent: int, urls: tuple[str, str]) -> dict[str, Any]:
    """Return the InferenceGraph (serving.kserve.io/v1alpha1) that splits requests between a service and a canary.

    Args:
        service: The canary's service.
        percent: Percentage of requests for the canary.
        urls: The addresses: service, canary.
    """
    targets = [(name, url, service.name) for name, url in zip(("stable", "canary"), urls, strict=True)]
    return {
        "apiVersion": GRAPH_API_VERSION,
        "kind": "InferenceGraph",
        "metadata": {
            "name": name_graph(service.name),
            "namespace": service.namespace,
            "labels": {MANAGER_LABEL: MANAGER, CANARY_LABEL: service.name},
        },
        "spec": {
            "nodes": build_graph_nodes(
                *("Splitter", targets, (100 - percent, percent)),
                routes=TENSOR_ROUTES
                if service.model_format == MODEL_FORMAT
                else list_openai_routes(service.openai_path),
            ),
            # Where all nodes are tainted, the router needs them too.
            **({"tolerations": list(service.tolerations)} if service.tolerations else {}),
        },
    }


def list_openai_routes(openai_path: str = OPENAI_PATH) -> dict[str, tuple[str, str]]:
    """Return each request's field and its path by graph node, for a server with the OpenAI protocol at a path."""
    return {node: (field, f"{openai_path.strip('/')}/{route}") for node, (field, route) in _OPENAI_ROUTES.items()}


def build_graph_nodes(
    router: str,
    targets: Sequence[tuple[str, str, str]],
    weights: Sequence[int] = (),
    *,
    routes: Mapping[str, tuple[str, str]] = TENSOR_ROUTES,
) -> dict[str, Any]:
    """Return InferenceGraph nodes over services.

    Its root routes by the body's fields: KServe's router ignores a request's path.

    Args:
        router: `Ensemble` or `Splitter`.
        targets: For each service: step name, address, model name.
        weights: With `Splitter`: percentage of requests for each service.
        routes: The body's field and the model's path by node name.
    """
    nodes: dict[str, Any] = {
        "root": {
            "routerType": "Switch",
            "steps": [{"nodeName": node, "condition": field} for node, (field, _) in routes.items()],
        }
    }
    for node, (_, path) in routes.items():
        steps: list[dict[str, Any]] = [
            {"name": name, "serviceUrl": f"{url}/{path.format(model)}"} for name, url, model in targets
        ]
        for step, weight in zip(steps, weights, strict=False):
            step["weight"] = weight
        nodes[node] = {"routerType": router, "steps": steps}
    return nodes


def record_service(service: Service) -> str:
    """Return the JSON text from which `restore_service` rebuilds a service."""
    values = {name: getattr(service, name) for name in _RECORDED}
    return json.dumps({**values, "model_dir": str(service.model_dir), "server_args": list(service.server_args)})


def restore_service(text: str, name: str, namespace: str) -> Service:
    """Return the service that `record_service` recorded, under a name; a later release's fields are dropped."""
    # JSON has no tuples: an empty list is the default.
    values = {key: value for key, value in json.loads(text).items() if key in _RECORDED and value != []}
    return Service(name=name, namespace=namespace, **values)


def is_same_version(text: str, service: Service) -> bool:
    """Return whether a record describes a service, whichever run deployed it."""
    recorded = restore_service(text, service.name, service.namespace)
    return record_service(replace(recorded, run="")) == record_service(replace(service, run=""))


def keep_location(text: str, service: Service) -> Service:
    """Return the service with the bundle's recorded location, if nothing else in the record but the run differs.

    Bundles with equal digests are the same model wherever they are.
    """
    kept = replace(service, model_dir=restore_service(text, service.name, service.namespace).model_dir)
    return kept if service.digest and is_same_version(text, kept) else service


def has_known_scheme(service: Service) -> bool:
    """Return whether KServe reads a service's URI without a ClusterStorageContainer for it."""
    return _get_scheme(str(service.model_dir)) in URI_SCHEMES


def _get_scheme(uri: str) -> str:
    match = _URI.fullmatch(uri)
    return match[1] if match else ""


def _resolve_uri(service: Service, uri_formats: Sequence[Mapping[str, str]] | None) -> str:
    uri = str(service.model_dir)
    scheme = _get_scheme(uri)
    if uri_formats and any(_matches(uri, entry) for entry in uri_formats):
        return uri
    if scheme == "minio" and (service.service_account or service.storage_secret):
        return f"s3{uri.removeprefix(scheme)}"
    if scheme in URI_SCHEMES or (uri_formats is None and scheme not in ("", "minio")):
        return uri
    hint = "Copy the bundle to where the cluster can read it."
    if scheme == "minio":
        hint = (
            "KServe does not know minio://. Let the pipeline root be s3://…, or name the service_account whose secret "
            "has the store's endpoint and credentials: the URI then becomes s3://…"
        )
    known = [f"{name}://" for name in URI_SCHEMES]
    known += [entry.get("prefix") or entry.get("regex", "") for entry in uri_formats or ()]
    raise ValidationError(
        [f"model_dir: must be a URI with one of {', '.join(dict.fromkeys(known))}, got {uri}"],
        subject=f"service {service.name}",
        hint=hint,
    )


def _matches(uri: str, entry: Mapping[str, str]) -> bool:
    if prefix := entry.get("prefix"):
        return uri.startswith(prefix)
    try:
        return bool(entry.get("regex")) and re.search(entry["regex"], uri) is not None
    except re.error:
        # Go's syntax differs in rare constructs.
        return False
