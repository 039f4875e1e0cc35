"""The pipeline `digits_from_sources`."""

from .pipeline import digits_from_sources

__all__ = ["digits_from_sources"]
