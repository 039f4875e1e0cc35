"""What runs a pipeline: on this machine by kfp.local, or on a cluster by kfp.Client."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.runs.image import set_image
    from kfp_mindspore.runs.local import run_local
    from kfp_mindspore.runs.progress import ProgressDisplay
    from kfp_mindspore.runs.report import write_report
    from kfp_mindspore.runs.result import Gate, RunResult, StepResult
    from kfp_mindspore.runs.sources import compile_pipeline, compile_text, list_pipelines, load_spec

_MODULES = {
    "Gate": "result",
    "ProgressDisplay": "progress",
    "RunResult": "result",
    "StepResult": "result",
    "compile_pipeline": "sources",
    "compile_text": "sources",
    "list_pipelines": "sources",
    "load_spec": "sources",
    "run_local": "local",
    "set_image": "image",
    "write_report": "report",
}

__all__ = [
    "Gate",
    "ProgressDisplay",
    "RunResult",
    "StepResult",
    "compile_pipeline",
    "compile_text",
    "list_pipelines",
    "load_spec",
    "run_local",
    "set_image",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
