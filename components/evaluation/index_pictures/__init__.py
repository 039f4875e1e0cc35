"""The component `index_pictures`."""

from .component import index_pictures

__all__ = ["index_pictures"]
