"""Classes or numbers from table rows."""

from .pipeline import tabular

__all__ = ["tabular"]
