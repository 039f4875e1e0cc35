"""The KFP extension: `@msjob_component`, and setters of the MSJob that a task makes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.dsl.component import msjob_component
    from kfp_mindspore.dsl.metadata import add_job_annotation, add_job_label
    from kfp_mindspore.dsl.policy import set_restart_policy, set_run_policy, set_success_policy
    from kfp_mindspore.dsl.worker_options import add_worker_env, set_worker_count, set_worker_resources

__all__ = [
    "add_job_annotation",
    "add_job_label",
    "add_worker_env",
    "msjob_component",
    "set_restart_policy",
    "set_run_policy",
    "set_success_policy",
    "set_worker_count",
    "set_worker_resources",
]

_MODULES = {
    "add_job_annotation": "metadata",
    "add_job_label": "metadata",
    "add_worker_env": "worker_options",
    "msjob_component": "component",
    "set_restart_policy": "policy",
    "set_run_policy": "policy",
    "set_success_policy": "policy",
    "set_worker_count": "worker_options",
    "set_worker_resources": "worker_options",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
