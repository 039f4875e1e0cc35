"""The component `build_image`."""

from .component import build_image

__all__ = ["build_image"]
