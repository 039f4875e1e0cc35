"""The steps that deploy a model bundle and test the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.settings import get_namespace

if TYPE_CHECKING:
    from kfp import dsl


def deploy_model(
    bundle: dsl.Model,
    service_name: str,
    *,
    namespace: str = "",
    replicas: int = 1,
    resources: Mapping[str, Any] | None = None,
    wait_seconds: float = 120,
) -> tuple[str, str, str]:
    """Deploy a bundle, wait until the service is ready and print the backend's warnings.

    Args:
        bundle: The model bundle.
        service_name: Name of the service and of the model in its URLs.
        namespace: Namespace of the service; empty for the step's.
        replicas: Number of replicas.
        resources: Kubernetes resource requirements of each replica.
        wait_seconds: Seconds to wait until the service is ready.

    Returns:
        HTTP URL, gRPC address and name of the service.

    Raises:
        ValidationError: An argument is invalid; the message names it.
        ProcessFailedError: The server failed; the message has the last lines of its log.
        WaitTimeoutError: The service was not ready in time.
    """
    from kfp_mindspore.inference import InferenceClient, Service

    service = Service(
        service_name,
        bundle.path,
        replicas=replicas,
        resources=resources or {},
        namespace=namespace or get_namespace() or "default",
    )
    status = InferenceClient().deploy(service, wait_seconds=wait_seconds)
    for warning in status.warnings:
        print(f"warning: {warning}", flush=True)
    return status.url, status.grpc_url, status.name


def smoke_test_service(
    bundle: dsl.Model, url: str, model_name: str, *, sample_count: int, tolerance: float
) -> tuple[str, str, float, int]:
    """Send held-out samples to a service by V1 and V2 and compare its predictions with the bundle's.

    Args:
        bundle: The model bundle that is served.
        url: HTTP URL of the service.
        model_name: Name of the model in the service's URLs.
        sample_count: Number of samples to send by each protocol.
        tolerance: Largest absolute difference allowed.

    Returns:
        Prediction and label of one sample, largest absolute difference, number of samples.

    Raises:
        ProcessFailedError: A prediction is missing or differs by more than the tolerance.
    """
    from kfp_mindspore.inference import run_smoke_test

    report = run_smoke_test(url, model_name, bundle.path, samples=sample_count, tolerance=tolerance)
    return str(report.prediction), str(report.label), float(report.max_abs_diff), int(report.samples)
