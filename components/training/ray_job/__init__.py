"""The component `ray_job`."""

from .component import ray_job

__all__ = ["ray_job"]
