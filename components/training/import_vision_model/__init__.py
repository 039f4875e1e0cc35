"""The component `import_vision_model`."""

from .component import import_vision_model

__all__ = ["import_vision_model"]
