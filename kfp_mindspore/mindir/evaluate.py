"""Bundle evaluation on a dataset split, by the dataset task's metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.data.preprocessing import find_tokenizers
from kfp_mindspore.data.samples import GROUP, Samples, build_samples, read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation import get_metric
from kfp_mindspore.evaluation.metrics import compute_metrics
from kfp_mindspore.evaluation.predictions import Predictions, build_predictions
from kfp_mindspore.formats.bundle import DETECTOR_KIND, TRANSFORM_FILE, ModelBundle
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.mindir.baselines import TASKS, compute_baselines
from kfp_mindspore.mindir.devices import use_device
from kfp_mindspore.settings import AUTO
from kfp_mindspore.transform.images import read_shown_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A language model's scores are reduced to losses after so many samples: (256, 64, 1000) float64 are 131 MB.
_TOKEN_ROWS = 256


@dataclass(frozen=True)
class Evaluation:
    """A model's evaluation result.

    Args:
        task: The dataset's task.
        metric: The primary metric's name.
        metrics: All the task's metrics by name; NaN where one is not defined for these samples.
        labels: Class names, for classification and multi_label; a language model's id texts, where known.
        predictions: The predictions, with each sample's loss.
        baselines: The metrics of baselines on the same samples, by the baseline's name.
    """

    task: str
    metric: str
    metrics: Mapping[str, float]
    labels: tuple[str, ...]
    predictions: Predictions
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        """The baseline with the best primary metric; empty without baselines."""
        metric = get_metric(self.metric)
        known = {name: found[self.metric] for name, found in self.baselines.items()}
        known = {name: value for name, value in known.items() if not math.isnan(value)}
        if not known:
            return ""
        return max(known, key=lambda name: known[name] if metric.higher_is_better else -known[name])

    @property
    def value(self) -> float:
        """The primary metric."""
        return self.metrics[self.metric]

    @property
    def count(self) -> int:
        """Sample count."""
        return len(self.predictions)

    def to_dict(self) -> dict[str, Any]:
        """Return task, metrics, labels and sample count as JSON types, with None in place of NaN."""
        metrics = {name: None if math.isnan(value) else value for name, value in self.metrics.items()}
        return {
            "task": self.task,
            "metric": self.metric,
            "value": metrics[self.metric],
            "metrics": metrics,
            "labels": list(self.labels),
            "count": self.count,
        }


def evaluate_bundle(
    bundle_dir: Path | str,
    dataset_dir: Path | str,
    *,
    split: str = "test",
    metric: str = "",
    key: bytes | None = None,
    device: str = AUTO,
    device_id: int | None = None,
) -> Evaluation:
    """Compute a split's metrics with the exported graph itself.

    The graph's first output holds the scores, see `kfp_mindspore.evaluation.predictions.build_predictions`; a
    detector's two outputs do, logits and boxes.

    Args:
        bundle_dir: A bundle whose inputs are the samples' inputs.
        dataset_dir: A dataset directory with a target.
        split: Split name.
        metric: The primary metric's name; default the task's.
        key: An encrypted model's key.
        device: See `kfp_mindspore.mindir.devices.DeviceOptions`.
        device_id: Likewise.

    Raises:
        UserError: The device is not there, bundle or dataset is missing or damaged, they do not fit together, or the
            metric is not defined.
        MissingExtraError: MindSpore is not installed.
    """
    dataset = Dataset.open(dataset_dir)
    get_metric(metric, dataset.task)
    bundle = ModelBundle.open(bundle_dir)
    use_device(device, device_id)
    samples = read_model_samples(bundle, dataset, split)
    inputs = select_inputs(bundle, samples)
    import numpy as np

    from kfp_mindspore.mindir.graph.encryption import require_key
    from kfp_mindspore.mindir.graph.runner import GraphRunner

    names = [spec.name for spec in bundle.signature.outputs[: 2 if dataset.task == "detection" else 1]]
    rows = _TOKEN_ROWS if dataset.task == "language_model" else len(samples)
    parts = []
    with GraphRunner(bundle, warm=(), key=require_key(bundle, key)) as runner, events.span("mindir.evaluate"):
        for start in range(0, len(samples), rows):
            part = slice(start, start + rows)
            outputs = runner.predict({field: array[part] for field, array in inputs.items()})
            scores = outputs[names[0]]
            if dataset.task == "detection":
                sizes = read_sizes(samples.raw, bundle.signature.kind == DETECTOR_KIND)[part]
                scores = np.concatenate([scores, outputs[names[1]] / np.tile(sizes, 2)[:, None]], -1)
            parts.append(predict_task(dataset, samples, scores, part, subject=str(bundle.path)))
    return summarize(dataset, Predictions.concatenate(parts), metric)


def add_baselines(evaluation: Evaluation, dataset: Dataset, split: str) -> Evaluation:
    """Return an evaluation with the metrics of the dataset's baselines on the same split.

    Args:
        evaluation: The evaluation.
        dataset: The evaluated dataset; the baselines get the inputs by the dataset's own preprocessing.
        split: The evaluated split.
    """
    if evaluation.task not in TASKS or "train" not in dataset.splits:
        return evaluation
    with events.span("mindir.baselines"):
        train, held_out = (read_samples(dataset, name) for name in ("train", split))
        texts = {name: step.unit for name, step in find_tokenizers(dataset.preprocessing, train.raw).items()}
        found = compute_baselines(evaluation.task, train, held_out, labels=dataset.labels, texts=texts)
    return replace(
        evaluation,
        baselines={
            name: summarize(dataset, predictions, evaluation.metric).metrics for name, predictions in found.items()
        },
    )


def read_model_samples(bundle: ModelBundle, dataset: Dataset, split: str) -> Samples:
    """Read a split after the preprocessing that the bundle declares, else after the dataset's.

    A table's columns are selected and ordered by the names that the bundle has.

    Raises:
        UserError: There is no such split, or the columns do not fit the preprocessing.
    """
    return read_samples(dataset, split, **_get_preprocessing(bundle, dataset))


def open_model_samples(
    bundle: ModelBundle, dataset: Dataset, split: str
) -> Callable[[NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return a function that returns the graph's inputs for samples by index, as `read_model_samples` reads them.

    It reads Parquet shards by blocks; a split in another storage is read now.

    Raises:
        UserError: There is no such split, or the columns do not fit the preprocessing or the bundle.
    """
    if dataset.storage == "parquet":
        reader, options = dataset.open_shards(split), _get_preprocessing(bundle, dataset)
        return lambda indexes: select_inputs(bundle, build_samples(dataset, reader.take(indexes), **options))
    inputs = select_inputs(bundle, read_model_samples(bundle, dataset, split))
    return lambda indexes: {name: array[indexes] for name, array in inputs.items()}


