"""Settings on a cluster whose API server answers as KServe 0.20's: what is refused, kept and removed."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import ProcessFailedError, UserError, ValidationError
from kfp_mindspore.inference import InferenceClient, KServeBackend, Service
from kfp_mindspore.inference.backends.kserve_status import is_idle
from kfp_mindspore.inference.manifest import SERVICE_ANNOTATION, VERSION_ANNOTATION, restore_service
from kfp_mindspore.inference.service import ServiceState
from tests.support.kube.fake_api_server import FakeApiServer, RecordedRequest, respond_once

NAMESPACE = "team"
SERVICES = f"/apis/serving.kserve.io/v1beta1/namespaces/{NAMESPACE}/inferenceservices"
GRAPHS = f"/apis/serving.kserve.io/v1alpha1/namespaces/{NAMESPACE}/inferencegraphs"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
AUTOSCALERS = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
SCALED_OBJECTS = f"/apis/keda.sh/v1alpha1/namespaces/{NAMESPACE}/scaledobjects"
KINDS = {
    "/apis/serving.kserve.io/v1beta1": [("inferenceservices", "InferenceService")],
    "/apis/serving.kserve.io/v1alpha1": [("inferencegraphs", "InferenceGraph")],
}
KEDA = {"/apis/keda.sh/v1alpha1": [("scaledobjects", "ScaledObject")]}
METRICS = {"/apis/metrics.k8s.io/v1beta1": [("pods", "PodMetrics")]}
KNATIVE = {"/apis/serving.knative.dev/v1": [("services", "Service")]}
IN_FLIGHT = {"scale_metric": "in_flight", "prometheus": "http://prometheus:9090"}


class Controller:
    """KServe's controller and the kubelet, as a client sees them: each read finds the last applied version served.

    Args:
        api: The API server.
        kubeconfig: Its kubeconfig.
    """

    def __init__(self, api: FakeApiServer, kubeconfig: Path) -> None:
        self.api = api
        self.client = InferenceClient(KServeBackend(kubeconfig=kubeconfig), NAMESPACE)
        self.install(KINDS)
        self.install(METRICS)
        api.faults.append(self._reconcile)

    def install(self, kinds: dict[str, list[tuple[str, str]]]) -> None:
        """Define kinds."""
        for path, entries in kinds.items():
            self.api.kinds[path] = [{"name": name, "kind": kind, "namespaced": True} for name, kind in entries]

    def deploy(self, uri: str, *, canary: int = 0, **options: Any) -> Any:
        """Deploy a model as the service."""
        return self.client.deploy(Service("digits", uri, namespace=NAMESPACE, **options), 5, canary=canary)

    def get_predictor(self, name: str = "digits") -> dict[str, Any]:
        """Return an InferenceService's predictor."""
        found = self.api.find(SERVICES, name)
        assert found is not None
        predictor: dict[str, Any] = found["spec"]["predictor"]
        return predictor

    def get_bounds(self) -> tuple[int, int]:
        """Return the service's bounds."""
        predictor = self.get_predictor()
        return predictor["minReplicas"], predictor["maxReplicas"]

    def _reconcile(self, request: RecordedRequest, handler: BaseHTTPRequestHandler) -> bool:
        collection, _, deployment = request.path.rpartition("/")
        if (request.method, collection) == ("GET", DEPLOYMENTS):
            owner = deployment.removesuffix("-predictor")
            found = self.api.find(SERVICES, owner) or self.api.find(GRAPHS, owner)
            if found is not None:
                self._serve(found, deployment)
        return False

    def _serve(self, owner: dict[str, Any], deployment: str) -> None:
        metadata = owner["metadata"]
        version = {VERSION_ANNOTATION: metadata["annotations"][VERSION_ANNOTATION]}
        is_broken = "broken" in metadata["annotations"].get(SERVICE_ANNOTATION, "")
        counts = {"updatedReplicas": 1, "replicas": 1, "availableReplicas": 0 if is_broken else 1}
        self.api.put(
            DEPLOYMENTS,
            {
                "metadata": {"name": deployment, "namespace": NAMESPACE, "generation": 1},
                "spec": {"replicas": 1, "template": {"metadata": {"annotations": version}}},
                "status": {"observedGeneration": 1, **counts},
            },
        )
        state: dict[str, Any] = {"running": {}}
        if is_broken:
            state = {"terminated": {"exitCode": 2, "reason": "Error"}}
        ready = {"type": "Ready", "status": str(not is_broken)}
        labels = {"serving.kserve.io/inferenceservice": metadata["name"], "component": "predictor"}
        container = {"name": "kserve-container", "ready": not is_broken, "restartCount": 0, "state": state}
        self.api.put(
            PODS,
            {
                "metadata": {
                    "name": f"{deployment}-0",
                    "namespace": NAMESPACE,
                    "labels": {**labels, "app": f"isvc.{deployment}"},
                    "annotations": version,
                    "creationTimestamp": "2026-11-29T00:00:00Z",
                },
                "spec": {"containers": [{"name": "kserve-container"}]},
                "status": {"phase": "Running", "conditions": [ready], "containerStatuses": [container]},
            },
        )
        metadata.setdefault("creationTimestamp", "2026-11-29T00:00:00Z")


