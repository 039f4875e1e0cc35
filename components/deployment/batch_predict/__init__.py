"""The component `batch_predict`."""

from .component import batch_predict

__all__ = ["batch_predict"]
