"""Sweep options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError, suggest
from kfp_mindspore.evaluation import METRICS
from kfp_mindspore.options import check_options, option

SAMPLERS = ("tpe", "random", "grid", "gp", "cmaes")
PRUNERS = ("asha", "hyperband", "median", "none")
MINIMIZED = ("loss", "eval_loss")


@dataclass(frozen=True)
class SweepOptions:
    """Sweep options, checked when they are built.

    Args:
        objective: Metric that the best trial has the best value of, as in metrics.jsonl: a validation metric, `loss` or
            `eval_loss`.
        direction: `minimize` or `maximize`; by default the metric's own, for a metric that this package knows.
        trials: Trials in all, including what an interrupted sweep has run.
        parallel: Trials that run at the same time.
        sampler: How parameters are chosen: `tpe`, `random`, `grid`, `gp` or `cmaes`.
        pruner: Which trials are stopped early, by their values after each epoch: `asha`, `hyperband`, `median` or
            `none`.
        seed: The sampler's seed.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    objective: str
    direction: str = option("", enum=["", "minimize", "maximize"])
    trials: int = option(20, minimum=1)
    parallel: int = option(1, minimum=1)
    sampler: str = option("tpe", enum=list(SAMPLERS))
    pruner: str = option("asha", enum=list(PRUNERS))
    seed: int = option(0, minimum=0)

    def __post_init__(self) -> None:
        check_options(self)
        if not self.direction and self.objective not in (*MINIMIZED, *METRICS):
            raise ValidationError(
                [
                    f"direction: must be minimize or maximize for {self.objective!r}, which is no metric of this "
                    f"package{suggest(self.objective, (*MINIMIZED, *METRICS))}"
                ],
                subject="sweep",
            )

    @property
    def is_maximized(self) -> bool:
        """Whether a greater value of the objective is better."""
        if self.direction:
            return self.direction == "maximize"
        return self.objective not in MINIMIZED and METRICS[self.objective].higher_is_better

    def read_value(self, record: Mapping[str, Any]) -> float | None:
        """Return the objective in a record of metrics.jsonl, or None."""
        value = (record.get("validation") or {}).get(self.objective)
        if value is None and self.objective == "loss":
            value = record.get("loss")
        return float(value) if isinstance(value, (int, float)) else None
