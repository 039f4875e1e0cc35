"""The test of a canary: against its bundle, and against the service on the same requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import GateNotMetError, ProcessFailedError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference import rest
from kfp_mindspore.inference.predict import predict_v2
from kfp_mindspore.inference.service import ServiceStatus
from kfp_mindspore.inference.smoke import TOLERANCE, SmokeReport, list_specs, read_samples, run_smoke_test

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CanaryReport:
    """The result of a canary's test.

    Args:
        smoke: Comparison of the canary with its bundle.
        agreement: Fraction of the samples with the same prediction of service and canary; None when the service does
            not accept the requests, such as a model with other inputs.
        stable_accuracy: Fraction of correct predictions of the service; None without labels or predictions.
        canary_accuracy: The same of the canary.
    """

    smoke: SmokeReport
    agreement: float | None = None
    stable_accuracy: float | None = None
    canary_accuracy: float | None = None


def run_canary_test(
    status: ServiceStatus,
    bundle_dir: Path | str,
    *,
    tolerance: float = TOLERANCE,
    max_accuracy_drop: float = 0.0,
    timeout: float = 60.0,
) -> CanaryReport:
    """Compare a canary with its bundle, and with the service on the same samples; send them also through the splitter.

    Args:
        status: The service; it has a canary.
        bundle_dir: The bundle of the canary.
        tolerance: Largest absolute difference from the bundle's verified outputs.
        max_accuracy_drop: Largest decrease of the accuracy on the bundle's labelled samples, 0 to 1.
        timeout: Timeout of each request in seconds.

    Raises:
        UserError: The bundle is damaged or has no samples.
        ProcessFailedError: A prediction of the canary is missing or differs, or the splitter does not respond.
        GateNotMetError: The canary is less accurate than the service.
    """
    assert status.canary is not None
    bundle = ModelBundle.open(bundle_dir)
    verified = read_samples(bundle)
    specs = list_specs(verified.outputs)
    count = len(verified)
    smoke = run_smoke_test(
        status.canary.url, status.name, bundle.path, samples=count, tolerance=tolerance, timeout=timeout
    )
    for kind in ("inputs", "instances"):
        # An empty request reaches a server, which refuses it: 400 instead of the splitter's 5xx.
        try:
            rest.request_json("POST", status.canary.traffic_url, {kind: []}, timeout=timeout)
        except rest.RequestError as error:
            if error.status != 400:
                raise ProcessFailedError(f"traffic splitter of service {status.name}: {error.message}") from error
    try:
        stable = predict_v2(status.url, status.name, verified.inputs, specs[:1], timeout)
    except rest.RequestError as error:
        if not 400 <= error.status < 500 and error.status != 200:
            raise ProcessFailedError(f"service {status.name}: {error.message}") from error
        return CanaryReport(smoke)
    found = _classify(stable[specs[0].name])
    wanted = _classify(verified.outputs[specs[0].name])
    # The smoke test showed that the canary's outputs are the verified ones.
    agreement = float((found == wanted).mean()) if found.shape == wanted.shape else 0.0
    labels = verified.labels
    if labels is None or found.shape != labels.shape or wanted.shape != labels.shape:
        return CanaryReport(smoke, agreement)
    report = CanaryReport(smoke, agreement, float((found == labels).mean()), float((wanted == labels).mean()))
    assert report.canary_accuracy is not None
    assert report.stable_accuracy is not None
    if report.canary_accuracy < report.stable_accuracy - max_accuracy_drop:
        raise GateNotMetError(
            f"canary of service {status.name}: accuracy {report.canary_accuracy:.4f} on {count} samples, the service "
            f"has {report.stable_accuracy:.4f}",
            hint=f"Allowed is a decrease of {max_accuracy_drop:g} (max_accuracy_drop).",
        )
    return report


def _classify(outputs: NDArray[Any]) -> NDArray[Any]:
    """Return one prediction per sample: the index of the largest score, or the values themselves."""
    is_scores = outputs.dtype != object and outputs.ndim == 2 and outputs.shape[1] > 1
    return outputs.argmax(axis=1) if is_scores else outputs
