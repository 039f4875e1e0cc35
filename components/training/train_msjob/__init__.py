"""The component `train_msjob`."""

from .component import train_msjob

__all__ = ["train_msjob"]
