"""The component `load_dataset`."""

from .component import load_dataset

__all__ = ["load_dataset"]
