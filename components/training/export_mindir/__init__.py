"""The component `export_mindir`."""

from kfp_mindspore.components.training.export_mindir.component import export_mindir

__all__ = ["export_mindir"]
