"""Learning rate schedules by name: the factor for each optimizer step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kfp_mindspore.errors import ValidationError, suggest

SCHEDULES = ("constant", "cosine", "linear", "polynomial", "exponential", "step")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning rate factor for each step, multiplied by a linear warm-up.

    With progress p = step / steps from 0 to 1 and e epochs done (with fractions, for exponential):
    constant 1; cosine end + (1 - end)(1 + cos πp)/2; linear 1 - (1 - end)p; polynomial end + (1 - end)(1 - p)^power;
    exponential rate^e; step rate^⌊e / every⌋.

    Args:
        name: One of SCHEDULES.
        warmup_epochs: Epochs (with fractions) in which the warm-up factor rises linearly to 1.
        end: Final factor for cosine, linear and polynomial.
        power: Exponent for polynomial.
        rate: Factor per epoch for exponential, factor per drop for step.
        every: Epochs between drops for step.

    Raises:
        ValidationError: The name is unknown, or a number is out of range.
    """

    name: str = "constant"
    warmup_epochs: float = 0.0
    end: float = 0.0
    power: float = 2.0
    rate: float = 0.9
    every: int = 10

    def __post_init__(self) -> None:
        errors = []
        if self.name not in SCHEDULES:
            errors.append(f"schedule: unknown {self.name!r}{suggest(str(self.name), SCHEDULES)}")
        limits = {"warmup_epochs": (0, math.inf), "end": (0, 1), "power": (0, math.inf), "rate": (0, 1)}
        for field, (least, most) in limits.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                errors.append(f"schedule.{field}: must be a number from {least} to {most}, got {value!r}")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            errors.append(f"schedule.every: must be an integer of at least 1, got {self.every!r}")
        if errors:
            raise ValidationError(errors, subject="Schedule")

    @property
    def is_constant(self) -> bool:
        """Whether every factor is 1."""
        return self.name == "constant" and not self.warmup_epochs

    def compute_factor(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return a step's factor.

        Args:
            step: The optimizer step's index, from 0.
            steps_per_epoch: Steps in an epoch.
            epochs: Total epochs.
        """
        progress = step / (steps_per_epoch * epochs)
        passed = step / steps_per_epoch
        factor = 1.0
        if self.name == "cosine":
            factor = self.end + (1 - self.end) * (1 + math.cos(math.pi * progress)) / 2
        elif self.name == "linear":
            factor = 1 - (1 - self.end) * progress
        elif self.name == "polynomial":
            factor = self.end + (1 - self.end) * (1 - progress) ** self.power
        elif self.name == "exponential":
            factor = self.rate**passed
        elif self.name == "step":
            factor = self.rate ** (int(passed) // self.every)
        warmup = self.warmup_epochs * steps_per_epoch
        return factor * min(1.0, (step + 1) / warmup) if warmup else factor


def build_schedule(given: Schedule | Mapping[str, Any] | str) -> Schedule:
    """Return the schedule for a name, a dict with fields or a Schedule.

    Raises:
        ValidationError: It has another form, or a field is wrong.
    """
    if isinstance(given, Schedule):
        return given
    if isinstance(given, str):
        return Schedule(name=given)
    if not isinstance(given, Mapping):
        raise ValidationError([f"schedule: must be a name or a dict, got {given!r}"])
    names = [field.name for field in fields(Schedule)]
    unknown = [f"schedule.{name}: unknown{suggest(name, names)}" for name in given if name not in names]
    if unknown:
        raise ValidationError(unknown)
    return Schedule(**given)
