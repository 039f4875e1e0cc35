"""The pipeline `two_models`."""

from .pipeline import two_models

__all__ = ["two_models"]
