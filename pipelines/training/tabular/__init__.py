"""Classes or numbers from rows of a table."""

from .pipeline import tabular

__all__ = ["tabular"]
