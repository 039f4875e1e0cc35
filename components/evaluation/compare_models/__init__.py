"""The component `compare_models`."""

from .component import compare_models

__all__ = ["compare_models"]
