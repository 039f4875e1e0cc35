"""Learning rates: set by a schedule, and read for epoch records."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn

from kfp_mindspore.errors import UserError
from kfp_mindspore.training.schedules import Schedule


class RateSetter:
    """Sets the optimizer's learning rate before each step to the initial value times the schedule's factor.

    Args:
        optimizer: The optimizer, with a constant learning rate unless the schedule is constant.
        schedule: The schedule.
        steps: Steps in an epoch.
        epochs: Total epochs.

    Raises:
        UserError: Both the optimizer and the configuration have a schedule.
    """

    def __init__(self, optimizer: Any, schedule: Schedule, steps: int, epochs: int) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._steps = steps
        self._epochs = epochs
        self._initial: list[tuple[Any, float]] = []
        if schedule.is_constant:
            return
        rates = getattr(optimizer, "learning_rate", None)
        for rate in rates if isinstance(rates, (list, tuple)) else (rates,):
            if rate is None or isinstance(rate, nn.Cell) or rate.size != 1:
                raise UserError(
                    f"schedule: {schedule.name!r} needs an optimizer with a constant learning rate",
                    hint="Give the optimizer a number, the peak learning rate; or leave schedule='constant'.",
                )
            self._initial.append((rate, float(rate.asnumpy())))

    def set(self, step: int) -> None:
        """Set the learning rate for a step (from 0, over all epochs)."""
        if not self._initial:
            return
        factor = self._schedule.compute_factor(step, self._steps, self._epochs)
        for rate, initial in self._initial:
            rate.set_data(Tensor(np.array(initial * factor, np.float32).reshape(rate.shape)))

    def read(self) -> float | list[float] | None:
        """Return the last step's learning rate; a list for parameter groups; None if the optimizer has none."""
        rates = getattr(self._optimizer, "learning_rate", None)
        if rates is None:
            return None
        if isinstance(rates, (list, tuple)):
            values = [self._read_one(rate) for rate in rates]
            return values[0] if len(set(values)) == 1 else values
        return self._read_one(rates)

    def _read_one(self, rate: Any) -> float:
        if isinstance(rate, nn.Cell):
            done = max(int(self._optimizer.global_step.asnumpy().ravel()[0]) - 1, 0)
            rate = rate(Tensor(np.array([done], np.int32)))
        return float(np.asarray(rate.asnumpy()).ravel()[0])
