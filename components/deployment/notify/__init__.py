"""The component `notify`."""

from .component import notify

__all__ = ["notify"]
