"""Component that compares a service's logged requests with its model's training data."""

from typing import List, NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def monitor_drift(
    metrics: Output[Metrics],
    report: Output[HTML],
    model: Input[Model] = None,
    log: str = "",
    window: str = "",
    labels: str = "",
    service_name: str = "",
    namespace: str = "",
    significance: float = 0.05,
    effect: float = 0.1,
    metric: str = "",
    margin: float = 0.0,
    reference: str = "",
    prometheus: str = "",
    gate: bool = True,
    max_age: float = 0.0,
) -> NamedTuple(
    "Outputs",
    [
        ("passed", bool),
        ("drifted", List[str]),
        ("rows", int),
        ("metric", str),
        ("value", float),
        ("fallen", bool),
        ("retrain", bool),
        ("reason", str),
    ],
):
    """Compare a service's logged requests and predictions with its model's training data.

    The model bundle has the training data's statistics. Numbers have the Kolmogorov-Smirnov test, categories the
    chi-squared test, missing values, unseen categories and values out of range Fisher's exact test, with Holm's
    correction for all columns; texts, images and lists are compared by properties such as their length. The step
    succeeds whether or not a column has drifted: `passed` is the gate. `retrain` is for a branch (`dsl.If`): it is true
    too where the version that serves is older than `max_age`, and where there is nothing to decide by: without a
    service, or with neither a log nor `max_age`. Disable caching for this step
    (`task.set_caching_options(False)`), so that each run reads the log.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        metrics: Rows, drifted columns, each column's least corrected p-value, and the metric.
        report: HTML page with tests and distributions.
        model: The model bundle; default the one that the service serves.
        log: URI, file or folder with CloudEvents, or with the objects of KServe's agent; default none.
        window: The log's last part, to compare: a row count such as `1000`, or a duration such as `24h`; default all.
        labels: URI or file, CSV or JSON lines with `id`, an event's ID, and `label`; default none.
        service_name: Only events of this InferenceService; default all.
        namespace: Service namespace; default the step's.
        significance: Greatest probability of a false alarm, for all columns together.
        effect: Least population stability index of a drift. Usual are 0.1 for a moderate and 0.25 for a large one.
        metric: Metric to compute from labels; default the task's.
        margin: How much worse than at the export the metric may be, in metric units.
        reference: Dataset directory or URI to compare with in place of the bundle's statistics; default these.
        prometheus: URL of a Pushgateway for the numbers; default none.
        gate: Whether a drift or a fallen metric is a gate that is not met; false in a pipeline that then retrains.
        max_age: Days since the serving version's deployment from which on `retrain` is true; default no limit.

    Returns:
        passed: Whether nothing has drifted, and the metric has not fallen; without `gate` always.
        drifted: Columns and predictions that have drifted.
        rows: Rows compared.
        metric: Name of the metric by labels; without labels `drifted`.
        value: Its value; without labels how many columns and predictions have drifted.
        fallen: Whether its bootstrap interval lies below the export's, or above for errors, by more than the margin.
        retrain: Whether a column has drifted, the metric has fallen, the version is too old, or nothing can be decided.
        reason: Why, in one sentence.
    """
    from kfp_mindspore.mindir.monitoring.options import DriftOptions
    from kfp_mindspore.steps.evaluation.drift import monitor_model

    options = DriftOptions(
        window=window, significance=significance, effect=effect, metric=metric, margin=margin, reference=reference
    )
    return monitor_model(
        metrics,
        report,
        model=model,
        log=log,
        labels=labels,
        service_name=service_name,
        namespace=namespace,
        prometheus=prometheus,
        gate=gate,
        max_age=max_age,
        options=options,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(monitor_drift, package_path=__file__.replace(".py", ".yaml"))
