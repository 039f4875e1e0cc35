"""The pipeline `image_search`."""

from .pipeline import image_search

__all__ = ["image_search"]
