"""The training data's statistics in a bundle, with which later requests and predictions are compared."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.data.preprocessing import find_tokenizers
from kfp_mindspore.data.samples import Samples, build_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation import get_metric
from kfp_mindspore.evaluation.comparison import estimate_metric
from kfp_mindspore.evaluation.drift import summarize_values
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.rows import RowLayout
from kfp_mindspore.formats.tensors import list_mismatches
from kfp_mindspore.mindir.evaluate import get_score_name, predict_task
from kfp_mindspore.mindir.graph.runner import ModelRunner
from kfp_mindspore.mindir.monitoring.measures import (
    MAX_WIDTH,
    UNKNOWN,
    VALUE,
    measure_column,
    measure_predictions,
    resolve_kind,
    split_columns,
)
from kfp_mindspore.mindir.monitoring.reference import VERSION
from kfp_mindspore.transform.categories import find_refused
from kfp_mindspore.transform.declaration import build_pipeline
from kfp_mindspore.transform.load import load_transform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.transform.categories import Tokenize

    Arrays = Mapping[str, NDArray[Any]]

_logger = logging.getLogger(__name__)

MAX_COLUMNS = 512
_ROWS = 20_000
# Decoding takes milliseconds an image.
_IMAGES = 1_000
_PREDICTED = 1_000


def compute_statistics(
    bundle: ModelBundle, dataset: Dataset, *, key: bytes | None = None, allow_code: bool = False
) -> dict[str, Any]:
    """Return the statistics of a bundle's training data as JSON types, at most some kilobytes a column.

    Columns come from up to 20,000 training rows. Predictions, the metric and the rate of unknown words come from up to
    1,000 test rows: a model is surer of its training samples and knows their words.

    Args:
        bundle: The bundle; its signature needs the files that the model runs with.
        dataset: The dataset that it was trained with.
        key: An encrypted model's key.
        allow_code: Whether the bundle's `transform.py` may be run.

    Returns:
        The statistics, without predictions where the dataset has no test split; {} where it has no training split, or
        where its columns are not what requests have.
    """
    transform = load_transform(bundle, allow_code=allow_code)
    specs = bundle.signature.free_batch(bundle.signature.inputs) if transform is None else transform.inputs
    # Without preprocessing requests have the graph's inputs, which the dataset's own preprocessing may have made.
    is_raw = transform is not None and transform.preprocesses
    layout = bundle.signature.rows

    def read(split: str, count: int) -> tuple[Samples | None, dict[str, NDArray[Any]]]:
        if not dataset.splits.get(split):
            return None, {}
        stored = read_spread(dataset, split, count)
        samples = build_samples(dataset, stored, preprocessing={} if is_raw else None, layout=layout)
        arrays = samples.raw if is_raw else samples.inputs
        return samples, dict(zip([specs[0].name], arrays.values(), strict=True)) if len(arrays) == len(
            specs
        ) == 1 else arrays

    train, columns = read("train", _ROWS)
    held_out, later = read("test", _PREDICTED)
    if train is None or list_mismatches(specs, columns, ragged=True):
        return {}
    declaration = bundle.read_preprocessing()
    stacked = _list_stacked(columns, layout)
    tokenizers = find_tokenizers(declaration, columns) if is_raw else {}
    columns, split = split_columns(columns, stacked), split_columns(later, stacked)
    found: dict[str, Any] = {
        "version": VERSION,
        "dataset": dataset.name,
        "rows": len(train),
        "inputs": [spec.name for spec in specs],
        "stacked": stacked,
        "left_out": list(columns)[MAX_COLUMNS:],
        "columns": {
            name: _describe_column(columns[name], split.get(name), tokenizers.get(name))
            for name in list(columns)[:MAX_COLUMNS]
        },
    }
    _add_missing(found["columns"], dataset, layout)
    if held_out is None or dataset.task in ("language_model", "detection"):
        return found
    refused = find_refused(build_pipeline(declaration), later) if declaration else np.zeros(len(held_out), bool)
    if refused.all():
        return found
    try:
        with ModelRunner(bundle, key=key, allow_code=allow_code) as runner:
            outputs = runner.predict({name: array[~refused] for name, array in later.items()})
        measured = measure_predictions(outputs, bundle.signature.task, bundle.signature.labels)
        found["predictions"] = {name: summarize_values(values) for name, values in measured.items()}
        found |= _describe_metric(bundle, dataset, held_out, outputs, ~refused)
    except UserError as error:
        # An export needs no samples that a transform accepts, nor outputs that are the task's scores.
        _logger.warning("the statistics have no metric of held-out samples: %s", error.message)
    return found


def read_spread(dataset: Dataset, split: str, count: int) -> dict[str, NDArray[Any]]:
    """Return the stored columns for at most `count` rows that are spread over a split.

    The first rows alone may come from one day or class.
    """
    rows = dataset.splits[split]
    places = np.linspace(0, rows - 1, min(rows, count)).astype(np.int64)
    if dataset.storage == "parquet":
        return dict(dataset.open_shards(split).take(places))
    return {name: array[places] for name, array in dataset.read_columns(split).items()}


def _describe_column(values: Any, later: Any, tokenizer: Tokenize | None) -> dict[str, Any]:
    """Return a column's kind and summaries.

    Args:
        values: The training's.
        later: Held-out ones, which have words that the training has not; None without.
        tokenizer: The step that splits the texts, or None.
    """
    array = values if isinstance(values, np.ndarray) else np.asarray(values)
    kind = resolve_kind(array, tokenizer)
    measures = measure_column(kind, array[:_IMAGES] if kind == "image" else array, tokenizer)
    if UNKNOWN in measures and later is not None:
        measures[UNKNOWN] = measure_column(kind, later, tokenizer)[UNKNOWN]
    return {"kind": kind, "measures": {name: summarize_values(found) for name, found in measures.items()}}


def _add_missing(columns: Mapping[str, dict[str, Any]], dataset: Dataset, layout: RowLayout | None) -> None:
    """Add the load's counts of missing values, and the numbers by which they were filled in."""
    total = sum(dataset.splits.values()) + int(dataset.report.get("dropped", 0))
    for name, count in dataset.report.get("missing", {}).items():
        if name in columns and VALUE in columns[name]["measures"]:
            columns[name]["measures"][VALUE] |= {"missing": int(count), "rows": total}
    for one in () if layout is None else layout.inputs:
        for name, number in zip(one.columns, one.fill, strict=False):
            if name in columns:
                columns[name]["fill"] = number


