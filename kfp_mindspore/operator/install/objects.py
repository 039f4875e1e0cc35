"""All objects of an installation, in the order in which they can be applied."""

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


def group_objects(choices: InstallOptions) -> dict[str, list[Document]]:
    """Return the objects by the name of their file, without ending."""
    return {
        "crd": [build_crd()],
        "namespace": [build_namespace(choices)],
        "operator-roles": build_operator_roles(choices),
        "tenant-roles": build_tenant_roles(),
        "deployment": [build_deployment(choices)],
        "service": [build_service(choices)],
        "network-policy": [build_network_policy(choices)],
    }


def build_objects(choices: InstallOptions) -> list[Document]:
    """Return the definition, the namespace, the roles, the Deployment and what stands around it."""
    return [item for group in group_objects(choices).values() for item in group]
