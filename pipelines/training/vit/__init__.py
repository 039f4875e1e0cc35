"""A Vision Transformer on Fashion-MNIST."""

from .pipeline import vit

__all__ = ["vit"]
