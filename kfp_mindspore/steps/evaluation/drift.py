"""The step that compares a service's requests with its model's training data."""

from __future__ import annotations

import dataclasses
import html
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore import events, files
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError, join_names
from kfp_mindspore.outputs import check_output_file, has_mark

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.mindir.monitoring.monitor import DriftReport
    from kfp_mindspore.mindir.monitoring.options import DriftOptions

_TIMEOUT_SECONDS = 10.0
_DAY_SECONDS = 86400.0


class DriftOutputs(NamedTuple):
    """monitor_drift outputs.

    Args:
        passed: Whether nothing has drifted, and the metric has not fallen; without a gate always.
        drifted: Columns and predictions that have drifted.
        rows: The window's rows.
        metric: The metric by labels; without labels `drifted`.
        value: Its value; without labels how many columns and predictions have drifted.
        fallen: Whether it has fallen.
        retrain: Whether something has drifted or fallen, the version is too old, or there is nothing to decide by.
        reason: Why, in one sentence.
    """

    passed: bool
    drifted: list[str]
    rows: int
    metric: str
    value: float
    fallen: bool
    retrain: bool
    reason: str


def monitor_model(
    metrics: dsl.Metrics,
    report: dsl.HTML,
    *,
    model: dsl.Model | None = None,
    log: str = "",
    labels: str = "",
    service_name: str = "",
    namespace: str = "",
    prometheus: str = "",
    gate: bool = True,
    max_age: float = 0.0,
    options: DriftOptions,
) -> DriftOutputs:
    """Compare a log's window with a bundle's statistics, and emit the gate's decision.

    Without a service of that name, or with neither a log nor an age, the model is to be trained.

    Args:
        metrics: Receives rows, drifted columns, each column's least p-value, and the metric.
        report: Receives the HTML page.
        model: The model bundle; None for the one that the service serves.
        log: A file, a folder or a URI with the log; empty for none.
        labels: A file or a URI with labels by event ID; empty for none.
        service_name: Only this service's events; empty for all.
        namespace: Service namespace; empty for the step's.
        prometheus: A Pushgateway's URL, or a file for node exporter's textfile collector; empty for none.
        gate: Whether a drift or a fallen metric is a gate that is not met.
        max_age: Days since the deployment of the version that serves, from which on a model is to be trained; 0 for no
            limit.
        options: The options.

    Raises:
        UserError: There is neither a bundle nor a service name, the age is negative or has no service, the bundle has
            no statistics, or the log has no rows to compare.
        KfpMindSporeError: The Pushgateway cannot be reached.
    """
    from kfp_mindspore.data.fetch import fetch_source
    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.mindir.monitoring.monitor import detect_drift
    from kfp_mindspore.steps.evaluation.drift_report import render_drift

    if model is None and not service_name:
        raise UserError("monitor_drift: must have model or service_name")
    if not max_age >= 0 or (max_age and not service_name):
        raise UserError(f"max_age: must be 0, or a number of days above 0 with service_name, got {max_age:g}")
    if not log and not max_age:
        return _skip_comparison(metrics, report, "there is no log to compare")
    location, age, is_old = "" if model is None else model.path, "", False
    if max_age or model is None:
        try:
            status = InferenceClient(namespace=namespace).get(service_name)
        except NotFoundError:
            return _skip_comparison(metrics, report, f"service {service_name}: does not exist")
        location = location or status.model
        days = (time.time() - status.created) / _DAY_SECONDS
        is_old = 0 < max_age <= days
        age = f"version {status.version} is {days:.3g} days old, max_age is {max_age:g}"
    if not log:
        return _skip_comparison(metrics, report, f"service {service_name}: {age}", retrain=is_old)
    with fetch_source(location) as bundle:
        found = detect_drift(bundle, log, options, labels=labels, service=service_name)
    found = dataclasses.replace(found, model=location)
    Path(report.path).write_text(render_drift(found), encoding="utf-8")
    publish_metrics(found, service_name or Path(location).name, prometheus)
    metrics.log_metric("rows", found.rows)
    metrics.log_metric("drifted", len(found.drifted))
    for test in sorted(found.tests, key=lambda test: -test.adjusted):
        # The last one of a column's tests has the least p-value.
        metrics.log_metric(f"p.{test.column}", test.adjusted)
    if found.metric is not None:
        metrics.log_metric(found.metric.name, found.metric.value)
    if gate:
        events.emit("gate", "drift", metric="drift", value=len(found.drifted), threshold=0, passed=found.passed)
    outcome = describe_report(found) + (f"; {age}" if is_old else "")
    print(outcome, flush=True)
    name, value = (
        (found.metric.name, found.metric.value) if found.metric is not None else ("drifted", float(len(found.drifted)))
    )
    fallen = found.metric is not None and found.metric.fallen
    passed = found.passed or not gate
    retrain = is_old or not found.passed
    return DriftOutputs(passed, list(found.drifted), found.rows, name, value, fallen, retrain, outcome)


def _skip_comparison(metrics: dsl.Metrics, report: dsl.HTML, reason: str, *, retrain: bool = True) -> DriftOutputs:
    page = f"<!doctype html><meta charset=utf-8><title>Drift</title><h1>Not compared: {html.escape(reason)}</h1>\n"
    Path(report.path).write_text(page, encoding="utf-8")
    metrics.log_metric("rows", 0)
    print(f"not compared: {reason}", flush=True)
    return DriftOutputs(True, [], 0, "drifted", 0.0, False, retrain, reason)


def describe_report(report: DriftReport) -> str:
    """Return a report's outcome as one line."""
    text = f"{report.rows} rows: {f'drift in {join_names(report.drifted)}' if report.drifted else 'no drift'}"
    if (metric := report.metric) is not None:
        text += f"; {metric.name} {metric.value:.4f}, 95 % interval {metric.low:.4f} to {metric.high:.4f}"
        if metric.reference is not None:
            text += f", {'fallen from' if metric.fallen else 'at the export'} {metric.reference:.4f}"
    return text


def publish_metrics(report: DriftReport, name: str, target: str) -> None:
    """Write a report's numbers for Prometheus.

    Args:
        report: The report.
        name: The service's or the model's name, a label.
        target: A Pushgateway's URL, to which the group `job="kfp_mindspore_drift"` is pushed, or a file, which is
            replaced; empty for none.

    Raises:
        UserError: The URL refuses them, or the file cannot be written.
        KfpMindSporeError: The URL cannot be reached.
    """
    from kfp_mindspore.steps.evaluation.drift_report import render_prometheus

    if not target:
        return
    text = render_prometheus(report, name)
    if "://" not in target:
        check_output_file(Path(target), "earlier numbers", lambda file: has_mark(file, "kfp_mindspore_drift_"))
        try:
            files.write_text(Path(target), text)
        except OSError as error:
            raise UserError(f"prometheus: {target} cannot be written ({error.strerror or error})") from None
        return
    url = f"{target.rstrip('/')}/metrics/job/kfp_mindspore_drift/service/{urllib.parse.quote(name, safe='')}"
    try:
        request = urllib.request.Request(url, text.encode(), {"Content-Type": "text/plain"}, method="PUT")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        reason = error.read(200).decode(errors="replace").strip()
        raise UserError(f"prometheus: {url} answered {error.code} {reason}") from None
    except (OSError, ValueError) as error:
        raise KfpMindSporeError(f"prometheus: {url} cannot be reached ({error})") from None
