"""The model: exported, inspected, verified, evaluated and run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.mindir.evaluate import Evaluation, evaluate_bundle
    from kfp_mindspore.mindir.export import export_mindir
    from kfp_mindspore.mindir.metadata import MindIRInfo, inspect_mindir
    from kfp_mindspore.mindir.runner import GraphRunner
    from kfp_mindspore.mindir.verify import Verification, verify_bundle

_MODULES = {
    "Evaluation": "evaluate",
    "GraphRunner": "runner",
    "MindIRInfo": "metadata",
    "Verification": "verify",
    "evaluate_bundle": "evaluate",
    "export_mindir": "export",
    "inspect_mindir": "metadata",
    "verify_bundle": "verify",
}

__all__ = [
    "Evaluation",
    "GraphRunner",
    "MindIRInfo",
    "Verification",
    "evaluate_bundle",
    "export_mindir",
    "inspect_mindir",
    "verify_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
