"""The component `train_msjob`."""

from kfp_mindspore.components.training.train_msjob.component import train_msjob

__all__ = ["train_msjob"]
