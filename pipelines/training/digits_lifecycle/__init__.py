"""The digits lifecycle."""

from .pipeline import digits_lifecycle

__all__ = ["digits_lifecycle"]
