"""Character language model."""

from .pipeline import language_model

__all__ = ["language_model"]
