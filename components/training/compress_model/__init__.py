"""The component `compress_model`."""

from .component import compress_model

__all__ = ["compress_model"]
