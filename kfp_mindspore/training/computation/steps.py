"""The compiled training step: gradients, their accumulation and clipping, the optimizer, and averaged weights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mindspore import ParameterTuple, Tensor, amp, nn, ops, set_auto_parallel_context
from mindspore import dtype as mstype

from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.environment import NETWORK_ERRORS
from kfp_mindspore.training.checks.diagnosis import explain_computation
from kfp_mindspore.training.computation.losses import Matcher
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo, sum_values
from kfp_mindspore.training.samples.data import Batch
from kfp_mindspore.training.workers.sampler import get_part

_FIRST_SCALE = 2.0**16
_SCALE_WINDOW = 1000


@dataclass(frozen=True)
class StepState:
    """Step parameters beside network and optimizer, which a checkpoint contains too.

    Args:
        average: The optimizer parameters' moving averages, or None.
        scaler: Loss scale for float16, or None.
    """

    average: Any = None
    scaler: Any = None

    @property
    def parameters(self) -> list[Any]:
        """All parameters."""
        scaler = [] if self.scaler is None else [self.scaler.scale_value, self.scaler.counter]
        return [*(self.average or ()), *scaler]


class Update(nn.Cell):  # type: ignore[misc]
    """Applies gradients: clips them, runs the optimizer, and averages the weights.

    Args:
        optimizer: The optimizer.
        trained: Whether each optimizer parameter is trained; the others have zero gradients.
        config: The options.
        state: Further parameters.
    """

    def __init__(self, optimizer: Any, trained: Sequence[bool], config: TrainingConfig, state: StepState) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.trained = tuple(trained)
        self.has_frozen = not all(trained)
        self.clip_norm = config.clip_norm
        self.clip_value = config.clip_value
        self.scaler = state.scaler
        self.average = state.average
        self.decay = config.ema

    def construct(self, gradients):  # type: ignore[no-untyped-def]  # noqa: D102
        if self.scaler is not None:
            gradients = self.scaler.unscale(gradients)
            finite = amp.all_finite(gradients)
            self.scaler.adjust(finite)
            if finite:
                self.step(gradients)  # type: ignore[no-untyped-call]
            return finite
        return self.step(gradients)  # type: ignore[no-untyped-call]

    def step(self, gradients):  # type: ignore[no-untyped-def]
        """Clip the trained parameters' gradients, and run the optimizer."""
        if self.clip_value is not None:
            gradients = ops.clip_by_value(gradients, -self.clip_value, self.clip_value)
        if self.clip_norm is not None:
            gradients = ops.clip_by_global_norm(gradients, self.clip_norm)
        if self.has_frozen:
            complete: Any = ()
            position = 0
            for index in range(len(self.trained)):
                if self.trained[index]:
                    complete = (*complete, gradients[position])
                    position = position + 1
                else:
                    complete = (*complete, ops.zeros_like(self.weights[index]))
            gradients = complete
        done = self.optimizer(gradients)
        if self.average is not None:
            for index in range(len(self.trained)):
                old, new = self.average[index], self.weights[index]
                ops.assign(old, self.decay * old + (1.0 - self.decay) * new)
        return done


class Gradients(nn.Cell):  # type: ignore[misc]
    """Computes a batch's loss and the trained parameters' gradients.

    Args:
        network: The network with the loss.
        weights: The trained parameters.
        scaler: Loss scale for float16, or None.
    """

    def __init__(self, network: Any, weights: Any, scaler: Any) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_grad()
        self.weights = weights
        self.scaler = scaler
        self.plain = ops.GradOperation(get_by_list=True)
        self.scaled = ops.GradOperation(get_by_list=True, sens_param=True)

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        loss = self.network(*batch)
        if self.scaler is None:
            return loss, self.plain(self.network, self.weights)(*batch)
        scale = ops.ones_like(loss) * self.scaler.scale_value
        return loss, self.scaled(self.network, self.weights)(*batch, scale)

    def weigh(self, batch, share):  # type: ignore[no-untyped-def]
        """Return loss and gradients multiplied by `share`, shape ()."""
        loss = self.network(*batch)
        scale = ops.ones_like(loss) * share
        if self.scaler is not None:
            scale = scale * self.scaler.scale_value
        return loss * share, self.scaled(self.network, self.weights)(*batch, scale)


class TrainStep(nn.Cell):  # type: ignore[misc]
    """One optimizer step by a single worker on a whole batch.

    Args:
        gradients: Computes loss and gradients.
        update: Applies them.
    """

    def __init__(self, gradients: Gradients, update: Update) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = gradients
        self.update = update

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        loss, gradients = self.gradients(*batch)
        return ops.depend(loss, self.update(gradients))


