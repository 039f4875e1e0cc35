"""The component `build_image`."""

from kfp_mindspore.components.training.build_image.component import build_image

__all__ = ["build_image"]
