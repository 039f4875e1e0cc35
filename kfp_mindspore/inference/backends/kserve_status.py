"""A service status on a cluster, from InferenceService and pods."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.inference import manifest
from kfp_mindspore.inference.backends import rollout
from kfp_mindspore.inference.manifest import (
    DEPLOYED_ANNOTATION,
    PREVIOUS_ANNOTATION,
    SERVICE_ANNOTATION,
    STOP_ANNOTATION,
    VERSION_ANNOTATION,
)
from kfp_mindspore.inference.scaling import AUTOSCALER_ANNOTATION, HPA, KEDA, build_annotations, describe_scaling
from kfp_mindspore.inference.service import CanaryStatus, Service, ServiceState, ServiceStatus, list_changed_options
from kfp_mindspore.kube.pods import PodState
from kfp_mindspore.kube.resources import Resource

Document = Mapping[str, Any]

_AUTOSCALERS = {
    HPA: Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    KEDA: Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
}
OWN_ANNOTATIONS = (
    SERVICE_ANNOTATION,
    VERSION_ANNOTATION,
    PREVIOUS_ANNOTATION,
    DEPLOYED_ANNOTATION,
    manifest.PERCENT_ANNOTATION,
    STOP_ANNOTATION,
)


def get_annotations(document: Document) -> dict[str, str]:
    """Return an object's annotations."""
    return document["metadata"].get("annotations") or {}


def is_stopped(document: Document) -> bool:
    """Return whether an InferenceService is to have no pods."""
    return get_annotations(document).get(STOP_ANNOTATION) == "true"


def is_version_of(document: Document, service: Service) -> bool:
    """Return whether an InferenceService deploys the same version of a service, whichever run made it."""
    recorded = get_annotations(document).get(SERVICE_ANNOTATION)
    return bool(recorded and manifest.is_same_version(recorded, service))


def is_idle(document: Document) -> bool:
    """Return whether a service has no replica because it has no requests."""
    status = document.get("status") or {}
    revisions = (status.get("components") or {}).get("predictor") or {}
    latest = revisions.get("latestCreatedRevision")
    is_latest = latest is not None and latest == revisions.get("latestReadyRevision")
    is_ready = rollout.get_condition(document, "Ready").get("status") == "True"
    return document["spec"]["predictor"].get("minReplicas") == 0 and is_latest and is_ready


def get_replaced_autoscaler(before: Document, document: Document) -> Resource | None:
    """Return the kind of autoscaler that an InferenceService had, if the next one has another kind."""
    first, second = (get_annotations(item).get(AUTOSCALER_ANNOTATION, HPA) for item in (before, document))
    return _AUTOSCALERS.get(first) if first != second else None


def snapshot(document: Document) -> dict[str, Any]:
    """Return what restores an object by server-side apply: the spec with our labels and annotations."""
    metadata = document["metadata"]
    found = get_annotations(document)
    recorded = found.get(SERVICE_ANNOTATION)
    own = {*OWN_ANNOTATIONS}
    if recorded:
        own |= build_annotations(manifest.restore_service(recorded, metadata["name"], metadata["namespace"])).keys()
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {
                key: value
                for key, value in (metadata.get("labels") or {}).items()
                if key in (manifest.MANAGER_LABEL, manifest.CANARY_LABEL)
            },
            "annotations": {key: value for key, value in found.items() if key in own},
        },
        "spec": copy.deepcopy(document["spec"]),
    }


def get_url(document: Document) -> str:
    """Return an InferenceService's address within the cluster."""
    metadata = document["metadata"]
    address = ((document.get("status") or {}).get("address") or {}).get("url")
    return str(address or f"http://{metadata['name']}-predictor.{metadata['namespace']}.svc.cluster.local")


def get_canary_url(url: str, name: str) -> str:
    """Return a service canary's address, in the same form as the service's own."""
    return url.replace(f"//{name}", f"//{name}-canary", 1)


def build_status(document: Document, canary: Document | None, pods: Sequence[Document]) -> ServiceStatus:
    """Return a service's status.

    Args:
        document: The service's InferenceService.
        canary: The canary's InferenceService, or None.
        pods: Predictor pods, including other services'.
    """
    metadata, found = document["metadata"], get_annotations(document)
    name, namespace = metadata["name"], metadata["namespace"]
    own = _select_pods(pods, document)
    recorded, previous = found.get(SERVICE_ANNOTATION), found.get(PREVIOUS_ANNOTATION)
    service = manifest.restore_service(recorded, name, namespace) if recorded else Service(name, "")
    state, message = _get_state(document, own)
    model = document["spec"]["predictor"].get("model") or {}
    url = get_url(document)
    created = datetime.datetime.fromisoformat(metadata["creationTimestamp"].replace("Z", "+00:00"))
    return ServiceStatus(
        name=name,
        namespace=namespace,
        state=state,
        url=url,
        grpc_url=f"{url.partition('://')[2]}:{manifest.GRPC_PORT}" if service.grpc else "",
        model=str(service.model_dir) or str(model.get("storageUri", "")),
        version=int(found.get(VERSION_ANNOTATION) or 1),
        replicas=sum(pod.is_ready for pod in own),
        restarts=sum(pod.restarts for pod in own),
        message=message,
        created=float(found.get(DEPLOYED_ANNOTATION) or created.timestamp()),
        canary=_build_canary_status(name, document, canary, pods) if canary else None,
        previous=str(manifest.restore_service(previous, name, namespace).model_dir) if previous else "",
        digest=service.digest,
        run=service.run,
        scaling=describe_scaling(service),
        options=list_changed_options(vars(service)),
    )


def _select_pods(pods: Sequence[Document], document: Document) -> list[PodState]:
    metadata, version = document["metadata"], get_annotations(document).get(VERSION_ANNOTATION, "")
    own = [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == metadata["namespace"]
        and pod["metadata"]["labels"].get(rollout.SERVICE_LABEL) == metadata["name"]
    ]
    return rollout.read_version_pods(own, version)


def _get_state(document: Document, pods: Sequence[PodState]) -> tuple[ServiceState, str]:
    if is_stopped(document):
        return ServiceState.STOPPED, "stopped"
    if any(pod.is_ready for pod in pods):
        return ServiceState.READY, ""
    if not pods and is_idle(document):
        return ServiceState.READY, "it has no replica; a request starts one"
    failures = [failure for pod in pods if (failure := rollout.get_pod_failure(pod))]
    message = failures[0].reason if failures else next(filter(None, map(rollout.get_unschedulable, pods)), "")
    condition = rollout.get_condition(document, "PredictorReady")
    state = ServiceState.RESTARTING if any(pod.restarts for pod in pods) else ServiceState.STARTING
    return state, message or str(condition.get("message") or "")


def _build_canary_status(name: str, stable: Document, canary: Document, pods: Sequence[Document]) -> CanaryStatus:
    found, namespace = get_annotations(canary), canary["metadata"]["namespace"]
    state, message = _get_state(canary, _select_pods(pods, canary))
    url = get_url(stable)
    return CanaryStatus(
        percent=int(found.get(manifest.PERCENT_ANNOTATION) or 0),
        url=get_canary_url(url, name),
        traffic_url=f"http://{manifest.name_graph(name)}.{namespace}.svc{url.partition('.svc')[2]}",
        model=str(manifest.restore_service(found[SERVICE_ANNOTATION], name, namespace).model_dir),
        state=state,
        message=message,
    )