class PieceStep(nn.Cell):  # type: ignore[misc]
    """Loss and gradients for a piece of a batch, multiplied by its share of the batch's samples.

    The gradients are one vector, which is added and reduced in one operation: with one AllReduce per gradient a LeNet-5
    step on two workers took a third longer (MindSpore 2.9 on CPU).

    Args:
        gradients: Computes loss and gradients.
    """

    def __init__(self, gradients: Gradients) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = gradients

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        loss, gradients = self.gradients.weigh(batch[:-1], batch[-1])  # type: ignore[no-untyped-call]
        flat: Any = ()
        for index in range(len(gradients)):
            flat = (*flat, ops.cast(ops.reshape(gradients[index], (-1,)), mstype.float32))
        return loss, ops.concat(flat)


class ApplyStep(nn.Cell):  # type: ignore[misc]
    """Sums the gradients and a status vector over the workers, and applies the gradients.

    Args:
        update: Applies gradients.
        weights: The trained parameters.
        size: Worker count.
    """

    def __init__(self, update: Update, weights: Any, size: int) -> None:
        super().__init__(auto_prefix=False)
        self.update = update
        self.shapes = tuple(weight.shape for weight in weights)
        self.types = tuple(weight.dtype for weight in weights)
        self.ends = tuple(np.cumsum([weight.size for weight in weights]).tolist())
        self.is_parallel = size > 1
        if self.is_parallel:
            self.reduce_sum = ops.AllReduce()

    def construct(self, flat, status):  # type: ignore[no-untyped-def]  # noqa: D102
        values = ops.concat((flat, status))
        if self.is_parallel:
            values = self.reduce_sum(values)
        gradients: Any = ()
        begin = 0
        for index in range(len(self.shapes)):
            gradient = ops.reshape(values[begin : self.ends[index]], self.shapes[index])
            gradients = (*gradients, ops.cast(gradient, self.types[index]))
            begin = self.ends[index]
        return ops.depend(values[begin:], self.update(gradients))


