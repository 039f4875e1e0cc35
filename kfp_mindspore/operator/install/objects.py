"""All manifests of an installation, in the order of their application."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.msjob.crd import build_crd
from kfp_mindspore.operator.install.options import InstallOptions
from kfp_mindspore.operator.install.roles import build_operator_roles, build_tenant_roles
from kfp_mindspore.operator.install.workload import (
    build_deployment,
    build_namespace,
    build_network_policy,
    build_service,
)

Document = dict[str, Any]


def group_objects(options: InstallOptions) -> dict[str, list[Document]]:
    """Return the manifests by file name, without extension."""
    return {
        "crd": [build_crd()],
        "namespace": [build_namespace(options)],
        "operator-roles": build_operator_roles(options),
        "tenant-roles": build_tenant_roles(),
        "deployment": [build_deployment(options)],
        "service": [build_service(options)],
        "network-policy": [build_network_policy(options)],
    }


def build_objects(options: InstallOptions) -> list[Document]:
    """Return definition, namespace, roles, Deployment, Service and NetworkPolicy."""
    return [item for group in group_objects(options).values() for item in group]
