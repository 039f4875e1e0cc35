"""The pipeline `compress_and_deploy`."""

from .pipeline import compress_and_deploy

__all__ = ["compress_and_deploy"]
