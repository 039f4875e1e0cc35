"""Option and metric names."""

from __future__ import annotations


def is_lower_better(metric: str) -> bool:
    """Return whether a metric improves when it falls, by name: losses, errors, perplexity and distances."""
    from kfp_mindspore.evaluation.metrics import METRICS

    last = metric.rpartition(".")[2].lower()
    if last in METRICS:
        return not METRICS[last].higher_is_better
    return last in ("mse", "rmse") or any(part in last for part in ("loss", "error", "perplexity", "distance"))