class Trainer:
    """Runs training steps, alone or as one of several workers.

    Attributes:
        cell: A step's cell, for callbacks.
        state: Parameters beside network and optimizer parameters.
        rank_seconds: Step seconds by rank since `clear_seconds`, without waiting for the other workers.
        timed_steps: How many steps these are; steps that compile are not counted.

    Args:
        network: The network, for messages.
        with_loss: The network with the loss.
        optimizer: The optimizer.
        config: The options.
        worker: Rank and world size.
        names: A batch's tensor names, for messages.
        match: Returns a batch with matched targets.
    """

    def __init__(
        self,
        network: Any,
        with_loss: Any,
        optimizer: Any,
        config: TrainingConfig,
        worker: WorkerInfo,
        names: Sequence[str],
        match: Matcher,
    ) -> None:
        self._match = match
        self._network = network
        self._with_loss = with_loss
        self._optimizer = optimizer
        self._config = config
        self._worker = worker
        self._names = tuple(names)
        self._pieces = config.accumulate * worker.pieces
        self._shares: dict[float, Any] = {}
        self._apply: Any = None
        # Batch sizes for which the step is compiled; equal on all workers.
        self._compiled: set[int] = set()
        self._frozen: frozenset[str] | None = None
        self.cell: Any = None
        average = optimizer.parameters.clone(prefix="ema", init="same") if config.ema else None
        is_half = config.precision == "float16" and config.train_step is None
        self.state = StepState(average, amp.DynamicLossScaler(_FIRST_SCALE, 2, _SCALE_WINDOW) if is_half else None)
        self._own = config.train_step is not None
        self.clear_seconds()
        if config.train_step is not None:
            if worker.size > 1:
                # MindSpore's TrainOneStepCell reduces its gradients in this mode.
                set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
            self.cell = config.train_step(with_loss, optimizer)
            if not isinstance(self.cell, nn.Cell):
                raise UserError(f"train_step: must return a mindspore.nn.Cell, got {type(self.cell).__name__}")
            self.cell.set_train(True)

    def set_frozen(self, names: frozenset[str]) -> None:
        """Train all optimizer parameters but these; a different set compiles another step."""
        if self._own or names == self._frozen:
            return
        self._frozen = names
        optimizer = self._optimizer
        trained = [weight.name not in names for weight in optimizer.parameters]
        weights = ParameterTuple(
            [weight for weight, is_trained in zip(optimizer.parameters, trained, strict=True) if is_trained]
        )
        gradients = Gradients(self._with_loss, weights, self.state.scaler)
        update = Update(optimizer, trained, self._config, self.state)
        self._compiled.clear()
        if self._worker.size == 1 and self._pieces == 1:
            self.cell = TrainStep(gradients, update)
        else:
            self.cell = PieceStep(gradients)
            self._apply = ApplyStep(update, weights, self._worker.size)
            self._apply.set_train(True)
            self._no_gradient = Tensor(np.zeros(sum(weight.size for weight in weights), np.float32))
        self.cell.set_train(True)

    def set_train(self, training: bool) -> None:
        """Set the network's mode: training, or evaluation for Dropout and BatchNorm."""
        self._with_loss.set_train(training)
        if self.cell is not None:
            self.cell.set_train(training)

    def run(self, batch: Batch, stop: bool, begun: float) -> tuple[Any, bool]:
        """Run one step.

        Args:
            batch: This worker's share of the step's batch.
            stop: Whether SIGTERM was received by this worker.
            begun: time.perf_counter() when this worker began to prepare the step.

        Returns:
            The step's outputs (the loss, over all workers) and whether any worker received SIGTERM.

        Raises:
            UserError: The network cannot be compiled for the batch, or the outputs do not fit the loss.
        """
        try:
            batch = replace(batch, tensors=self._match(batch.tensors))
            if self._own:
                return self._run_own(batch, stop)
            if self._apply is None:
                return self.cell(*batch.tensors), stop
            return self._run_pieces(batch, stop, begun)
        except NETWORK_ERRORS as error:
            explained = explain_computation(error, self._network, self._names, batch.tensors)
            if explained is None:
                raise
            raise explained from error

    def clear_seconds(self) -> None:
        """Set `rank_seconds` and `timed_steps` to 0."""
        self.rank_seconds = np.zeros(self._worker.size)
        self.timed_steps = 0

    @property
    def mean_rank_seconds(self) -> list[float]:
        """Mean step seconds by rank since `clear_seconds`; empty where none were measured."""
        return (self.rank_seconds / self.timed_steps).tolist() if self.timed_steps else []

    def read_average(self) -> dict[str, Any]:
        """Return the averaged weights by the optimizer's parameter names; empty without averaging."""
        if self.state.average is None:
            return {}
        return {
            weight.name: average for weight, average in zip(self._optimizer.parameters, self.state.average, strict=True)
        }

    def load_average(self) -> None:
        """Set the network's weights to the averaged ones, if there are any."""
        averages = self.read_average()
        for weight in self._optimizer.parameters if averages else ():
            weight.set_data(Tensor(averages[weight.name].asnumpy().copy()))

    @contextlib.contextmanager
    def use_average(self) -> Iterator[None]:
        """Set the network's weights to the averaged ones for the block."""
        weights = self._optimizer.parameters if self.state.average is not None else ()
        kept = [Tensor(weight.asnumpy().copy()) for weight in weights]
        self.load_average()
        try:
            yield
        finally:
            for weight, value in zip(weights, kept, strict=True):
                weight.set_data(value)

    def _run_own(self, batch: Batch, stop: bool) -> tuple[Any, bool]:
        """Run the user's step, which reduces the gradients itself; reduce the loss so that callbacks decide equally."""
        size = self._worker.size
        if size == 1:
            return self.cell(*batch.tensors), stop
        if len(batch.tensors[0]) * size != batch.samples:
            raise UserError(
                f"train_step: needs equal parts, got a batch of {batch.samples} samples for {size} workers",
                hint="Choose a batch_size that the number of workers divides, with drop_last=True.",
            )
        outputs = self.cell(*batch.tensors)
        loss, *rest = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        mean, stops = sum_values(self._worker, [float(np.mean(loss.asnumpy())) / size, stop])
        reduced = Tensor(mean)
        return (reduced, *rest) if rest else reduced, bool(stops > 0)

    def _run_pieces(self, batch: Batch, stop: bool, begun: float) -> tuple[Any, bool]:
        """Run a step in pieces; with several workers the status vector has loss, stop flags, and seconds by rank."""
        own, worker = len(batch.tensors[0]), self._worker
        flat: Any = self._no_gradient
        loss: Any = None
        for index in range(self._pieces):
            part = get_part(own, index, self._pieces)
            count = part.stop - part.start
            if not count:
                continue
            tensors = batch.tensors if count == own else tuple(tensor[part] for tensor in batch.tensors)
            share = count / batch.samples
            if share not in self._shares:
                self._shares[share] = Tensor(np.float32(share))
            piece_loss, piece = self.cell(*tensors, self._shares[share])
            loss, flat = (piece_loss, piece) if loss is None else (loss + piece_loss, flat + piece)
        if worker.size == 1:
            self._apply(flat, Tensor(np.zeros(1, np.float32)))
            return loss, stop
        status = np.zeros(2 + worker.size, np.float32)
        # Reading the loss waits until the piece is computed, so that the time is this worker's.
        status[:2] = 0.0 if loss is None else float(np.mean(loss.asnumpy())), stop
        status[2 + worker.rank] = time.perf_counter() - begun
        sums = self._apply(flat, Tensor(status)).asnumpy()
        if batch.samples in self._compiled:
            self.rank_seconds += sums[2:]
            self.timed_steps += 1
        self._compiled.add(batch.samples)
        return Tensor(sums[0]), bool(sums[1] > 0)
