"""The component `sweep_msjob`."""

from .component import sweep_msjob

__all__ = ["sweep_msjob"]
