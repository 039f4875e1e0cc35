"""The component `stop_msjobs`."""

from .component import stop_msjobs

__all__ = ["stop_msjobs"]
