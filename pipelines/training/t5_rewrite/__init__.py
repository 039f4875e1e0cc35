"""The pipeline `t5_rewrite`."""

from .pipeline import t5_rewrite

__all__ = ["t5_rewrite"]
