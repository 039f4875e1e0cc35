"""Trial generations that go on from checkpoints: population-based training, and successive halving."""

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
    """Return a sweep's generations; [] for one without."""
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
class PopulationMember:
    """A generation's member that has ended and not failed.

    Args:
        number: The trial's number.
        parameters: The trial's parameters.
    """

    number: int
    parameters: Mapping[str, Any]


def plan_generation(
    ranked: Sequence[PopulationMember], former: Generation, size: int, space: Space, options: SweepOptions
) -> list[tuple[dict[str, Any], int]]:
    """Return parameters and the trial to go on from, for each member of the next generation.

    The best members go on as they are: for `halving` as many as the generation has, for `pbt` all but the worst
    quarter. The other places go on from one of the best quarter with perturbed parameters. The same arguments give the
    same plan.

    Args:
        ranked: The former generation's members that have not failed, at least one, the best first.
        former: The former generation.
        size: The next one's size.
        space: The sweep's parameters.
        options: The sweep's options.
    """
    generator = random.Random(f"{options.seed} {former.start}")
    quarter = max(1, former.size // _QUARTER)
    kept = ranked[: max(size - quarter, 1) if options.pruner == PBT else size]
    planned = [(dict(member.parameters), member.number) for member in kept]
    while len(planned) < size:
        winner = generator.choice(ranked[:quarter])
        planned.append((perturb(winner.parameters, space, generator), winner.number))
    return planned


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
