"""`kfp_mindspore.evaluation` metrics as MindSpore metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import ops
from mindspore.train import Metric

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation import get_metric
from kfp_mindspore.evaluation.metrics import METRICS
from kfp_mindspore.evaluation.predictions import build_predictions

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TaskMetric(Metric):  # type: ignore[misc]
    """A metric over all samples in an evaluation, as `evaluate_mindir` computes it.

    Args:
        name: Name of a metric in `kfp_mindspore.evaluation`.
        task: The target's task.
        labels: Class names, or a language model's id texts; () where they are not known.
    """

    def __init__(self, name: str, task: str, labels: Sequence[str] = ()) -> None:
        super().__init__()
        self._name = name
        self._metric = get_metric(name, task)
        self._task = task
        self._labels = labels
        self.clear()

    def clear(self) -> None:
        """Remove an earlier evaluation's samples."""
        self._outputs: list[NDArray[Any]] = []
        self._targets: list[NDArray[Any]] = []

    def update(self, *inputs: Any) -> None:
        """Add the outputs and a batch's target."""
        if len(inputs) == 3 and self._task == "detection":
            # Logits and boxes are one array of scores.
            inputs = (ops.concat(inputs[:2], -1), inputs[2])
        if len(inputs) != 2:
            raise UserError(
                f"metrics.{self._name}: needs one output and one target, got {len(inputs)} arrays",
                hint="Name the output: metrics=('output.metric',).",
            )
        output, target = (value.asnumpy() for value in inputs)
        self._outputs.append(output)
        self._targets.append(target)

    def eval(self) -> float:
        """Return the metric over all samples."""
        outputs, targets = np.concatenate(self._outputs), np.concatenate(self._targets)
        return self._metric(build_predictions(self._task, outputs, targets, labels=self._labels))


def is_task_metric(name: str, task: str) -> bool:
    """Return whether a metric is computed by `kfp_mindspore.evaluation`.

    MindSpore computes a classification's accuracy, which is faster and equal, and what no task defines. Ranking metrics
    need groups, which a batch does not have.
    """
    if task == "ranking" or (name, task) == ("accuracy", "classification"):
        return False
    return name in METRICS and task in METRICS[name].tasks
