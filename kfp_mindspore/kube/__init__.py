"""A Kubernetes cluster, as the API server has it: objects as JSON types, verbs, watches, logs, typed errors."""

from __future__ import annotations

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import (
    ApiError,
    ConfigurationError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    NotInstalledError,
    UnauthorizedError,
    UncertainError,
    UnreachableError,
)
from kfp_mindspore.kube.resources import DEFINITIONS, EVENTS, NAMESPACES, PODS, SERVICES, Resource
from kfp_mindspore.kube.stop import Stop

__all__ = [
    "DEFINITIONS",
    "EVENTS",
    "NAMESPACES",
    "PODS",
    "SERVICES",
    "ApiError",
    "Cluster",
    "ConfigurationError",
    "ConflictError",
    "ExpiredError",
    "ForbiddenError",
    "NotInstalledError",
    "Resource",
    "Stop",
    "UnauthorizedError",
    "UncertainError",
    "UnreachableError",
]
