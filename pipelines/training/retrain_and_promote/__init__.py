"""The pipeline `retrain_and_promote`."""

from .pipeline import retrain_and_promote

__all__ = ["retrain_and_promote"]
