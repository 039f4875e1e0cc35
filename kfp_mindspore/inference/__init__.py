"""Where a model is served: services, their client and backends, and the smoke test."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfp_mindspore.inference.backends.base import Backend
    from kfp_mindspore.inference.backends.kserve import KServeBackend
    from kfp_mindspore.inference.backends.local import LocalBackend
    from kfp_mindspore.inference.client import InferenceClient
    from kfp_mindspore.inference.manifest import build_inference_service
    from kfp_mindspore.inference.runtime import build_serving_runtime
    from kfp_mindspore.inference.service import Service, ServiceState, ServiceStatus
    from kfp_mindspore.inference.smoke import SmokeReport, run_smoke_test

_MODULES = {
    "Backend": "backends.base",
    "InferenceClient": "client",
    "KServeBackend": "backends.kserve",
    "LocalBackend": "backends.local",
    "Service": "service",
    "ServiceState": "service",
    "ServiceStatus": "service",
    "SmokeReport": "smoke",
    "build_inference_service": "manifest",
    "build_serving_runtime": "runtime",
    "run_smoke_test": "smoke",
}

__all__ = [
    "Backend",
    "InferenceClient",
    "KServeBackend",
    "LocalBackend",
    "Service",
    "ServiceState",
    "ServiceStatus",
    "SmokeReport",
    "build_inference_service",
    "build_serving_runtime",
    "run_smoke_test",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
