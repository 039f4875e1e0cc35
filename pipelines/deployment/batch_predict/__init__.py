"""The pipeline `batch_predict`."""

from .pipeline import batch_predict

__all__ = ["batch_predict"]
