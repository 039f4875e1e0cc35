"""Imports kfp without its API client, which takes three quarters of the time and no local run needs."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.settings import KFP_RUNTIME_VARIABLE

# What kfp's own steps set: `import kfp` then leaves its subpackages, the client among them, to whoever needs them.
_LAZY = {"Client": "kfp.client", "client": "kfp.client", "components": "kfp.components", "dsl": "kfp.dsl"}


def import_kfp() -> None:
    """Import kfp so that `kfp.Client` is loaded on first use; nothing happens when kfp is imported already.

    Raises:
        MissingExtraError: kfp is not installed.
    """
    if "kfp" in sys.modules:
        return
    previous = os.environ.get(KFP_RUNTIME_VARIABLE)
    os.environ[KFP_RUNTIME_VARIABLE] = "true"
    try:
        kfp = importlib.import_module("kfp")
    except ModuleNotFoundError as error:
        if error.name != "kfp":
            raise
        raise MissingExtraError("kfp", "pipelines") from None
    finally:
        # Steps inherit the environment, and kfp.dsl is whole only without it.
        if previous is None:
            del os.environ[KFP_RUNTIME_VARIABLE]
        else:
            os.environ[KFP_RUNTIME_VARIABLE] = previous

    def find(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'kfp' has no attribute {name!r}")
        module = importlib.import_module(_LAZY[name])
        return module.Client if name == "Client" else module

    vars(kfp).setdefault("__getattr__", find)
