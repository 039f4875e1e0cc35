"""The step that trains a dual encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.errors import UserError
from kfp_mindspore.files import write_text

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.vision.options import ContrastiveOptions


class ContrastiveOutputs(NamedTuple):
    """finetune_dual_encoder outputs.

    Args:
        accuracy: Fraction of held-out pictures whose caption is the most similar of all held-out captions.
        recall_at_5: Fraction of held-out captions with an own picture among the five most similar held-out ones.
        examples: Training pairs.
    """

    accuracy: float
    recall_at_5: float
    examples: int


def finetune_towers(
    model: dsl.Model,
    tuned: dsl.Model,
    metrics: dsl.Metrics,
    curves: dsl.HTML,
    options: ContrastiveOptions,
    *,
    data: str = "",
    dataset: dsl.Dataset | None = None,
) -> ContrastiveOutputs:
    """Train two towers on pictures with captions.

    Args:
        model: The base bundle.
        tuned: Receives the trained bundle.
        metrics: Receives the held-out loss, accuracy and recall, and counts.
        curves: Receives the page with the losses by epoch.
        options: The options.
        data: `drawings`, a path or a URI; empty for `dataset`.
        dataset: An artifact with pictures and captions.

    Raises:
        UserError: Neither or both data are given, or the pairs do not fit the model.
    """
    from kfp_mindspore.evaluation.curves import render_curves

    if bool(data) == (dataset is not None):
        raise UserError("data: give either a name, path or URI, or the input dataset, got both or none")
    import_mindspore()
    from kfp_mindspore.formats.bundle import DUAL_KIND
    from kfp_mindspore.vision import training

    source = data if dataset is None else str(dataset.path)
    result = training.finetune(Path(model.path), source, Path(tuned.path), options)
    for name, value in result.to_dict().items():
        metrics.log_metric(name, value)
    tuned.metadata.update(framework="mindspore", kind=DUAL_KIND, accuracy=result.accuracy)
    write_text(Path(curves.path), render_curves("Contrastive training", {"training": result.history}))
    print(f"accuracy {result.accuracy:.3f}, recall at 5 {result.recall_at_5:.3f}, {result.seconds:.0f} s", flush=True)
    return ContrastiveOutputs(result.accuracy, result.recall_at_5, result.examples)
