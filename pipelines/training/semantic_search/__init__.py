"""The pipeline `semantic_search`."""

from .pipeline import semantic_search

__all__ = ["semantic_search"]
