"""The KServe runtime for MindIR model bundles: `python -m mindsporeserver --model_name=… --model_dir=…`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindsporeserver.models.model import MindSporeModel

__all__ = ["MindSporeModel"]


def __getattr__(name: str) -> Any:
    if name != "MindSporeModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("mindsporeserver.models.model").MindSporeModel
