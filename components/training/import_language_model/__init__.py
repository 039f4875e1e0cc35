"""The component `import_language_model`."""

from .component import import_language_model

__all__ = ["import_language_model"]
