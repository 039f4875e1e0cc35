"""The KFP components by name: `from kfp_mindspore.components import train_msjob`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.components.data_processing.load_dataset import load_dataset
    from kfp_mindspore.components.deployment.deploy_kserve import deploy_kserve
    from kfp_mindspore.components.deployment.smoke_test import smoke_test
    from kfp_mindspore.components.evaluation.evaluate_mindir import evaluate_mindir
    from kfp_mindspore.components.training.build_image import build_image
    from kfp_mindspore.components.training.export_mindir import export_mindir
    from kfp_mindspore.components.training.train_msjob import train_msjob

__all__ = [
    "build_image",
    "deploy_kserve",
    "evaluate_mindir",
    "export_mindir",
    "load_dataset",
    "smoke_test",
    "train_msjob",
]

_CATEGORIES = {
    "build_image": "training",
    "deploy_kserve": "deployment",
    "evaluate_mindir": "evaluation",
    "export_mindir": "training",
    "load_dataset": "data_processing",
    "smoke_test": "deployment",
    "train_msjob": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _CATEGORIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_CATEGORIES[name]}.{name}"), name)
