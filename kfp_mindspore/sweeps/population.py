"""Generations of trials that go on from checkpoints: population-based training, and successive halving."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.sweeps.options import HALVING, PBT, SweepOptions
from kfp_mindspore.sweeps.space import Parameter, Space

# The factors and the share of losers that the paper's experiments have (Jaderberg et al., 2017).
_FACTORS = (0.8, 1.25)
_QUARTER = 4
# Successive halving keeps a third, with three times the epochs.
_THIRD = 3


@dataclass(frozen=True)
class Generation:
    """A generation.

    Args:
        start: Its first trial.
        size: How many trials it has.
        epochs: Epochs that they have in all at their end.
    """

    start: int
    size: int
    epochs: int


def list_generations(options: SweepOptions) -> list[Generation]:
    """Return the generations of a sweep; [] for one without."""
    sizes: list[int] = []
    if options.pruner == PBT:
        sizes = [options.population] * (options.trials // options.population)
    elif options.pruner == HALVING:
        first = options.trials
        while sum(sizes := list(_divide(first))) > options.trials:
            first -= 1
    starts = itertools.accumulate(sizes, initial=0)
    factors = (_THIRD**index if options.pruner == HALVING else index + 1 for index in range(len(sizes)))
    return [
        Generation(start, size, options.interval * factor)
        for start, size, factor in zip(starts, sizes, factors, strict=False)
    ]


def _divide(size: int) -> Iterator[int]:
    while size:
        yield size
        size //= _THIRD


@dataclass(frozen=True)
class Member:
    """A member of a generation that has ended.

    Args:
        number: Its trial.
        parameters: The trial's parameters.
        value: The objective after its last epoch; None if it has failed.
    """

    number: int
    parameters: Mapping[str, Any]
    value: float | None


def promote(
    members: Sequence[Member], size: int, space: Space, *, is_maximized: bool, seed: str
) -> list[tuple[dict[str, Any], int]]:
    """Return the best members, which go on as they are; the others stay paused at their checkpoints.

    Args:
        members: The generation, at least one with a value.
        size: How many go on. With fewer members that have not failed, the best one goes on with perturbed parameters
            too.
        space: The sweep's parameters.
        is_maximized: Whether a greater value is better.
        seed: Seed for the choices.
    """
    generator = random.Random(seed)
    ranked = _rank(members, is_maximized)
    promoted = [(dict(member.parameters), member.number) for member in ranked[:size]]
    missing = range(size - len(promoted))
    return [*promoted, *((perturb(ranked[0].parameters, space, generator), ranked[0].number) for _ in missing)]


def plan_generation(
    members: Sequence[Member], space: Space, *, is_maximized: bool, seed: str
) -> list[tuple[dict[str, Any], int]]:
    """Return parameters and the trial to go on from, for each member of the next generation.

    The worst quarter, and members that failed, go on from one of the best quarter with perturbed parameters; the others
    go on as they are.

    Args:
        members: The generation, at least one with a value.
        space: The sweep's parameters.
        is_maximized: Whether a greater value is better.
        seed: Seed for the choices; the same seed plans the same generation.
    """
    generator = random.Random(seed)
    ranked = _rank(members, is_maximized)
    count = max(1, len(members) // _QUARTER)
    kept = {member.number for member in ranked[: max(len(members) - count, 1)]}
    planned = []
    for member in members:
        if member.number in kept:
            planned.append((dict(member.parameters), member.number))
            continue
        winner = generator.choice(ranked[:count])
        planned.append((perturb(winner.parameters, space, generator), winner.number))
    return planned


def _rank(members: Sequence[Member], is_maximized: bool) -> list[Member]:
    valued = [member for member in members if member.value is not None]
    return sorted(valued, key=lambda member: member.value or 0.0, reverse=is_maximized)


def perturb(parameters: Mapping[str, Any], space: Space, generator: random.Random) -> dict[str, Any]:
    """Return other parameters near these: ranges times 0.8 or 1.25, choices one place further."""
    return {name: _perturb_one(space.parameters[name], value, generator) for name, value in parameters.items()}


def _perturb_one(parameter: Parameter, value: Any, generator: random.Random) -> Any:
    if parameter.choices is not None:
        index = parameter.choices.index(value) + generator.choice((-1, 1))
        return parameter.choices[min(max(index, 0), len(parameter.choices) - 1)]
    low, high = parameter.low or 0, parameter.high or 0
    changed = value * generator.choice(_FACTORS)
    if step := parameter.step or (1 if parameter.is_integer else None):
        # At least one step: 0.8 and 1.25 times a small integer are the same one.
        steps = round((changed - value) / step) or (1 if changed > value else -1)
        changed = value + steps * step
        high = low + (high - low) // step * step
    return min(max(changed, low), high)
