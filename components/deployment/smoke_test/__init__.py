"""The component `smoke_test`."""

from .component import smoke_test

__all__ = ["smoke_test"]
