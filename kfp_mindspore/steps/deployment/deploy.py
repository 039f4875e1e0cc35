"""The steps that deploy a model bundle, test the service and roll it back."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError
from kfp_mindspore.local.interrupts import clean_up_on_sigterm
from kfp_mindspore.settings import KUBERNETES, get_backend_name

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.canary import CanaryReport
    from kfp_mindspore.inference.service import DeploymentOptions, Service, ServiceStatus
    from kfp_mindspore.inference.smoke import SmokeReport

NO_VERSION = -1
_ROUTE_SECONDS = 15.0
_ROUTE_POLL_SECONDS = 0.5


class Deployment(NamedTuple):
    """deploy_kserve outputs.

    Args:
        url: The service's HTTP URL; empty when nothing was deployed.
        grpc_url: The service's gRPC address.
        name: Service name.
        version: Serving version number; -1 when nothing was deployed.
        deployed: Whether the bundle was deployed.
        verdict: One sentence with the result.
        prediction: Prediction for one sample in the test; empty without a test.
        label: That sample's label.
    """

    url: str
    grpc_url: str
    name: str
    version: int
    deployed: bool
    verdict: str
    prediction: str = ""
    label: str = ""


@clean_up_on_sigterm
def deploy_model(bundle: dsl.Model, service: Service, options: DeploymentOptions) -> Deployment:
    """Deploy a bundle, wait until the service is ready, test it and print the backend's warnings.

    With `canary` the bundle first runs beside the version that serves; it is tested, and then promoted or rolled back.

    Args:
        bundle: The model bundle.
        service: The service. The model is the bundle, and an empty run the step's pod.
        options: How it is deployed and tested.

    Raises:
        ValidationError: An argument is invalid; the message names it.
        UserError: The bundle has no samples for the test.
        ProcessFailedError: The server failed, or a prediction differs from the bundle's; the version before serves.
        GateNotMetError: The canary's metric is worse than the service's; it was rolled back.
        WaitTimeoutError: The service was not ready in time.
    """
    from kfp_mindspore.files import read_json
    from kfp_mindspore.formats.bundle import SIGNATURE_FILE, ModelBundle
    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.rest import wait_for_route
    from kfp_mindspore.inference.service import LANGUAGE_FORMAT, MODEL_FORMAT
    from kfp_mindspore.inference.smoke import SAMPLES, count_samples

    if not options.gate:
        verdict = "not deployed: the gate is not met"
        print(f"{service.name}: {verdict}", flush=True)
        return Deployment("", "", service.name, NO_VERSION, False, verdict)
    opened = ModelBundle.open(bundle.path)
    samples = options.smoke_samples or (SAMPLES if options.canary else 0)
    if samples:
        samples = min(samples, count_samples(opened))
    model_format = LANGUAGE_FORMAT if opened.signature.is_language_model else MODEL_FORMAT
    service = dataclasses.replace(
        service,
        # KServe downloads by prefix: with "/" at its end no URI is a prefix of another model's.
        model_dir=options.model_uri or f"{bundle.uri.rstrip('/')}/"
        if get_backend_name() == KUBERNETES
        else opened.path,
        model_format=model_format if service.has_own_format else service.model_format,
        digest=str(read_json(opened.path / SIGNATURE_FILE)["digest"]),
        run=service.run or os.environ.get("KFP_POD_NAME", ""),
    )
    client = InferenceClient(namespace=service.namespace)
    before = _get_version(client, service.name)
    status = client.deploy(service, wait_seconds=options.wait_seconds, canary=options.canary)
    for warning in status.warnings:
        print(f"warning: {warning}", flush=True)
    report, details = None, ""
    if status.canary is not None:
        for url in (status.canary.url, status.canary.traffic_url):
            wait_for_route(url)
        status, canary_report = client.finish_canary(
            status.name, opened.path, max_worsening=options.max_worsening, wait_seconds=options.wait_seconds
        )
        report, details = canary_report.smoke, _describe(canary_report)
    elif options.smoke_samples or (options.canary and status.version == 1):
        report = _test_version(client, status, opened.path, samples, before, options.wait_seconds)
    verdict = f"version {status.version} serves"
    if report is not None:
        verdict += f"; {report.samples} samples tested, largest difference {report.max_abs_diff:g}{details}"
    print(f"{service.name}: {verdict}", flush=True)
    if options.registry:
        from kfp_mindspore.steps.deployment.register import register_bundle

        register_bundle(bundle, service.name, registry=options.registry, service_account_name=service.service_account)
    prediction, label = (report.prediction, report.label) if report is not None else ("", "")
    return Deployment(status.url, status.grpc_url, status.name, status.version, True, verdict, prediction, label)


def _get_version(client: InferenceClient, name: str) -> int:
    try:
        return client.get(name).version
    except NotFoundError:
        return 0


def _test_version(
    client: InferenceClient, status: ServiceStatus, bundle_dir: Path, samples: int, before: int, wait_seconds: float
) -> SmokeReport:
    """Run the smoke test; if it fails, roll a new version back and raise.

    For a moment after a rollout, a node still routes to the version before: its predictions are no failure until
    `_ROUTE_SECONDS` later.
    """
    from kfp_mindspore.inference import run_smoke_test
    from kfp_mindspore.inference.rest import wait_for_route

    deadline = time.monotonic() + (_ROUTE_SECONDS if before and status.version != before else 0)
    try:
        wait_for_route(status.url)
        while True:
            try:
                return run_smoke_test(
                    status.url, status.name, bundle_dir, samples=samples, openai_path=status.other_openai_path
                )
            except ProcessFailedError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_ROUTE_POLL_SECONDS)
    except KfpMindSporeError as error:
        if not before:
            client.delete(status.name)
            error.hint = f"{error.hint} The service was deleted: there was no version before it.".strip()
        elif status.version != before:
            _roll_back(client, status, wait_seconds, error, f"The model of version {before} was deployed again.")
        raise
    except (SystemExit, KeyboardInterrupt):
        if not before:
            client.delete(status.name)
        elif status.version != before:
            client.rollback(status.name, wait_seconds)
        raise


def _describe(report: CanaryReport) -> str:
    return (
        f", agreement {_format(report.agreement)}, {report.metric or 'metric'} {_format(report.canary_value)}, "
        f"before {_format(report.stable_value)}"
    )


def _roll_back(
    client: InferenceClient, status: ServiceStatus, wait_seconds: float, error: KfpMindSporeError, outcome: str
) -> None:
    """Roll back after an error, and add the outcome to the hint."""
    try:
        client.rollback(status.name, wait_seconds)
    except KfpMindSporeError as failure:
        outcome = f"The rollback failed: {failure.message}"
    error.hint = f"{error.hint} {outcome}".strip()


def _format(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{fraction:.4f}"


@clean_up_on_sigterm
def rollback_service(
    service_name: str, *, namespace: str = "", version: int = 0, wait_seconds: float = 120
) -> tuple[str, str, int]:
    """Remove a service's canary; without one, deploy the previous version's model again.

    Args:
        service_name: Service name.
        namespace: Service namespace; empty for the step's.
        version: The version to roll back; nothing happens when another one serves. 0 for whichever serves.
        wait_seconds: Seconds to wait until the version before serves.

    Returns:
        The service's HTTP URL, the serving model's directory or URI, and version.

    Raises:
        NotFoundError: The service does not exist.
        UserError: It has neither a canary nor a version before.
        ProcessFailedError: The version before does not start; the service is as before.
    """
    from kfp_mindspore.inference import InferenceClient

    client = InferenceClient(namespace=namespace)
    status = client.get(service_name)
    if version and version != status.version:
        print(f"service {service_name}: version {status.version} serves, not {version}: nothing to roll back")
    else:
        status = client.rollback(service_name, wait_seconds)
    return status.url, status.model, status.version


def smoke_test_service(
    bundle: dsl.Model, url: str, model_name: str, *, sample_count: int, tolerance: float
) -> tuple[str, str, float, int]:
    """Send held-out samples to a service by V1 and V2 and compare the predictions with the bundle's.

    Args:
        bundle: The model bundle that is served.
        url: The service's HTTP URL.
        model_name: Model name in the service's URLs.
        sample_count: Samples to send by each protocol.
        tolerance: Largest absolute difference allowed, for outputs up to 1; in proportion for larger ones.

    Returns:
        One sample's prediction and label, largest absolute difference, sample count.

    Raises:
        ProcessFailedError: A prediction is missing or differs by more than the tolerance.
    """
    from kfp_mindspore.inference import run_smoke_test

    report = run_smoke_test(url, model_name, bundle.path, samples=sample_count, tolerance=tolerance)
    return str(report.prediction), str(report.label), float(report.max_abs_diff), int(report.samples)