def _describe_metric(
    bundle: ModelBundle, dataset: Dataset, samples: Samples, outputs: Arrays, kept: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return the served outputs' metric with its bootstrap interval; {} without a target."""
    if samples.target is None or dataset.task == "none":
        return {}
    groups = {name: array[kept] for name, array in samples.ids.items()}
    weight = None if samples.weight is None else samples.weight[kept]
    samples = dataclasses.replace(samples, target=samples.target[kept], weight=weight, ids=groups)
    score = get_score_name(bundle.signature, outputs)
    predictions = predict_task(dataset, samples, outputs[score], subject="the model")
    metric = get_metric("", dataset.task)
    value, low, high = estimate_metric(metric, predictions)
    described = {"name": metric.name, "value": value, "low": low, "high": high, "samples": len(predictions)}
    return {"output": score, "metric": described}


def _list_stacked(raw: Arrays, layout: RowLayout | None) -> dict[str, list[str]]:
    """Return the column names by input, for inputs that hold a number for each column."""
    known = {} if layout is None else {one.name: list(one.columns) for one in layout.inputs if one.stacked}
    for name, array in raw.items():
        if name not in known and array.ndim == 2 and array.shape[1] <= MAX_WIDTH:
            known[name] = [f"{name}[{index}]" for index in range(array.shape[1])]
    return {name: columns for name, columns in known.items() if name in raw}
