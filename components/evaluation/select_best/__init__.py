"""The component `select_best`."""

from .component import select_best

__all__ = ["select_best"]
