"""The steps that create, import, fine-tune and evaluate language models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kfp_mindspore import events
from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.errors import UserError
from kfp_mindspore.files import write_text

if TYPE_CHECKING:
    from kfp import dsl

DATA_FILE = "held_out.jsonl"


class FinetuneOutputs(NamedTuple):
    """finetune_language_model outputs.

    Args:
        perplexity: Of the held-out answers, with the final weights.
        best_epoch: Epoch of the final weights.
        examples: Training examples.
    """

    perplexity: float
    best_epoch: int
    examples: int


class EvaluationOutputs(NamedTuple):
    """evaluate_language_model outputs.

    Args:
        passed: Whether the metric is improved sufficiently.
        metric: Metric name.
        value: Its value.
        base_value: The base model's or TF-IDF's; 0 without a base.
        improvement: Part of the base's perplexity, or the difference of another metric; 0 without a base.
    """

    passed: bool
    metric: str
    value: float
    base_value: float
    improvement: float


def import_model(model: dsl.Model, source: str, given: dsl.Model | None = None) -> None:
    """Write a published model as a bundle.

    Args:
        model: Receives the bundle.
        source: `smollm2`, `rewriter`, a path or a URI; empty for `given`.
        given: An artifact with a Hugging Face directory or a GGUF file.

    Raises:
        UserError: Neither or both are given, or the model is not supported.
        KfpMindSporeError: A graph differs from the full forward pass, or the source's server fails.
    """
    if bool(source) == (given is not None):
        raise UserError("source: give either a name, path or URI, or an artifact, got both or none")
    import_mindspore()
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.lm.bundle.causal import import_source

    with events.span("lm.import"):
        difference = import_source(source if given is None else given.path, Path(model.path))
    model.metadata.update(ModelBundle.open(model.path).signature.metadata, framework="mindspore")
    print(f"verified, graphs differ from the full forward pass by {difference:.1e} of the largest output", flush=True)


def create_model(model: dsl.Model, *, data: str = "", dataset: dsl.Dataset | None = None, **options: Any) -> None:
    """Write an untrained decoder, with a tokenizer trained on examples, as a bundle.

    Args:
        model: Receives the bundle.
        data: `new_testament`, a path or a URI; empty for `dataset`.
        dataset: JSON lines, a file or a directory with one.
        options: Fields of `NetworkOptions`.

    Raises:
        UserError: Neither or both data are given, an option is wrong, or the examples are not usable.
    """
    from kfp_mindspore.lm.options import NetworkOptions

    checked = NetworkOptions(**options)
    source = _choose_source(data, dataset)
    import_mindspore()
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.lm.bundle.creation import create_bundle

    created = create_bundle(source, Path(model.path), checked)
    model.metadata.update(ModelBundle.open(model.path).signature.metadata, framework="mindspore")
    print(f"{created['weights']:,} weights, a vocabulary of {created['vocabulary']} tokens", flush=True)


def finetune_model(
    model: dsl.Model,
    tuned: dsl.Model,
    adapter: dsl.Model,
    held_out_examples: dsl.Dataset,
    metrics: dsl.Metrics,
    curves: dsl.HTML,
    *,
    data: str = "",
    dataset: dsl.Dataset | None = None,
    **options: Any,
) -> FinetuneOutputs:
    """Fine-tune a language model.

    Args:
        model: The base bundle.
        tuned: Receives the tuned bundle, the adapter merged.
        adapter: Receives the adapter in peft's format; an empty directory without one.
        held_out_examples: Receives the examples that were not trained on, a directory with held_out.jsonl.
        metrics: Receives the held-out perplexity and counts.
        curves: Receives the page with the losses by epoch.
        data: `chatterbot`, `rewrites`, a path or a URI; empty for `dataset`.
        dataset: JSON lines, a file or a directory with one.
        options: Fields of `FinetuneOptions`.

    Raises:
        UserError: Neither or both data are given, an option is wrong, or the examples do not fit the model.
    """
    from kfp_mindspore.evaluation.curves import render_curves
    from kfp_mindspore.lm.options import FinetuneOptions

    checked = FinetuneOptions(**options)
    source = _choose_source(data, dataset)
    import_mindspore()
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.lm.tuning.training import finetune

    folder = Path(adapter.path)
    folder.mkdir(parents=True, exist_ok=True)
    result = finetune(
        Path(model.path),
        source,
        Path(tuned.path),
        checked,
        adapter=folder,
        held_out=Path(held_out_examples.path, DATA_FILE),
    )
    for name, value in result.to_dict().items():
        metrics.log_metric(name, value)
    kind = ModelBundle.open(tuned.path).signature.kind
    tuned.metadata.update(framework="mindspore", kind=kind, perplexity=result.perplexity)
    adapter.metadata.update(format="peft", lora_rank=checked.lora_rank)
    held_out_examples.metadata.update(format="jsonl", examples=result.held_out)
    write_text(Path(curves.path), render_curves("Fine-tuning", {"fine-tuning": result.history}))
    print(f"held-out perplexity {result.perplexity:.4g} after epoch {result.best_epoch}, {result.seconds:.0f} s")
    return FinetuneOutputs(result.perplexity, result.best_epoch, result.examples)


def evaluate_examples(
    model: dsl.Model,
    metrics: dsl.Metrics,
    report: dsl.HTML,
    *,
    base: dsl.Model | None = None,
    data: str = "",
    dataset: dsl.Dataset | None = None,
    **options: Any,
) -> EvaluationOutputs:
    """Evaluate a language model beside its base and emit the gate's decision.

    Args:
        model: The bundle.
        metrics: Receives the metrics, those of the base as `base.<metric>`.
        report: Receives the HTML page with the metrics and the answers.
        base: The bundle that it was tuned from; without it an embedding model is compared with TF-IDF, and there is no
            gate for another.
        data: `chatterbot`, `rewrites`, a path or a URI; empty for `dataset`.
        dataset: JSON lines, a file or a directory with one.
        options: Fields of `EvaluationOptions`.

    Raises:
        UserError: Neither or both data are given, an option is wrong, or the examples do not fit the model.
    """
    from kfp_mindspore.lm.options import EvaluationOptions

    checked = EvaluationOptions(**options)
    source = _choose_source(data, dataset)
    import_mindspore()
    from kfp_mindspore.lm.evaluation import BASE, TUNED, evaluate

    with events.span("lm.evaluate"):
        result = evaluate(
            Path(model.path), source, checked, base=None if base is None else Path(base.path), verbose=True
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
            threshold=checked.min_improvement,
            passed=result.passed,
        )
        state = "passed" if result.passed else "not met"
        print(
            f"{metric} {base_value:.6g} -> {value:.6g}, improved by {result.improvement:.4g}, "
            f"threshold {checked.min_improvement:g}: {state}",
            flush=True,
        )
    else:
        print(f"{metric} {value:.6g}", flush=True)
    return EvaluationOutputs(result.passed, metric, value, base_value, result.improvement)


def find_examples(path: Path) -> Path:
    """Return an artifact's file of JSON lines.

    Args:
        path: The file, or a directory with one file whose name ends with .jsonl.

    Raises:
        UserError: A directory has none or several.
    """
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.jsonl"))
    if len(found) != 1:
        raise UserError(f"{path}: must have one file *.jsonl, found {len(found)}")
    return found[0]


def _choose_source(data: str, dataset: dsl.Dataset | None) -> str:
    if bool(data) == (dataset is not None):
        raise UserError("data: give either a name, path or URI, or the input dataset, got both or none")
    return data if dataset is None else str(find_examples(Path(dataset.path)))
