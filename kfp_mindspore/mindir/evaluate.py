"""Evaluation of a classifier's bundle on a split of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.data.samples import read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.dataset import Dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Evaluation:
    """Result of the evaluation of a classifier.

    Args:
        accuracy: Share of samples whose predicted class is the true one, 0 to 1.
        confusion: int64 of shape (K, K): rows true classes, columns predicted ones.
        labels: K class names.
        count: Number of samples.
        predictions: Predicted class indexes, int32 of shape (count,).
    """

    accuracy: float
    confusion: NDArray[np.int64]
    labels: tuple[str, ...]
    count: int
    predictions: NDArray[np.int32]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "accuracy": self.accuracy,
            "confusion": self.confusion.tolist(),
            "labels": list(self.labels),
            "count": self.count,
            "predictions": self.predictions.tolist(),
        }


def evaluate_bundle(
    bundle_dir: Path | str, dataset_dir: Path | str, *, split: str = "test", key: bytes | None = None
) -> Evaluation:
    """Compute a classifier's accuracy and confusion matrix with the exported graph itself.

    Args:
        bundle_dir: A bundle with one input; its first output, of shape (N, K), holds a score a class.
        dataset_dir: A dataset directory.
        split: Name of the split.
        key: Key of an encrypted model.

    Raises:
        UserError: Bundle or dataset is missing or damaged, or they do not fit together.
        MissingExtraError: MindSpore is not installed.
    """
    import numpy as np

    from kfp_mindspore.mindir.encryption import require_key
    from kfp_mindspore.mindir.runner import GraphRunner

    bundle = ModelBundle.open(bundle_dir)
    key = require_key(bundle, key)
    dataset = Dataset.open(dataset_dir)
    signature = bundle.signature
    if len(signature.inputs) != 1 or len(signature.outputs[0].shape) != 2:
        raise UserError(
            f"{bundle.path}: evaluation needs one input and scores of shape (N, K), got inputs "
            f"{[spec.name for spec in signature.inputs]} and output shape {signature.outputs[0].shape}"
        )
    samples = read_samples(dataset, split)
    (features,), targets = samples.inputs.values(), samples.target
    if targets is None:
        raise UserError(f"{dataset.path}: has no target column, evaluation needs the true classes")
    with GraphRunner(bundle, warm=(), key=key) as runner, events.span("mindir.evaluate"):
        outputs = runner.predict({signature.inputs[0].name: features})
        scores = outputs[signature.outputs[0].name]
    classes = scores.shape[1]
    if int(targets.max()) >= classes:
        raise UserError(f"{bundle.path}: gives scores for {classes} classes, {dataset.path} has {len(dataset.labels)}")
    predictions = scores.argmax(axis=1).astype(np.int32)
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (targets, predictions), 1)
    names = dataset.labels if len(dataset.labels) == classes else tuple(str(index) for index in range(classes))
    return Evaluation(
        accuracy=float((predictions == targets).mean()),
        confusion=confusion,
        labels=names,
        count=len(targets),
        predictions=predictions,
    )
