"""A canary's test: against the bundle, and against the service on the same requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import GateNotMetError, ProcessFailedError, UserError
from kfp_mindspore.formats.bundle import CAUSAL_KIND, ModelBundle, VerifiedSamples
from kfp_mindspore.inference import rest
from kfp_mindspore.inference.language_smoke import answer_prompt, read_prompts
from kfp_mindspore.inference.predict import predict_parts, predict_v2
from kfp_mindspore.inference.service import CanaryStatus, ServiceStatus
from kfp_mindspore.inference.smoke import (
    TOLERANCE,
    SmokeReport,
    get_max_rows,
    list_specs,
    read_example_requests,
    run_smoke_test,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CanaryReport:
    """A canary test's result.

    Args:
        smoke: The canary's comparison with the bundle.
        agreement: Fraction of samples with the same prediction from service and canary; None for numbers, and when the
            service does not accept the requests, such as a model with other inputs.
        metric: The bundle task's default metric; empty without a task.
        stable_value: The service metric; None without targets or predictions.
        canary_value: The same for the canary.
    """

    smoke: SmokeReport
    agreement: float | None = None
    metric: str = ""
    stable_value: float | None = None
    canary_value: float | None = None


def run_canary_test(
    status: ServiceStatus,
    bundle_dir: Path | str,
    *,
    tolerance: float = TOLERANCE,
    max_worsening: float = 0.0,
    timeout: float = 60.0,
) -> CanaryReport:
    """Compare a canary with the bundle, and with the service on the same samples; send them also through the splitter.

    Args:
        status: The service; it has a canary.
        bundle_dir: The canary's bundle.
        tolerance: Largest absolute difference from the bundle's verified outputs.
        max_worsening: Largest worsening allowed in the task's default metric on the bundle's samples, in metric units.
        timeout: Timeout for each request in seconds.

    Raises:
        UserError: The bundle is damaged or has no samples.
        ProcessFailedError: A canary prediction is missing or differs, or the splitter does not respond.
        GateNotMetError: The canary metric is worse than the service's.
    """
    assert status.canary is not None
    bundle = ModelBundle.open(bundle_dir)
    if bundle.signature.is_language_model:
        return _test_language_model(status, status.canary, bundle, tolerance, timeout)
    verified = read_example_requests(bundle)
    specs = list_specs(verified.outputs)
    count = len(verified)
    smoke = run_smoke_test(
        status.canary.url, status.name, bundle.path, samples=count, tolerance=tolerance, timeout=timeout
    )
    for kind in ("inputs", "instances"):
        _check_splitter(status.name, status.canary, {kind: []}, timeout)
    try:
        stable = predict_parts(
            lambda part: predict_v2(status.url, status.name, part, specs[:1], timeout, bundle.signature.rows),
            verified.inputs,
            get_max_rows(bundle),
        )
    except rest.ServiceRequestError as error:
        if not 400 <= error.status < 500 and error.status != 200:
            raise ProcessFailedError(f"service {status.name}: {error.message}") from error
        return CanaryReport(smoke)
    name = specs[0].name
    # The smoke test showed that the canary's outputs are the verified ones.
    report = _compare(bundle, verified, smoke, stable[name], verified.outputs[name])
    _check_worsening(status.name, report, count, max_worsening)
    return report


def _test_language_model(
    status: ServiceStatus, canary: CanaryStatus, bundle: ModelBundle, tolerance: float, timeout: float
) -> CanaryReport:
    prompts, kind, path = read_prompts(bundle), bundle.signature.kind, status.other_openai_path
    smoke = run_smoke_test(
        *(canary.url, status.name, bundle.path),
        samples=len(prompts),
        tolerance=tolerance,
        timeout=timeout,
        openai_path=path,
    )
    for field in ("messages", "prompt") if kind == CAUSAL_KIND else ("input",):
        _check_splitter(status.name, canary, {"model": status.name, field: []}, timeout, is_other=bool(path))
    try:
        pairs = [
            [answer_prompt(url, status.name, kind, prompt, timeout, path).text for url in (status.url, canary.url)]
            for prompt in prompts
        ]
    except rest.ServiceRequestError as error:
        if not 400 <= error.status < 500 and error.status != 200:
            raise ProcessFailedError(f"service {status.name}: {error.message}") from error
        return CanaryReport(smoke)
    return CanaryReport(smoke, sum(one == other for one, other in pairs) / len(pairs))


def _check_splitter(
    name: str, canary: CanaryStatus, body: dict[str, Any], timeout: float, *, is_other: bool = False
) -> None:
    # An empty request reaches a server, which refuses it: 400 instead of the splitter's 5xx. Another may take it.
    try:
        rest.request_json("POST", canary.traffic_url, body, timeout=timeout)
    except rest.ServiceRequestError as error:
        if not (is_other and 400 <= error.status < 500) and error.status != 400:
            raise ProcessFailedError(f"traffic splitter of service {name}: {error.message}") from error


def _compare(
    bundle: ModelBundle,
    verified: VerifiedSamples,
    smoke: SmokeReport,
    stable: NDArray[Any],
    canary: NDArray[Any],
) -> CanaryReport:
    from kfp_mindspore.evaluation import get_metric
    from kfp_mindspore.evaluation.predictions import build_predictions, decode_scores

    task, labels = bundle.signature.task, bundle.signature.labels
    if task in ("", "none") or canary.dtype == object:
        return CanaryReport(smoke, float((stable == canary).mean()) if stable.shape == canary.shape else 0.0)
    pairs = zip(decode_scores(task, stable, labels), decode_scores(task, canary, labels), strict=True)
    is_number = task in ("regression", "ranking")
    agreement = None if is_number else sum(one == other for one, other in pairs) / len(verified)
    metric = get_metric("", task)
    if verified.labels is None:
        return CanaryReport(smoke, agreement, metric.name)
    try:
        before, after = (
            metric(
                build_predictions(
                    task, scores, verified.labels, weight=verified.weight, groups=verified.groups, labels=labels
                )
            )
            for scores in (stable, canary)
        )
    except UserError:
        # The service has other classes, or the metric is not defined for these samples, such as NDCG with one class.
        return CanaryReport(smoke, agreement, metric.name)
    return CanaryReport(smoke, agreement, metric.name, before, after)


def _check_worsening(name: str, report: CanaryReport, count: int, max_worsening: float) -> None:
    from kfp_mindspore.evaluation import get_metric

    if report.stable_value is None or report.canary_value is None:
        return
    worsening = report.stable_value - report.canary_value
    if not get_metric(report.metric).higher_is_better:
        worsening = -worsening
    if worsening > max_worsening:
        raise GateNotMetError(
            f"canary of service {name}: {report.metric} {report.canary_value:.4f} on {count} samples, the service "
            f"has {report.stable_value:.4f}",
            hint=f"Allowed is a worsening of {max_worsening:g} (max_worsening).",
        )
