"""The component `evaluate_mindir`."""

from .component import evaluate_mindir

__all__ = ["evaluate_mindir"]
