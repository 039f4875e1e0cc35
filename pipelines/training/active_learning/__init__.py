"""Active learning in rounds."""

from .pipeline import active_learning

__all__ = ["active_learning"]
