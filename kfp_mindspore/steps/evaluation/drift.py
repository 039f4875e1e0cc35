"""The step that compares a service's requests with its model's training data."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore import events, files
from kfp_mindspore.errors import KfpMindSporeError, UserError, join_names
from kfp_mindspore.outputs import check_output_file, has_mark

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.mindir.monitoring.monitor import DriftReport
    from kfp_mindspore.mindir.monitoring.options import DriftOptions

_TIMEOUT_SECONDS = 10.0


class DriftOutputs(NamedTuple):
    """monitor_drift outputs.

    Args:
        passed: Whether nothing has drifted, and the metric has not fallen.
        drifted: Columns and predictions that have drifted.
        rows: The window's rows.
        metric: The metric by labels; without labels `drifted`.
        value: Its value; without labels how many columns and predictions have drifted.
        fallen: Whether it has fallen.
    """

    passed: bool
    drifted: list[str]
    rows: int
    metric: str
    value: float
    fallen: bool


def monitor_model(
    model: dsl.Model,
    metrics: dsl.Metrics,
    report: dsl.HTML,
    *,
    log: str,
    labels: str = "",
    service_name: str = "",
    prometheus: str = "",
    options: DriftOptions,
) -> DriftOutputs:
    """Compare a log's window with a bundle's statistics, and emit the gate's decision.

    Args:
        model: The model bundle.
        metrics: Receives rows, drifted columns, each column's least p-value, and the metric.
        report: Receives the HTML page.
        log: A file, a folder or a URI with the log.
        labels: A file or a URI with labels by event ID; empty for none.
        service_name: Only this service's events; empty for all.
        prometheus: A Pushgateway's URL, or a file for node exporter's textfile collector; empty for none.
        options: The options.

    Raises:
        UserError: The bundle has no statistics, or the log has no rows to compare.
        KfpMindSporeError: The Pushgateway cannot be reached.
    """
    from kfp_mindspore.mindir.monitoring.monitor import detect_drift
    from kfp_mindspore.steps.evaluation.drift_report import render_drift

    found = detect_drift(model.path, log, options, labels=labels, service=service_name)
    Path(report.path).write_text(render_drift(found), encoding="utf-8")
    publish_metrics(found, service_name or Path(model.path).name, prometheus)
    metrics.log_metric("rows", found.rows)
    metrics.log_metric("drifted", len(found.drifted))
    for test in sorted(found.tests, key=lambda test: -test.adjusted):
        # The last one of a column's tests has the least p-value.
        metrics.log_metric(f"p.{test.column}", test.adjusted)
    if found.metric is not None:
        metrics.log_metric(found.metric.name, found.metric.value)
    events.emit("gate", "drift", metric="drift", value=len(found.drifted), threshold=0, passed=found.passed)
    print(describe_report(found), flush=True)
    name, value = (
        (found.metric.name, found.metric.value) if found.metric is not None else ("drifted", float(len(found.drifted)))
    )
    fallen = found.metric is not None and found.metric.fallen
    return DriftOutputs(found.passed, list(found.drifted), found.rows, name, value, fallen)


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
