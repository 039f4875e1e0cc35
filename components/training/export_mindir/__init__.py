"""The component `export_mindir`."""

from .component import export_mindir

__all__ = ["export_mindir"]
