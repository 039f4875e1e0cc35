"""Self-play of connect-4."""

from .pipeline import connect4

__all__ = ["connect4"]
