"""The pipeline `scheduled_retraining`."""

from .pipeline import scheduled_retraining

__all__ = ["scheduled_retraining"]
