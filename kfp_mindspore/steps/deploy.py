"""The steps that deploy a model bundle, test the service and roll it back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.settings import KUBERNETES, get_backend_name, get_namespace

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.service import ServiceStatus


def deploy_model(
    bundle: dsl.Model,
    service_name: str,
    *,
    namespace: str = "",
    replicas: int = 1,
    resources: Mapping[str, Any] | None = None,
    server_args: Sequence[str] = (),
    grpc: bool = False,
    model_uri: str = "",
    service_account: str = "",
    download: str = "",
    storage_secret: str = "",
    pod_labels: Mapping[str, str] | None = None,
    canary: int = 0,
    max_accuracy_drop: float = 0.0,
    run: str = "",
    wait_seconds: float = 120,
) -> tuple[str, str, str, int]:
    """Deploy a bundle, wait until the service is ready and print the backend's warnings.

    With `canary` the bundle first runs beside the version that serves; it is tested, and then promoted or rolled back.

    Args:
        bundle: The model bundle.
        service_name: Name of the service and of the model in its URLs.
        namespace: Namespace of the service; empty for the step's.
        replicas: Number of replicas.
        resources: Kubernetes resource requirements of each replica.
        server_args: Further flags of the server.
        grpc: Whether the service on a cluster has a gRPC port.
        model_uri: URI of the bundle for a cluster; empty for the artifact's.
        service_account: See `Service`.
        download: See `Service`; empty for `initializer`.
        storage_secret: See `Service`.
        pod_labels: See `Service`.
        canary: Percentage of the requests for the canary; 0 for none.
        max_accuracy_drop: Largest decrease of the accuracy that is promoted, 0 to 1.
        run: Name of the pipeline run; empty for the step's pod.
        wait_seconds: Seconds to wait until the service is ready.

    Returns:
        HTTP URL, gRPC address, name and version of the service.

    Raises:
        ValidationError: An argument is invalid; the message names it.
        ProcessFailedError: The server failed, or a prediction differs from the bundle's; the version before serves.
        GateNotMetError: The canary is less accurate than the service and was rolled back.
        WaitTimeoutError: The service was not ready in time.
    """
    from kfp_mindspore.files import read_json
    from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
    from kfp_mindspore.inference import InferenceClient, Service, run_smoke_test
    from kfp_mindspore.inference.service import INITIALIZER

    opened = ModelBundle.open(bundle.path)
    service = Service(
        service_name,
        # KServe downloads by prefix: with "/" at its end no URI is a prefix of another model's.
        model_uri or f"{bundle.uri.rstrip('/')}/" if get_backend_name() == KUBERNETES else opened.path,
        replicas=replicas,
        resources=resources or {},
        namespace=namespace or get_namespace() or "default",
        server_args=tuple(server_args),
        grpc=grpc,
        service_account=service_account,
        download=download or INITIALIZER,
        storage_secret=storage_secret,
        pod_labels=pod_labels or {},
        digest=str(read_json(opened.path / SIGNATURE_FILE)["digest"]),
        run=run or os.environ.get("KFP_POD_NAME", ""),
    )
    client = InferenceClient(namespace=service.namespace)
    status = client.deploy(service, wait_seconds=wait_seconds, canary=canary)
    for warning in status.warnings:
        print(f"warning: {warning}", flush=True)
    if status.canary is not None:
        status = _finish_canary(client, status, opened.path, max_accuracy_drop, wait_seconds)
    elif canary and status.version == 1:
        # The first version has nothing to be compared with, and nothing to roll back to.
        try:
            run_smoke_test(status.url, status.name, opened.path)
        except KfpMindSporeError:
            client.delete(status.name)
            raise
    return status.url, status.grpc_url, status.name, status.version


def _finish_canary(
    client: InferenceClient, status: ServiceStatus, bundle_dir: Path, max_accuracy_drop: float, wait_seconds: float
) -> ServiceStatus:
    """Test a canary and promote it, or roll it back and raise."""
    from kfp_mindspore.inference.canary import run_canary_test

    try:
        report = run_canary_test(status, bundle_dir, max_accuracy_drop=max_accuracy_drop)
        print(
            f"canary: largest difference {report.smoke.max_abs_diff:g}, agreement {_format(report.agreement)}, "
            f"accuracy {_format(report.canary_accuracy)}, of the service {_format(report.stable_accuracy)}",
            flush=True,
        )
        return client.promote(status.name, wait_seconds)
    except KfpMindSporeError as error:
        client.rollback(status.name, wait_seconds)
        error.hint = f"{error.hint} The canary was rolled back; version {status.version} serves on.".strip()
        raise


def _format(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{fraction:.4f}"


def rollback_service(
    service_name: str, *, namespace: str = "", version: int = 0, wait_seconds: float = 120
) -> tuple[str, str, int]:
    """Remove the canary of a service; without one, deploy the model of the version before again.

    Args:
        service_name: Name of the service.
        namespace: Namespace of the service; empty for the step's.
        version: The version to roll back; nothing happens when another one serves. 0 for whichever serves.
        wait_seconds: Seconds to wait until the version before serves.

    Returns:
        HTTP URL of the service, directory or URI of the model that serves, and its version.

    Raises:
        NotFoundError: The service does not exist.
        UserError: It has neither a canary nor a version before.
        ProcessFailedError: The version before does not start; the service is as before.
    """
    from kfp_mindspore.inference import InferenceClient

    client = InferenceClient(namespace=namespace or get_namespace() or "default")
    status = client.get(service_name)
    if version and version != status.version:
        print(f"service {service_name}: version {status.version} serves, not {version}: nothing to roll back")
    else:
        status = client.rollback(service_name, wait_seconds)
    return status.url, status.model, status.version


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
