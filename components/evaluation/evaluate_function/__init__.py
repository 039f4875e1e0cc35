"""The component `evaluate_function`."""

from .component import evaluate_function

__all__ = ["evaluate_function"]
