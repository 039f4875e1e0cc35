"""A YOLOS detector on pictures with boxes."""

from .pipeline import detection

__all__ = ["detection"]
