"""The component `create_language_model`."""

from .component import create_language_model

__all__ = ["create_language_model"]
