"""Wide & Deep on MovieLens ratings."""

from .pipeline import wide_deep

__all__ = ["wide_deep"]
