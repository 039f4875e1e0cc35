"""The step that computes a model bundle's predictions for a dataset shard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore import events

if TYPE_CHECKING:
    from kfp import dsl


def predict_batch(
    bundle: dsl.Model,
    dataset: dsl.Dataset,
    predictions: dsl.Dataset,
    *,
    split: str = "test",
    shard: str = "1/1",
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

    Returns:
        How many samples the shard has.

    Raises:
        UserError: The shard is no such pair, or bundle and dataset do not fit together.
    """
    import numpy as np

    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.data.split import parse_shard
    from kfp_mindspore.evaluation.predictions import decode_scores
    from kfp_mindspore.formats.bundle import MODEL_FILE, ModelBundle
    from kfp_mindspore.formats.dataset import Dataset
    from kfp_mindspore.mindir import GraphRunner
    from kfp_mindspore.mindir.evaluate import read_model_samples, select_inputs

    number, count = parse_shard(shard)
    opened = ModelBundle.open(bundle.path)
    signature = opened.signature
    data = Dataset.open(dataset.path)
    inputs = select_inputs(opened, read_model_samples(opened, data, split))
    indexes = np.arange(number - 1, data.splits[split], count)
    file = Path(predictions.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    outputs, decoded = {}, []
    if len(indexes):
        import_mindspore()
        with GraphRunner(opened, warm=()) as runner, events.span("mindir.predict"):
            outputs = runner.predict({name: array[indexes] for name, array in inputs.items()})
        decoded = decode_scores(signature.task or data.task, outputs[signature.outputs[0].name], signature.labels)
    with file.open("w", encoding="utf-8") as stream:
        for row, index in enumerate(indexes.tolist()):
            line = {"index": index, "outputs": {name: array[row].tolist() for name, array in outputs.items()}}
            if decoded[row] is not None:
                line["prediction"] = decoded[row]
            stream.write(json.dumps(line) + "\n")
    predictions.metadata.update(
        format="jsonl",
        split=split,
        shard=number,
        shards=count,
        samples=len(indexes),
        model_sha256=signature.files[MODEL_FILE]["sha256"],
    )
    return len(indexes)
