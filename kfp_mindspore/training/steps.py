"""The compiled training step: gradients, their accumulation and clipping, the optimizer, and averaged weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import ParameterTuple, Tensor, amp, nn, ops

from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.environment import NETWORK_ERRORS
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.diagnosis import explain_computation
from kfp_mindspore.training.distributed import WorkerInfo

_FIRST_SCALE = 2.0**16
_SCALE_WINDOW = 1000


@dataclass(frozen=True)
class StepState:
    """Parameters of the step beside network and optimizer, which a checkpoint contains too.

    Args:
        average: Moving averages of the optimizer's parameters, or None.
        scaler: Loss scale of float16, or None.
    """

    average: Any = None
    scaler: Any = None

    @property
    def parameters(self) -> list[Any]:
        """All parameters."""
        scaler = [] if self.scaler is None else [self.scaler.scale_value, self.scaler.counter]
        return [*(self.average or ()), *scaler]


class Update(nn.Cell):  # type: ignore[misc]
    """Applies gradients: reduces them over the workers, clips them, runs the optimizer, and averages the weights.

    Args:
        optimizer: The optimizer.
        trained: For each of the optimizer's parameters, whether it is trained; the others have gradients of zero.
        config: The options.
        state: Further parameters.
        size: Number of workers.
    """

    def __init__(
        self, optimizer: Any, trained: Sequence[bool], config: TrainingConfig, state: StepState, size: int
    ) -> None:
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
        self.is_parallel = size > 1
        if self.is_parallel:
            active = [weight for weight, is_trained in zip(self.weights, trained, strict=True) if is_trained]
            self.reducer = nn.DistributedGradReducer(active, mean=True, degree=size)

    def construct(self, gradients):  # type: ignore[no-untyped-def]  # noqa: D102
        if self.is_parallel:
            gradients = self.reducer(gradients)
        if self.scaler is not None:
            gradients = self.scaler.unscale(gradients)
            finite = amp.all_finite(gradients)
            self.scaler.adjust(finite)
            if finite:
                self.step(gradients)  # type: ignore[no-untyped-call]
            return finite
        return self.step(gradients)  # type: ignore[no-untyped-call]

    def step(self, gradients):  # type: ignore[no-untyped-def]
        """Clip the gradients of the trained parameters, and run the optimizer."""
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
    """Computes the loss of a batch and the gradients of the trained parameters.

    Args:
        network: The network with its loss.
        weights: The trained parameters.
        scaler: Loss scale of float16, or None.
    """

    def __init__(self, network: Any, weights: Any, scaler: Any) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_grad()
        self.weights = weights
        self.scaler = scaler
        self.gradient = ops.GradOperation(get_by_list=True, sens_param=scaler is not None)

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        loss = self.network(*batch)
        if self.scaler is None:
            return loss, self.gradient(self.network, self.weights)(*batch)
        scale = ops.ones_like(loss) * self.scaler.scale_value
        return loss, self.gradient(self.network, self.weights)(*batch, scale)


class TrainStep(nn.Cell):  # type: ignore[misc]
    """One optimizer step on a batch; with several workers, the mean loss and the sum of their stop flags.

    The flags are reduced together with the loss, so that all workers stop after the same step on SIGTERM.

    Args:
        gradients: Computes loss and gradients.
        update: Applies them.
        size: Number of workers.
    """

    def __init__(self, gradients: Gradients, update: Update, size: int) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = gradients
        self.update = update
        self.is_parallel = size > 1
        self.share = 1.0 / size
        if self.is_parallel:
            self.reduce_sum = ops.AllReduce()

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        if self.is_parallel:
            loss, gradients = self.gradients(*batch[:-1])
            loss = ops.depend(loss, self.update(gradients))
            sums = self.reduce_sum(ops.concat((ops.reshape(loss, (1,)), batch[-1])))
            return sums[0] * self.share, sums[1]
        loss, gradients = self.gradients(*batch)
        return ops.depend(loss, self.update(gradients))


class AccumulateStep(nn.Cell):  # type: ignore[misc]
    """Adds the gradients of a part of a batch to buffers.

    Args:
        gradients: Computes loss and gradients.
        buffers: Sums of the gradients.
        parts: Parts of a batch.
    """

    def __init__(self, gradients: Gradients, buffers: Any, parts: int) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = gradients
        self.buffers = buffers
        self.share = 1.0 / parts

    def construct(self, *batch):  # type: ignore[no-untyped-def]  # noqa: D102
        loss, gradients = self.gradients(*batch)
        for index in range(len(self.buffers)):
            loss = ops.depend(loss, ops.assign_add(self.buffers[index], gradients[index] * self.share))
        return loss * self.share


class ApplyStep(nn.Cell):  # type: ignore[misc]
    """Applies the gradients in the buffers and sets them to zero; reduces the loss as TrainStep does.

    Args:
        update: Applies gradients.
        buffers: Sums of the gradients.
        size: Number of workers.
    """

    def __init__(self, update: Update, buffers: Any, size: int) -> None:
        super().__init__(auto_prefix=False)
        self.update = update
        self.buffers = buffers
        self.is_parallel = size > 1
        self.share = 1.0 / size
        if self.is_parallel:
            self.reduce_sum = ops.AllReduce()

    def construct(self, loss, flag):  # type: ignore[no-untyped-def]  # noqa: D102
        gradients: Any = ()
        for index in range(len(self.buffers)):
            gradients = (*gradients, self.buffers[index] * 1.0)
        loss = ops.depend(loss, self.update(gradients))
        for index in range(len(self.buffers)):
            ops.assign(self.buffers[index], ops.zeros_like(self.buffers[index]))
        if self.is_parallel:
            sums = self.reduce_sum(ops.concat((ops.reshape(loss, (1,)), flag)))
            return sums[0] * self.share, sums[1]
        return loss, flag


class Trainer:
    """Runs training steps, alone or as one of several workers.

    Attributes:
        cell: The cell of a step, for callbacks.
        state: Parameters beside those of network and optimizer.

    Args:
        network: The network, for messages.
        with_loss: The network with its loss.
        optimizer: The optimizer.
        config: The options.
        worker: Rank and number of workers.
        names: Names of a batch's tensors, for messages.
    """

    def __init__(
        self,
        network: Any,
        with_loss: Any,
        optimizer: Any,
        config: TrainingConfig,
        worker: WorkerInfo,
        names: Sequence[str],
    ) -> None:
        self._network = network
        self._with_loss = with_loss
        self._optimizer = optimizer
        self._config = config
        self._worker = worker
        self._names = tuple(names)
        self._flags = {flag: Tensor(np.array([flag], np.float32)) for flag in (False, True)}
        self._buffers: Any = None
        self._apply: Any = None
        self._frozen: frozenset[str] | None = None
        self.cell: Any = None
        average = optimizer.parameters.clone(prefix="ema", init="same") if config.ema else None
        is_half = config.precision == "float16" and config.train_step is None
        self.state = StepState(average, amp.DynamicLossScaler(_FIRST_SCALE, 2, _SCALE_WINDOW) if is_half else None)
        self._own = config.train_step is not None
        if config.train_step is not None:
            self.cell = config.train_step(with_loss, optimizer)
            if not isinstance(self.cell, nn.Cell):
                raise UserError(f"train_step: must return a mindspore.nn.Cell, got {type(self.cell).__name__}")
            self.cell.set_train(True)

    def set_frozen(self, names: frozenset[str]) -> None:
        """Train all of the optimizer's parameters but these; another set compiles another step."""
        if self._own or names == self._frozen:
            return
        self._frozen = names
        optimizer, config, size = self._optimizer, self._config, self._worker.size
        trained = [weight.name not in names for weight in optimizer.parameters]
        weights = ParameterTuple(
            [weight for weight, is_trained in zip(optimizer.parameters, trained, strict=True) if is_trained]
        )
        gradients = Gradients(self._with_loss, weights, self.state.scaler)
        update = Update(optimizer, trained, config, self.state, size)
        if config.accumulate > 1:
            self._buffers = weights.clone(prefix="accumulated", init="zeros")
            self.cell = AccumulateStep(gradients, self._buffers, config.accumulate)
            self._apply = ApplyStep(update, self._buffers, size)
            self._apply.set_train(True)
        else:
            self.cell = TrainStep(gradients, update, size)
        self.cell.set_train(True)

    def set_train(self, training: bool) -> None:
        """Set the mode of the network: training, or evaluation for Dropout and BatchNorm."""
        self._with_loss.set_train(training)
        if self.cell is not None:
            self.cell.set_train(training)

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
            if self._worker.size == 1 and self._config.accumulate == 1:
                return self.cell(*batch), stop
            if self._own:
                loss = self.cell(*batch)
                return loss, float(ops.AllReduce()(self._flags[stop]).asnumpy()[0]) > 0
            if self._config.accumulate == 1:
                loss, stops = self.cell(*batch, self._flags[stop])
            else:
                loss, stops = self._accumulate(batch, stop)
            return loss, float(stops.asnumpy().ravel()[0]) > 0
        except NETWORK_ERRORS as error:
            explained = explain_computation(error, self._network, self._names, batch)
            if explained is None:
                raise
            raise explained from error

    def read_average(self) -> dict[str, Any]:
        """Return the averaged weights by the names of the optimizer's parameters; empty without averaging."""
        if self.state.average is None:
            return {}
        return {
            weight.name: average for weight, average in zip(self._optimizer.parameters, self.state.average, strict=True)
        }

    @contextlib.contextmanager
    def use_average(self) -> Iterator[None]:
        """Set the network's weights to the averaged ones for the block."""
        averages = self.read_average()
        kept = []
        for weight in self._optimizer.parameters if averages else ():
            kept.append(Tensor(weight.asnumpy().copy()))
            weight.set_data(Tensor(averages[weight.name].asnumpy().copy()))
        try:
            yield
        finally:
            for weight, value in zip(self._optimizer.parameters, kept, strict=False):
                weight.set_data(value)

    def _accumulate(self, batch: tuple[Any, ...], stop: bool) -> tuple[Any, Any]:
        parts = self._config.accumulate
        size, rest = divmod(len(batch[0]), parts)
        if rest:
            raise UserError(f"accumulate: must divide the batch of {len(batch[0])} samples, got {parts}")
        loss: Any = None
        for part in range(parts):
            own = self.cell(*(tensor[part * size : (part + 1) * size] for tensor in batch))
            loss = own if loss is None else loss + own
        return self._apply(loss, self._flags[stop])  # type: ignore[no-any-return]
