"""Options for drift."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_mindspore.options import option


@dataclass(frozen=True)
class DriftOptions:
    """Options for drift.

    Args:
        window: The log's last part, to compare: a row count such as `1000`, or a duration such as `24h`; default all.
        significance: Greatest probability of a false alarm, for all columns together.
        effect: Least population stability index of a drift. Usual are 0.1 for a moderate and 0.25 for a large one.
        metric: Metric to compute from labels; default the task's.
        margin: How much worse than at the export the metric may be, in metric units.
        reference: Dataset directory or URI to compare with in place of the bundle's statistics; default these.
    """

    window: str = ""
    significance: float = option(0.05, exclusiveMinimum=0, exclusiveMaximum=1)
    effect: float = option(0.1, minimum=0)
    metric: str = ""
    margin: float = option(0.0, minimum=0)
    reference: str = ""
