"""The component `select_samples`."""

from .component import select_samples

__all__ = ["select_samples"]
