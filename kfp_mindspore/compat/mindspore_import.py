"""MindSpore's import without the garbage collector.

MindSpore 2.9 creates half a million objects at import that live until exit. Collections that scan them, during the
import and at exit, took 0.65 s out of 3.4 s CPU time.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any


def import_mindspore() -> None:
    """Import MindSpore with the collector paused, then exclude all existing objects from collections.

    For processes that exist for MindSpore: cycles among objects that exist now are never freed. Does nothing if
    MindSpore is already imported.

    Raises:
        ModuleNotFoundError: MindSpore is not installed.
    """
    if "mindspore" in sys.modules:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("mindspore")
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def get_device() -> str:
    """Return the device type that MindSpore computes on in this process, such as `CPU`; empty before the import."""
    mindspore: Any = sys.modules.get("mindspore")
    return "" if mindspore is None else str(mindspore.get_context("device_target"))
