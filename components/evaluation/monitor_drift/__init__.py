"""The component `monitor_drift`."""

from .component import monitor_drift

__all__ = ["monitor_drift"]
