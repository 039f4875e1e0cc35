"""The component `finetune_language_model`."""

from .component import finetune_language_model

__all__ = ["finetune_language_model"]
