"""The pipeline `chat_lora`."""

from .pipeline import chat_lora

__all__ = ["chat_lora"]
