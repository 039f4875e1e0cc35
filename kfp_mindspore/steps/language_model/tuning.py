"""The step that fine-tunes a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.files import write_text
from kfp_mindspore.steps.language_model.examples import choose_source

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.lm.options import FinetuneOptions

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


def finetune_model(
    model: dsl.Model,
    tuned: dsl.Model,
    adapter: dsl.Model,
    held_out_examples: dsl.Dataset,
    metrics: dsl.Metrics,
    curves: dsl.HTML,
    options: FinetuneOptions,
    *,
    data: str = "",
    dataset: dsl.Dataset | None = None,
) -> FinetuneOutputs:
    """Fine-tune a language model.

    Args:
        model: The base bundle.
        tuned: Receives the tuned bundle, the adapter merged.
        adapter: Receives the adapter in peft's format; an empty directory without one.
        held_out_examples: Receives the examples that were not trained on, a directory with held_out.jsonl.
        metrics: Receives the held-out perplexity and counts.
        curves: Receives the page with the losses by epoch.
        options: The options.
        data: `chatterbot`, `rewrites`, a path or a URI; empty for `dataset`.
        dataset: JSON lines, a file or a directory with one.

    Raises:
        UserError: Neither or both data are given, or the examples do not fit the model.
    """
    from kfp_mindspore.evaluation.curves import render_curves

    source = choose_source(data, dataset)
    import_mindspore()
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.lm.tuning.training import finetune

    folder = Path(adapter.path)
    folder.mkdir(parents=True, exist_ok=True)
    result = finetune(
        Path(model.path),
        source,
        Path(tuned.path),
        options,
        adapter=folder,
        held_out=Path(held_out_examples.path, DATA_FILE),
    )
    for name, value in result.to_dict().items():
        metrics.log_metric(name, value)
    kind = ModelBundle.open(tuned.path).signature.kind
    tuned.metadata.update(framework="mindspore", kind=kind, perplexity=result.perplexity)
    adapter.metadata.update(format="peft", lora_rank=options.lora_rank)
    held_out_examples.metadata.update(format="jsonl", examples=result.held_out)
    write_text(Path(curves.path), render_curves("Fine-tuning", {"fine-tuning": result.history}))
    print(f"held-out perplexity {result.perplexity:.4g} after epoch {result.best_epoch}, {result.seconds:.0f} s")
    return FinetuneOutputs(result.perplexity, result.best_epoch, result.examples)
