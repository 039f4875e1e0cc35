"""The component `evaluate_language_model`."""

from .component import evaluate_language_model

__all__ = ["evaluate_language_model"]