def _get_preprocessing(bundle: ModelBundle, dataset: Dataset) -> dict[str, Any]:
    declaration = bundle.read_preprocessing()
    pre = declaration if declaration.get("pre") else None
    # A model without preprocessing has its layout for raw columns, not for the dataset's preprocessed ones.
    # A transform's layout is for its own inputs, which are not the graph's.
    is_code = TRANSFORM_FILE in bundle.signature.files or bool(bundle.signature.transform)
    layout = bundle.signature.rows if pre or not (dataset.preprocessing.get("pre") or is_code) else None
    return {"preprocessing": pre, "layout": layout}


def select_inputs(bundle: ModelBundle, samples: Samples) -> dict[str, NDArray[Any]]:
    """Return the graph's inputs: the samples' inputs with the same names; a single input may have another name.

    Raises:
        UserError: The samples have no input with that name.
    """
    names = [spec.name for spec in bundle.signature.inputs]
    if len(names) == len(samples.inputs) == 1:
        return dict(zip(names, samples.inputs.values(), strict=True))
    missing = [name for name in names if name not in samples.inputs]
    if missing:
        raise UserError(
            f"{bundle.path}: needs the inputs {', '.join(names)}, the dataset has {', '.join(samples.inputs)}",
            hint="Evaluate with the dataset that the model was trained with, or name its columns as the inputs.",
        )
    return {name: samples.inputs[name] for name in names}


def read_sizes(raw: Mapping[str, NDArray[Any]], in_pixels: bool) -> NDArray[np.float32]:
    """Return the width and height, (N, 2), that a detector's boxes are divided by: ones for boxes without pixels."""
    import numpy as np

    files = next((array for array in raw.values() if array.dtype == object), None)
    if files is None or not in_pixels:
        return np.ones((len(next(iter(raw.values()))), 2), np.float32)
    return np.array([read_shown_size(content)[::-1] for content in files], np.float32)


def predict_task(
    dataset: Dataset, samples: Samples, scores: NDArray[Any], part: slice = slice(None), *, subject: str
) -> Predictions:
    """Return predictions for the dataset's task from scores.

    Args:
        dataset: The dataset.
        samples: The dataset's samples.
        scores: Some samples' scores.
        part: The samples that have the scores.
        subject: The scores' origin in messages.

    Raises:
        UserError: Scores and samples do not fit together, or the dataset has no target.
    """
    if samples.target is None:
        raise UserError(f"{dataset.path}: has no target to evaluate predictions with")
    groups = samples.ids.get(GROUP)
    try:
        return build_predictions(
            dataset.task,
            scores,
            samples.target[part],
            weight=None if samples.weight is None else samples.weight[part],
            groups=None if groups is None else groups[part],
            labels=dataset.labels,
        )
    except UserError as error:
        raise UserError(f"{subject} on {dataset.path}: {error.message}", hint=error.hint) from None


def summarize(dataset: Dataset, predictions: Predictions, metric: str = "") -> Evaluation:
    """Evaluate predictions for a dataset.

    Raises:
        UserError: The metric is not defined for the task or these samples.
    """
    primary = get_metric(metric, dataset.task)
    metrics = compute_metrics(predictions)
    if primary.name not in metrics or math.isnan(metrics[primary.name]):
        metrics[primary.name] = primary(predictions)
    classes = 0 if predictions.probabilities is None else predictions.probabilities.shape[1]
    labels = dataset.labels
    if dataset.task not in ("language_model", "detection") and len(labels) != classes:
        labels = tuple(str(index) for index in range(classes))
    return Evaluation(dataset.task, primary.name, metrics, labels, predictions)


def get_score_name(signature: Signature, outputs: Mapping[str, NDArray[Any]]) -> str:
    """Return the output name with the scores: the graph's first, else the first numeric one.

    Raises:
        UserError: No output is numeric.
    """
    first = signature.outputs[0].name
    numeric = [name for name, array in outputs.items() if array.dtype.kind in "fiub"]
    if not numeric:
        raise UserError(f"outputs {', '.join(outputs) or 'none'}: none has scores")
    return first if first in numeric else numeric[0]
