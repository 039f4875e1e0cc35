"""The pipeline `sweep_and_deploy`."""

from .pipeline import sweep_and_deploy

__all__ = ["sweep_and_deploy"]
