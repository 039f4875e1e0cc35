"""The compiled evaluation, and metrics by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from mindspore.train import Metric, get_metric_fn, names

from kfp_mindspore.errors import UserError, suggest
from kfp_mindspore.evaluation.metrics import METRICS
from kfp_mindspore.mindir.environment import NETWORK_ERRORS
from kfp_mindspore.training.checks.diagnosis import explain_computation
from kfp_mindspore.training.computation.losses import Matcher, NetworkWithLoss
from kfp_mindspore.training.computation.task_metrics import TaskMetric, is_task_metric
from kfp_mindspore.training.distributed import gather_rows, sum_values
from kfp_mindspore.training.samples.data import Validation
from kfp_mindspore.training.workers import watchdog
from kfp_mindspore.training.workers.sampler import get_part


class Evaluator:
    """Computes metrics over a validation set; each worker computes a share.

    The outputs are gathered, so that every metric is computed from all samples and is the same on all workers.

    Args:
        network: The network.
        loss: Loss function with arguments (outputs, *targets[, weight]), or None when the network returns the loss
            itself.
        metrics: MindSpore metrics by name.
        validation: The batches.
        match: Returns a batch with matched targets.
    """

    def __init__(
        self, network: Any, loss: Any, metrics: Mapping[str, Any], validation: Validation, match: Matcher
    ) -> None:
        self._match = match
        self.metrics = metrics
        self.validation = validation
        self._network = network
        layout = validation.layout
        self._targets = layout.targets
        self.cell = network if loss is None else NetworkWithLoss(network, loss, len(layout.inputs), with_outputs=True)

    def run(self, before: Any = None, after: Any = None) -> tuple[dict[str, Any], float]:
        """Evaluate.

        Args:
            before: Called with each batch before the step, or None.
            after: Called with the outputs after each step, or None.

        Returns:
            The metrics by name, and the mean loss over the samples.

        Raises:
            UserError: The network cannot be compiled for the batch, or the outputs do not fit a metric.
        """
        for metric in self.metrics.values():
            metric.clear()
        worker = self.validation.worker
        total, count = 0.0, 0
        for batch in self.validation.read():
            watchdog.mark_progress()
            if before is not None:
                before(batch.tensors)
            outputs = self._compute(batch.tensors)
            if after is not None:
                after(outputs)
            loss, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
            if self.metrics and worker.size > 1:
                rest = [gather_rows(worker, value, batch.samples) for value in rest]
            for name, metric in self.metrics.items():
                self._update(name, metric, rest)
            part = get_part(batch.samples, worker.rank, worker.size)
            total += float(np.mean(loss.asnumpy())) * (part.stop - part.start)
            count += batch.samples
        if worker.size > 1:
            total = float(sum_values(worker, [total])[0])
        return {name: metric.eval() for name, metric in self.metrics.items()}, total / max(count, 1)

    def _compute(self, batch: tuple[Any, ...]) -> Any:
        try:
            return self.cell(*self._match(batch))
        except NETWORK_ERRORS as error:
            explained = explain_computation(error, self._network, self.validation.layout.names, batch)
            if explained is None:
                raise
            raise explained from error

    def _update(self, name: str, metric: Any, rest: Sequence[Any]) -> None:
        outputs, targets = rest[0], rest[1 : 1 + len(self._targets)]
        output, _, _ = name.rpartition(".")
        if output:
            if output not in self._targets:
                raise UserError(f"metrics.{name}: no target {output!r}{suggest(output, self._targets)}")
            index = self._targets.index(output)
            arguments = (outputs[output] if isinstance(outputs, dict) else outputs[index], targets[index])
        else:
            values = outputs.values() if isinstance(outputs, dict) else outputs
            arguments = (*(values if isinstance(outputs, (dict, tuple, list)) else (outputs,)), *targets)
        try:
            metric.update(*arguments)
        except (ValueError, TypeError, RuntimeError) as error:
            shapes = ", ".join(str(tuple(value.shape)) for value in arguments)
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"metrics.{name}: cannot be computed from arrays of {shapes}: {reason}") from error


def resolve_metrics(
    metrics: Mapping[str, Any] | Iterable[str], tasks: Mapping[str, str], labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Return metrics by name, from a mapping or from names in `kfp_mindspore.evaluation` and MindSpore.

    Args:
        metrics: Metrics by name, or names.
        tasks: Task by target; empty where it is not known.
        labels: A dataset's target labels.

    Raises:
        UserError: A name or an object is not a metric.
    """
    if isinstance(metrics, Mapping):
        wrong = [name for name, metric in metrics.items() if not isinstance(metric, Metric)]
        if wrong:
            raise UserError(
                f"metrics.{wrong[0]}: must be a mindspore.train.Metric, got {type(metrics[wrong[0]]).__name__}"
            )
        return dict(metrics)
    found = {}
    for name in sorted(metrics) if isinstance(metrics, (set, frozenset)) else metrics:
        output, _, kind = str(name).rpartition(".")
        task = tasks.get(output, "") if output else next(iter(tasks.values()), "")
        if is_task_metric(kind, task):
            found[name] = TaskMetric(kind, task, labels)
            continue
        try:
            found[name] = get_metric_fn(kind)
        except KeyError:
            raise UserError(f"metrics: unknown {name!r}{suggest(kind, [*METRICS, *names()])}") from None
    return found
