"""Sweep options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from kfp_mindspore.errors import ValidationError, suggest
from kfp_mindspore.evaluation.metrics import METRICS
from kfp_mindspore.options import check_options, option

SAMPLERS = ("tpe", "random", "grid", "gp", "cmaes")
PBT, HALVING = "pbt", "halving"
ENGINES = (MSJOB, RAY) = ("msjob", "ray")
PRUNERS = ("asha", "hyperband", "median", "none", HALVING, PBT)
CHECKPOINT_BYTES = "checkpoint_bytes"
MINIMIZED = ("loss", "eval_loss", CHECKPOINT_BYTES)


@dataclass(frozen=True)
class SweepOptions:
    """Sweep options, checked when they are built.

    Args:
        objective: Metric that the best trial has the best value of: a validation metric, `loss` or `eval_loss`.
        direction: `minimize` or `maximize`; by default the metric's own, for a metric that this package knows.
        objectives: Further metrics to improve, as `name` or `name:minimize`. The best trials are those that no other
            one surpasses in all. `checkpoint_bytes` is the final checkpoint's size. No trial is stopped early then.
        seeds: Trainings of each trial, whose parameter `seed` differs; the objective is their mean. Trials are stopped
            early in the first training only.
        trials: Trials in all, including what an interrupted sweep has run.
        parallel: Trials that run at the same time.
        sampler: How parameters are chosen: `tpe`, `random`, `grid`, `gp` or `cmaes`.
        pruner: Which trials are stopped early, by their epochs: `asha`, `hyperband`, `median` or `none`.
            With `halving` all trials are paused at their checkpoints, and the best third goes on for three
            times the epochs. `pbt` is population-based training: after each generation of trials losers go on from a
            winner's checkpoint with perturbed parameters.
        population: Members of a generation for `pbt`.
        interval: Epochs of the first generation for `halving`, and of each for `pbt`.
        trial_timeout: Seconds after which a trial's training is terminated and the trial fails. Each of several seeds
            has this time. Default: no limit.
        seed: The sampler's seed.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    objective: str
    direction: str = option("", enum=["", "minimize", "maximize"])
    objectives: Sequence[str] = ()
    seeds: int = option(1, minimum=1)
    trials: int = option(20, minimum=1)
    parallel: int = option(1, minimum=1)
    sampler: str = option("tpe", enum=list(SAMPLERS))
    pruner: str = option("asha", enum=list(PRUNERS))
    population: int = option(4, minimum=2)
    interval: int = option(1, minimum=1)
    trial_timeout: int | None = option(None, minimum=1)
    seed: int = option(0, minimum=0)

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "objectives", tuple(self.objectives))
        errors = []
        for field, (name, direction) in zip(
            ("direction", *["objectives"] * len(self.objectives)), self._parse_objectives(), strict=True
        ):
            if direction not in ("minimize", "maximize") and (direction or name not in (*MINIMIZED, *METRICS)):
                how = "minimize or maximize" if field == "direction" else f"{name}:minimize or {name}:maximize"
                errors.append(
                    f"{field}: must be {how} for {name!r}, which is no metric of this "
                    f"package{suggest(name, (*MINIMIZED, *METRICS))}"
                )
        names = [name for name, _ in self._parse_objectives()]
        errors += [f"objectives: {name!r} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
        if self.pruner == PBT and self.trials % self.population:
            errors.append(f"trials: must be a multiple of the population {self.population}, got {self.trials}")
        if self.pruner in (PBT, HALVING) and (self.objectives or self.seeds > 1 or self.sampler == "grid"):
            errors.append(f"pruner: {self.pruner} has one objective, one seed and no grid")
        if errors:
            raise ValidationError(errors, subject="sweep")

    def _parse_objectives(self) -> list[tuple[str, str]]:
        """Return each objective and direction, empty for the metric's own."""
        further = (text.partition(":") for text in self.objectives)
        return [(self.objective, self.direction), *((name, direction) for name, _, direction in further)]

    @property
    def directions(self) -> dict[str, bool]:
        """Whether a greater value is better, by objective; the first one is `objective`."""
        return {
            name: direction == "maximize" if direction else name not in MINIMIZED and METRICS[name].higher_is_better
            for name, direction in self._parse_objectives()
        }

    @property
    def is_maximized(self) -> bool:
        """Whether a greater value of the objective is better."""
        return self.directions[self.objective]

    def read_value(self, record: Mapping[str, Any], name: str = "") -> float | None:
        """Return an objective, by default the first one, in a record of metrics.jsonl; None if it is not there."""
        name = name or self.objective
        value = (record.get("validation") or {}).get(name)
        if value is None:
            value = record.get(name)
        return float(value) if isinstance(value, (int, float)) else None


class SweepChanges(TypedDict, total=False):
    """Fields of `SweepOptions` but `objective` by keyword."""

    direction: str
    objectives: Sequence[str]
    seeds: int
    trials: int
    parallel: int
    sampler: str
    pruner: str
    population: int
    interval: int
    trial_timeout: int | None
    seed: int
