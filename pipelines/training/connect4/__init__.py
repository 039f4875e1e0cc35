"""Connect-4 self-play."""

from .pipeline import connect4

__all__ = ["connect4"]
