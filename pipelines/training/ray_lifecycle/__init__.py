"""The pipeline `ray_lifecycle`."""

from .pipeline import ray_lifecycle

__all__ = ["ray_lifecycle"]