@pytest.fixture
def controller(api: FakeApiServer, tmp_path: Path) -> Controller:
    return Controller(api, api.write_kubeconfig(tmp_path / "kubeconfig", namespace=NAMESPACE))


@pytest.mark.parametrize(
    ("options", "kinds", "expected"),
    [
        ({}, METRICS, "scale_metric: 'cpu' needs the Kubernetes Metrics Server, which this cluster does not have"),
        (IN_FLIGHT, KEDA, "scale_metric: 'in_flight' needs KEDA, which this cluster does not have"),
        (
            {"scale_metric": "in_flight", "min_replicas": 0},
            KNATIVE,
            "min_replicas: 0 needs Knative Serving, which this cluster does not have",
        ),
    ],
)
def test_scaling_beyond_cluster_is_refused_at_creation(
    controller: Controller, options: dict[str, Any], kinds: dict[str, Any], expected: str
) -> None:
    controller.api.kinds.pop(next(iter(METRICS)))
    with pytest.raises(UserError, match=expected) as caught:
        controller.deploy("s3://b/1", max_replicas=4, **options)
    assert caught.value.exit_code == 2
    assert controller.api.find(SERVICES, "digits") is None
    controller.install(kinds)
    metric = options.get("scale_metric", "cpu")
    status = controller.deploy("s3://b/1", max_replicas=4, **options)
    assert (status.version, status.scaling) == (1, f"{options.get('min_replicas', 1)} to 4 by {metric}")


def test_promotion_and_rollback_keep_bounds(controller: Controller) -> None:
    controller.deploy("s3://b/1", replicas=3)
    controller.deploy("s3://b/2", min_replicas=2, max_replicas=5)
    controller.deploy("s3://b/3", canary=10)
    status = controller.client.promote("digits", 5)
    assert (status.model, status.scaling, controller.get_bounds()) == ("s3://b/3", "2 to 5 by cpu", (2, 5))
    status = controller.client.rollback("digits", 5)
    assert (status.model, status.scaling, controller.get_bounds()) == ("s3://b/2", "2 to 5 by cpu", (2, 5))
    controller.deploy("s3://b/4", canary=10, max_replicas=7)
    controller.client.promote("digits", 5)
    assert controller.get_bounds() == (1, 7)


def test_rollback_of_fixed_service_keeps_its_replicas(controller: Controller) -> None:
    controller.deploy("s3://b/1")
    controller.deploy("s3://b/2", replicas=3)
    status = controller.client.rollback("digits", 5)
    assert (status.model, controller.get_bounds()) == ("s3://b/1", (3, 3))


def test_autoscaler_of_former_class_is_deleted(controller: Controller) -> None:
    controller.install(KEDA)
    controller.deploy("s3://b/1")
    controller.api.put(AUTOSCALERS, {"metadata": {"name": "digits-predictor", "namespace": NAMESPACE}})
    controller.deploy("s3://b/1", max_replicas=4)
    assert controller.api.find(AUTOSCALERS, "digits-predictor") is not None
    controller.deploy("s3://b/1", max_replicas=4, **IN_FLIGHT)
    assert controller.api.find(AUTOSCALERS, "digits-predictor") is None
    controller.api.put(SCALED_OBJECTS, {"metadata": {"name": "digits-predictor", "namespace": NAMESPACE}})
    with pytest.raises(ProcessFailedError, match="exit code 2"):
        controller.deploy("s3://b/broken", max_replicas=4)
    # The version before has its annotations again, and so KServe its ScaledObject.
    annotations = controller.api.find(SERVICES, "digits")["metadata"]["annotations"]  # type: ignore[index]
    assert annotations["serving.kserve.io/autoscalerClass"] == "keda"
    assert restore_service(annotations[SERVICE_ANNOTATION], "digits", NAMESPACE).model_dir == "s3://b/1"
    assert controller.api.find(SCALED_OBJECTS, "digits-predictor") is None


