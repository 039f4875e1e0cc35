"""The step that computes a model bundle's predictions for a dataset shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.errors import UserError, ValidationError

if TYPE_CHECKING:
    from kfp import dsl
    from numpy.typing import NDArray

    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.formats.dataset import Dataset


def predict_batch(
    bundle: dsl.Model,
    dataset: dsl.Dataset,
    predictions: dsl.Dataset,
    *,
    split: str = "test",
    shard: str = "1/1",
    engine: str = "memory",
) -> int:
    """Write the predictions for one split shard as JSON lines.

    Shard "k/n" has every n-th sample from the k-th on; the shards "1/n" to "n/n" together have each sample once.

    Args:
        bundle: The model bundle.
        dataset: The dataset directory.
        predictions: Output file: {"index", "outputs": {name: values}, "prediction"} per line. The prediction is the
            class, the labels, the number or the ids by task, and absent for a task without one.
        split: The dataset's split.
        shard: The shard and the shard count: "2/4" for the second shard out of four.
        engine: `memory` for one process, or `ray` for Ray's workers.

    Returns:
        How many samples the shard has.

    Raises:
        UserError: The shard is no such pair, or bundle and dataset do not fit together.
    """
    import numpy as np

    from kfp_mindspore.data.options import ENGINES
    from kfp_mindspore.data.split import parse_shard
    from kfp_mindspore.formats.bundle import MODEL_FILE, ModelBundle
    from kfp_mindspore.formats.dataset import Dataset

    number, count = parse_shard(shard)
    if engine not in ENGINES:
        raise ValidationError([f"engine: must be one of {', '.join(ENGINES)}, got {engine!r}"], subject="batch_predict")
    opened = ModelBundle.open(bundle.path)
    data = Dataset.open(dataset.path)
    if split not in data.splits:
        raise UserError(f"{data.path}: no split {split!r}, found {', '.join(data.splits)}")
    indexes = np.arange(number - 1, data.splits[split], count)
    file = Path(predictions.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines: Iterable[str] = ()
    if engine == "ray" and len(indexes):
        from kfp_mindspore.ray import predict_rows

        lines = predict_rows(bundle.path, dataset.path, split, indexes)
    elif len(indexes):
        lines = _compute_lines(opened, data, split, indexes)
    with file.open("w", encoding="utf-8") as stream, events.span("mindir.predict"):
        stream.writelines(line + "\n" for line in lines)
    predictions.metadata.update(
        format="jsonl",
        split=split,
        shard=number,
        shards=count,
        samples=len(indexes),
        model_sha256=opened.signature.files[MODEL_FILE]["sha256"],
    )
    return len(indexes)


def _compute_lines(bundle: ModelBundle, dataset: Dataset, split: str, indexes: NDArray[Any]) -> Iterator[str]:
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.evaluation.predictions import decode_scores, render_lines
    from kfp_mindspore.mindir import GraphRunner
    from kfp_mindspore.mindir.evaluate import open_model_samples

    inputs = open_model_samples(bundle, dataset, split)(indexes)
    import_mindspore()
    with GraphRunner(bundle, warm=()) as runner:
        outputs = runner.predict(inputs)
    signature = bundle.signature
    decoded = decode_scores(signature.task or dataset.task, outputs[signature.outputs[0].name], signature.labels)
    yield from render_lines(indexes.tolist(), outputs, decoded)
