"""The step that evaluates a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore import events
from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.files import write_text
from kfp_mindspore.steps.language_model.examples import choose_source

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.lm.options import EvaluationOptions


class EvaluationOutputs(NamedTuple):
    """evaluate_language_model outputs.

    Args:
        passed: Whether the metric is improved sufficiently.
        metric: Metric name.
        value: Metric value.
        base_value: The base model's or TF-IDF's; 0 without a base.
        improvement: Part of the base's perplexity, or the difference of another metric; 0 without a base.
    """

    passed: bool
    metric: str
    value: float
    base_value: float
    improvement: float


def evaluate_examples(
    model: dsl.Model,
    metrics: dsl.Metrics,
    report: dsl.HTML,
    options: EvaluationOptions,
    *,
    base: dsl.Model | None = None,
    data: str = "",
    dataset: dsl.Dataset | None = None,
) -> EvaluationOutputs:
    """Evaluate a language model beside the base and emit the gate's decision.

    Args:
        model: The bundle.
        metrics: Receives the metrics, the base's as `base.<metric>`.
        report: Receives the HTML page with the metrics and the answers.
        options: The options.
        base: The bundle that it was tuned from; without it an embedding model is compared with TF-IDF, and there is no
            gate for another.
        data: `chatterbot`, `rewrites`, a path or a URI; empty for `dataset`.
        dataset: JSON lines, a file or a directory with one.

    Raises:
        UserError: Neither or both data are given, or the examples do not fit the model.
    """
    source = choose_source(data, dataset)
    import_mindspore()
    from kfp_mindspore.lm.evaluation import BASE, TUNED, evaluate

    with events.span("lm.evaluate"):
        result = evaluate(
            Path(model.path), source, options, base=None if base is None else Path(base.path), verbose=True
        )
    for name, value in result.scores[TUNED].items():
        metrics.log_metric(name, value)
    for name, value in result.scores.get(BASE, {}).items():
        metrics.log_metric(f"base.{name}", value)
    metrics.log_metric("improvement", result.improvement)
    write_text(Path(report.path), result.render())
    metric = result.options.metric
    value, base_value = result.scores[TUNED][metric], result.scores.get(BASE, {}).get(metric, 0.0)
    if BASE in result.scores:
        events.emit(
            "gate",
            metric,
            metric=f"improvement of {metric}",
            value=result.improvement,
            threshold=options.min_improvement,
            passed=result.passed,
        )
        state = "passed" if result.passed else "not met"
        print(
            f"{metric} {base_value:.6g} -> {value:.6g}, improved by {result.improvement:.4g}, "
            f"threshold {options.min_improvement:g}: {state}",
            flush=True,
        )
    else:
        print(f"{metric} {value:.6g}", flush=True)
    return EvaluationOutputs(result.passed, metric, value, base_value, result.improvement)
