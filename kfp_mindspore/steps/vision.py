"""Steps of vision models: published ones as bundles, and indexes of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kfp_mindspore import events
from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.files import write_text

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.vision.index_options import IndexOptions


class IndexOutputs(NamedTuple):
    """index_pictures outputs.

    Args:
        passed: Whether recall_at_5 is above the words' by enough; True without captions.
        pictures: Indexed pictures.
        recall_at_5: The model's; 0 without captions.
        words_recall_at_5: The search by words alone; 0 without captions.
    """

    passed: bool
    pictures: int
    recall_at_5: float
    words_recall_at_5: float


def import_vision_model(model: dsl.Model, source: str) -> None:
    """Write a published model as a bundle.

    Args:
        model: Receives the bundle.
        source: Path or URI of a Hugging Face directory.

    Raises:
        UserError: The model is not supported.
        KfpMindSporeError: A graph differs from the network, or the source's server fails.
    """
    import_mindspore()
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.vision.bundle import import_source

    with events.span("vision.import"):
        difference = import_source(source, Path(model.path))
    model.metadata.update(ModelBundle.open(model.path).signature.metadata, framework="mindspore")
    print(f"verified, graphs differ from the networks by {difference:.1e} of the largest output", flush=True)


def index_folder(
    model: dsl.Model,
    index: dsl.Dataset,
    metrics: dsl.Metrics,
    report: dsl.HTML,
    options: IndexOptions,
    *,
    source: str,
    captions: str = "",
) -> IndexOutputs:
    """Embed a folder's pictures, search for captions and emit the gate's decision.

    Args:
        model: A `dual-encoder` bundle.
        index: Receives the Parquet file.
        metrics: Receives the metrics, the words' as `words.<metric>`.
        report: Receives the HTML page.
        options: The options.
        source: The pictures' folder or URI.
        captions: Path or URI of JSON lines; empty for no gate.

    Raises:
        UserError: The model is another one, or there is no picture.
        ValidationError: A caption's line is invalid.
    """
    import_mindspore()
    from kfp_mindspore.lm.options import RECALL
    from kfp_mindspore.vision.search import PictureEncoder, evaluate_captions, index_pictures, render_page

    encoder = PictureEncoder(Path(model.path))
    with events.span("vision.index"):
        found = index_pictures(source, encoder, options)
        evaluation = evaluate_captions(found, encoder, captions) if captions else None
    found.write(Path(index.path))
    index.metadata.update(pictures=len(found.ids), skipped=len(found.skipped))
    for name, reason in found.skipped.items():
        print(f"left out: {name}: {reason}", flush=True)
    examples = evaluation.examples if evaluation else ()
    write_text(Path(report.path), render_page(f"Pictures of {source}", examples, evaluation, found.skipped))
    print(f"{len(found.ids)} pictures, {len(found.skipped)} left out", flush=True)
    if evaluation is None:
        return IndexOutputs(True, len(found.ids), 0.0, 0.0)
    for name, value in evaluation.scores["model"].items():
        metrics.log_metric(name, value)
        metrics.log_metric(f"words.{name}", evaluation.scores["words"][name])
    value, words = (evaluation.scores[which][RECALL] for which in ("model", "words"))
    passed = evaluation.improvement >= options.min_improvement
    events.emit(
        "gate",
        RECALL,
        metric=f"improvement of {RECALL}",
        value=evaluation.improvement,
        threshold=options.min_improvement,
        passed=passed,
    )
    state = "passed" if passed else "not met"
    print(f"{RECALL} {value:.4g}, by words {words:.4g}, threshold {options.min_improvement:g}: {state}", flush=True)
    return IndexOutputs(passed, len(found.ids), value, words)
