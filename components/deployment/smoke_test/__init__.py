"""The component `smoke_test`."""

from kfp_mindspore.components.deployment.smoke_test.component import smoke_test

__all__ = ["smoke_test"]
