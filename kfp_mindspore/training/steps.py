"""The compiled training step and the compiled evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Metric, get_metric_fn

from kfp_mindspore.errors import UserError
from kfp_mindspore.training.data import Validation
from kfp_mindspore.training.diagnosis import explain_computation
from kfp_mindspore.training.distributed import WorkerInfo


class ParallelTrainStep(nn.TrainOneStepCell):  # type: ignore[misc]
    """A data-parallel step: mean gradients, and the mean loss and the sum of the stop flags of all workers.

    The flags are reduced together with the loss, so that all workers stop after the same step on SIGTERM.

    Args:
        network: The network with its loss.
        optimizer: The optimizer.
        size: Number of workers.
    """

    def __init__(self, network: Any, optimizer: Any, size: int) -> None:
        super().__init__(network, optimizer)
        self.grad_reducer = nn.DistributedGradReducer(optimizer.parameters, mean=True, degree=size)
        self.reduce_sum = ops.AllReduce()
        self.share = 1.0 / size

    def construct(self, features, labels, flag):  # type: ignore[no-untyped-def]  # noqa: D102
        loss = self.network(features, labels)
        gradients = self.grad_no_sens(self.network, self.weights)(features, labels)
        loss = ops.depend(loss, self.optimizer(self.grad_reducer(gradients)))
        sums = self.reduce_sum(ops.concat((ops.reshape(loss, (1,)), flag)))
        return sums[0] * self.share, sums[1]


class Trainer:
    """Runs training steps, alone or as one of several workers.

    Args:
        network: The network.
        loss: The loss function, or None when the network returns the loss itself.
        optimizer: The optimizer.
        worker: Rank and number of workers.
    """

    def __init__(self, network: Any, loss: Any, optimizer: Any, worker: WorkerInfo) -> None:
        self._network = network
        with_loss = network if loss is None else nn.WithLossCell(network, loss)
        self._parallel = worker.size > 1
        if self._parallel:
            self.cell = ParallelTrainStep(with_loss, optimizer, worker.size)
        else:
            self.cell = nn.TrainOneStepCell(with_loss, optimizer)
        self.cell.set_train(True)
        self._flags = {flag: Tensor(np.array([flag], np.float32)) for flag in (False, True)}

    def run(self, batch: tuple[Any, ...], stop: bool) -> tuple[Any, bool]:
        """Run one step.

        Args:
            batch: The step's tensors.
            stop: Whether SIGTERM was received by this worker.

        Returns:
            The step's outputs (the loss, of all workers) and whether any worker received SIGTERM.

        Raises:
            UserError: The network cannot be compiled for the batch, or its outputs do not fit the loss.
        """
        try:
            if not self._parallel:
                return self.cell(*batch), stop
            loss, stops = self.cell(*batch, self._flags[stop])
            return loss, float(stops.asnumpy()) > 0
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            explained = explain_computation(error, self._network, batch)
            if explained is None:
                raise
            raise explained from error


class Evaluator:
    """Computes metrics over a validation set.

    Args:
        network: The network.
        loss: The loss function, or None when the network returns the loss itself.
        metrics: MindSpore metrics by name, or names.
        validation: The batches.
    """

    def __init__(self, network: Any, loss: Any, metrics: Any, validation: Validation) -> None:
        self.metrics = resolve_metrics(metrics)
        if loss is None and self.metrics:
            raise UserError("metrics: need loss=…; a network that returns its loss has no outputs to measure")
        self.validation = validation
        self.cell = network if loss is None else nn.WithEvalCell(network, loss)

    def run(self, before: Any = None, after: Any = None) -> tuple[dict[str, Any], float]:
        """Evaluate.

        Args:
            before: Called with each batch before its step, or None.
            after: Called with the outputs after each step, or None.

        Returns:
            The metrics by name, and the mean loss over the samples.
        """
        for metric in self.metrics.values():
            metric.clear()
        total, count = 0.0, 0
        for batch in self.validation.read():
            if before is not None:
                before(batch)
            outputs = self.cell(*batch)
            if after is not None:
                after(outputs)
            loss, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
            for metric in self.metrics.values():
                metric.update(*rest)
            samples = len(batch[0])
            total += float(np.mean(loss.asnumpy())) * samples
            count += samples
        return {name: metric.eval() for name, metric in self.metrics.items()}, total / max(count, 1)


def resolve_metrics(metrics: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """Return metrics by name, from a mapping or from MindSpore's names.

    Raises:
        UserError: A name or an object is not a metric.
    """
    if isinstance(metrics, str):
        metrics = (metrics,)
    if isinstance(metrics, Mapping):
        wrong = [name for name, metric in metrics.items() if not isinstance(metric, Metric)]
        if wrong:
            raise UserError(
                f"metrics.{wrong[0]}: must be a mindspore.train.Metric, got {type(metrics[wrong[0]]).__name__}"
            )
        return dict(metrics)
    found = {}
    for name in sorted(metrics) if isinstance(metrics, (set, frozenset)) else metrics or ():
        try:
            found[name] = get_metric_fn(name)
        except KeyError:
            raise UserError(f"metrics: MindSpore has no metric {name!r}", hint="Such as accuracy, loss, mae.") from None
    return found


def read_learning_rate(optimizer: Any) -> float | list[float] | None:
    """Return the learning rate of the last step; a list for parameter groups; None if the optimizer has none."""
    rates = getattr(optimizer, "learning_rate", None)
    if rates is None:
        return None
    if isinstance(rates, (list, tuple)):
        values = [_read_one(rate, optimizer) for rate in rates]
        return values[0] if len(set(values)) == 1 else values
    return _read_one(rates, optimizer)


def _read_one(rate: Any, optimizer: Any) -> float:
    if isinstance(rate, nn.Cell):
        done = max(int(optimizer.global_step.asnumpy().ravel()[0]) - 1, 0)
        rate = rate(Tensor(np.array([done], np.int32)))
    return float(np.asarray(rate.asnumpy()).ravel()[0])