def test_restored_service_keeps_own_annotations(controller: Controller) -> None:
    controller.deploy("s3://b/1", annotations={"team": "vision"}, max_replicas=3)
    with pytest.raises(ProcessFailedError):
        controller.deploy("s3://b/broken", annotations={"team": "other"})
    applied = [item.body for item in controller.api.requests if item.method == "PATCH"][-1]
    assert applied["metadata"]["annotations"]["team"] == "vision"
    assert applied["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "hpa"


def test_deployment_time_is_the_versions(controller: Controller) -> None:
    started = time.time()
    first = controller.deploy("s3://b/1").created
    # The object's own is of an earlier day.
    assert started - 0.001 <= first <= time.time()
    # A retried step changes nothing, and a failed version is taken back.
    assert controller.deploy("s3://b/1").created == first
    with pytest.raises(ProcessFailedError):
        controller.deploy("s3://b/broken")
    assert controller.client.get("digits").created == first
    assert controller.deploy("s3://b/2").created > first


CONTAINERS = "/apis/serving.kserve.io/v1alpha1/clusterstoragecontainers"
GIT = {"supportedUriFormats": [{"prefix": "git://"}, {"regex": r"git\+https://(.+)\.git"}, {"prefix": "ms://"}]}


@pytest.mark.parametrize("uri", ["git://host/models", "git+https://host/models.git", "ms://org/model", "minio://b/m"])
def test_uris_of_clusters_storage_containers(controller: Controller, uri: str) -> None:
    document = {"metadata": {"name": "git"}, "spec": GIT}
    controller.api.put(CONTAINERS, {**document, "disabled": True})
    with pytest.raises(ValidationError, match=r"model_dir: must be a URI with one of s3://, .*, got"):
        controller.deploy(uri)
    controller.api.put(CONTAINERS, document)
    if uri.startswith("minio"):
        with pytest.raises(ValidationError, match=r"git://, git.*, ms://, got minio"):
            controller.deploy(uri)
    else:
        controller.deploy(uri)
        assert controller.get_predictor()["model"]["storageUri"] == uri


def test_kserve_decides_where_storage_containers_are_not_readable(controller: Controller) -> None:
    controller.api.faults.append(respond_once(403, path="clusterstoragecontainers", reason="Forbidden", times=9))
    assert controller.deploy("git://host/models").model == "git://host/models"
    for uri in ("/models/digits", "minio://b/m"):
        with pytest.raises(ValidationError, match="model_dir: must be a URI"):
            controller.deploy(uri)


def test_known_schemes_need_no_storage_container(controller: Controller) -> None:
    controller.deploy("oci+native://registry/model:1")
    assert controller.api.count("GET", "clusterstoragecontainers") == 0


def test_export_is_served_by_another_runtime_and_rolled_back(controller: Controller) -> None:
    runtime = {"runtime": "llama-cpp", "model_format": "gguf"}
    controller.deploy("s3://b/1", **runtime)
    controller.deploy("s3://b/2", **runtime)
    with pytest.raises(ValidationError, match="canary: needs model_name_flag"):
        controller.deploy("s3://b/3", canary=10, **runtime)
    with pytest.raises(ProcessFailedError):
        controller.deploy("s3://b/broken", **runtime)
    assert controller.client.rollback("digits", 5).model == "s3://b/1"
    assert controller.get_predictor()["model"]["runtime"] == "llama-cpp"


def test_update_changes_only_given_options(controller: Controller) -> None:
    controller.deploy("s3://b/1", env={"A": "1"}, digest="sha256:1", replicas=2)
    status = controller.client.update("digits", {"replicas": 1, "max_replicas": 4}, 5)
    assert (status.version, status.model, status.digest) == (2, "s3://b/1", "sha256:1")
    assert status.scaling == "1 to 4 by cpu"
    assert status.options == {"env": {"A": "1"}, "max_replicas": 4}
    assert controller.get_predictor()["model"]["env"] == [{"name": "A", "value": "1"}]
    with pytest.raises(ValidationError, match="min_replicas: must be ≤ max_replicas"):
        controller.client.update("digits", {"min_replicas": 5}, 5)
    with pytest.raises(ValidationError, match="max: unknown"):
        controller.client.update("digits", {"max": 5}, 5)
    controller.deploy("s3://b/2", canary=10)
    with pytest.raises(UserError, match="has a canary"):
        controller.client.update("digits", {"env": {}}, 5)


def test_service_without_requests_is_ready(controller: Controller) -> None:
    controller.install(KNATIVE)
    controller.deploy("s3://b/1", max_replicas=2, min_replicas=0, scale_metric="in_flight")
    document = controller.api.find(SERVICES, "digits")
    assert document is not None
    revision = "digits-predictor-00001"
    document["status"] = {
        "deploymentMode": "Knative",
        "conditions": [{"type": "Ready", "status": "True"}],
        "components": {"predictor": {"latestCreatedRevision": revision, "latestReadyRevision": revision}},
    }
    controller.api.put(SERVICES, document)
    controller.api.remove(PODS, "digits-predictor-0")
    status = controller.client.get("digits")
    assert (status.state, status.replicas) == (ServiceState.READY, 0)
    assert status.message == "it has no replica; a request starts one"
    # A failing version is replaced by it again.
    assert is_idle(document)
    document["status"]["components"]["predictor"]["latestCreatedRevision"] = "digits-predictor-00002"
    assert not is_idle(document)
