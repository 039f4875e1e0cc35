"""The component `finetune_dual_encoder`."""

from .component import finetune_dual_encoder

__all__ = ["finetune_dual_encoder"]
