"""The component `load_dataset`."""

from kfp_mindspore.components.data_processing.load_dataset.component import load_dataset

__all__ = ["load_dataset"]
