"""The component `evaluate_mindir`."""

from kfp_mindspore.components.evaluation.evaluate_mindir.component import evaluate_mindir

__all__ = ["evaluate_mindir"]
