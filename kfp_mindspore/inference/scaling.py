"""A service's scaling: fields and annotations of an InferenceService, and the bounds that a next version keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kfp_mindspore.inference.pod_checks import CPU, IN_FLIGHT, MEMORY, WAITING
from kfp_mindspore.inference.service import Service

MODE_ANNOTATION = "serving.kserve.io/deploymentMode"
AUTOSCALER_ANNOTATION = "serving.kserve.io/autoscalerClass"
STANDARD, KNATIVE = "Standard", "Knative"
HPA, KEDA = "hpa", "keda"
# The server's gauges.
_GAUGES = {IN_FLIGHT: "mindsporeserver_in_flight", WAITING: "vllm:num_requests_waiting"}
# KServe has a default for cpu only. A tensor model's is half of the server's default batch.
_TARGETS = {CPU: 80, MEMORY: 80, IN_FLIGHT: 32, WAITING: 4}
# A new replica needs up to minutes to load and compile its model.
_SCALE_DOWN_SECONDS = 300


@dataclass(frozen=True)
class ScalingNeed:
    """What a cluster must have to scale a service.

    Args:
        group: Its API group.
        product: Its name.
        option: The option that needs it, with the value.
        way: What to set without it.
    """

    group: str
    product: str
    option: str
    way: str


def list_needs(service: Service) -> list[ScalingNeed]:
    """Return what a cluster must have to scale a service: KServe accepts the service without it."""
    if not service.max_replicas:
        return []
    if scales_to_zero(service):
        return [ScalingNeed("serving.knative.dev", "Knative Serving", "min_replicas: 0", "set min_replicas to 1")]
    option = f"scale_metric: {service.scale_metric!r}"
    if needs_keda(service):
        return [ScalingNeed("keda.sh", "KEDA", option, f"use {CPU} or {MEMORY}")]
    return [ScalingNeed("metrics.k8s.io", "the Kubernetes Metrics Server", option, "set replicas alone")]


def needs_keda(service: Service) -> bool:
    """Return whether KEDA is to scale a service."""
    return bool(service.max_replicas and service.min_replicas and service.scale_metric in _GAUGES)


def scales_to_zero(service: Service) -> bool:
    """Return whether a service may have no replica."""
    return bool(service.max_replicas) and not service.min_replicas


def describe_scaling(service: Service) -> str:
    """Return bounds and metric, such as `1 to 4 by cpu`; empty for a fixed count."""
    if not service.max_replicas:
        return ""
    return f"{service.min_replicas} to {service.max_replicas} by {service.scale_metric}"


def build_scaling(service: Service, name: str) -> dict[str, Any]:
    """Return the predictor's fields for a service's replicas.

    Args:
        service: The service.
        name: The InferenceService's name.
    """
    if not service.max_replicas:
        return {"minReplicas": service.replicas, "maxReplicas": service.replicas}
    bounds: dict[str, Any] = {"minReplicas": service.min_replicas, "maxReplicas": service.max_replicas}
    target = service.scale_target or _TARGETS[service.scale_metric]
    if scales_to_zero(service):
        return {**bounds, "scaleMetric": "concurrency", "scaleTarget": target}
    # A rollout keeps the replicas that the load needs.
    bounds["deploymentStrategy"] = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"},
    }
    if service.scale_metric in (CPU, MEMORY):
        return {**bounds, "scaleMetric": service.scale_metric, "scaleTarget": target}
    gauge = _GAUGES[service.scale_metric]
    labels = f'namespace="{service.namespace or "default"}",inferenceservice="{name}"'
    # KServe passes the query to KEDA, which divides its result by the target.
    external = {
        "metric": {
            "backend": "prometheus",
            "serverAddress": service.prometheus,
            "query": f"sum({gauge}{{{labels}}})",
        },
        "target": {"type": "Value", "value": str(target)},
    }
    behavior = {"scaleDown": {"stabilizationWindowSeconds": _SCALE_DOWN_SECONDS}}
    return {**bounds, "autoScaling": {"metrics": [{"type": "External", "external": external}], "behavior": behavior}}


def build_annotations(service: Service) -> dict[str, str]:
    """Return the InferenceService's annotations, the service's own and those for its scaling.

    KServe validates a metric by these annotations, not by the cluster's default mode.
    """
    if not service.max_replicas:
        return dict(service.annotations)
    if scales_to_zero(service):
        return {**service.annotations, MODE_ANNOTATION: KNATIVE}
    autoscaler = KEDA if needs_keda(service) else HPA
    return {**service.annotations, MODE_ANNOTATION: STANDARD, AUTOSCALER_ANNOTATION: autoscaler}


def keep_scaling(service: Service, current: Service) -> Service:
    """Return a service with the bounds of the current one if that scales, else with no fewer replicas than it has."""
    if not current.max_replicas:
        is_fixed = not service.max_replicas
        return replace(service, replicas=max(service.replicas, current.replicas)) if is_fixed else service
    return replace(
        service,
        replicas=current.replicas,
        min_replicas=current.min_replicas,
        max_replicas=current.max_replicas,
        scale_metric=current.scale_metric,
        scale_target=current.scale_target,
        prometheus=current.prometheus,
    )
