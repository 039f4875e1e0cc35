"""Training jobs: MSJob's types, validation and topology, and the client that runs them on a backend."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.msjob.backends.base import Backend
    from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend
    from kfp_mindspore.msjob.backends.local import LocalBackend
    from kfp_mindspore.msjob.build import build_msjob
    from kfp_mindspore.msjob.client import MSJobClient
    from kfp_mindspore.msjob.follow import run_job
    from kfp_mindspore.msjob.status import JobCondition, JobStatus, ReplicaStatus
    from kfp_mindspore.msjob.types import ElasticPolicy, MSJob, ReplicaSpec, RunPolicy, SchedulingPolicy
    from kfp_mindspore.msjob.validation import validate_msjob

_MODULES = {
    "Backend": "backends.base",
    "ElasticPolicy": "types",
    "JobCondition": "status",
    "JobStatus": "status",
    "KubernetesBackend": "backends.kubernetes",
    "LocalBackend": "backends.local",
    "MSJob": "types",
    "MSJobClient": "client",
    "ReplicaSpec": "types",
    "ReplicaStatus": "status",
    "RunPolicy": "types",
    "SchedulingPolicy": "types",
    "build_msjob": "build",
    "run_job": "follow",
    "validate_msjob": "validation",
}

__all__ = [
    "Backend",
    "ElasticPolicy",
    "JobCondition",
    "JobStatus",
    "KubernetesBackend",
    "LocalBackend",
    "MSJob",
    "MSJobClient",
    "ReplicaSpec",
    "ReplicaStatus",
    "RunPolicy",
    "SchedulingPolicy",
    "build_msjob",
    "run_job",
    "validate_msjob",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
