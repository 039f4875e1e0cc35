"""The kustomize files, as text: a base, and an overlay for each option. `make golden` writes them."""

from __future__ import annotations

import json
from typing import Any

from kfp_mindspore.operator.install.objects import group_objects
from kfp_mindspore.operator.install.options import NAME, NAMESPACE, InstallOptions
from kfp_mindspore.operator.install.roles import build_kueue_roles, build_operator_roles, list_gang_rules
from kfp_mindspore.operator.options import GangScheduler

Document = dict[str, Any]
_FIRST_LINE = "# Generated from kfp_mindspore/operator/install by `make golden`.\n"
_BASE = "../../base"
_RBAC = "rbac.authorization.k8s.io/v1"


def render_files() -> dict[str, str]:
    """Return the text of each file by its path under config/operator."""
    files: dict[str, list[Document]] = {}
    groups = group_objects(InstallOptions())
    for name, objects in groups.items():
        files[f"base/{name}.yaml"] = objects
    files["base/kustomization.yaml"] = [_kustomization(resources=[f"{name}.yaml" for name in groups])]
    schedulers: tuple[GangScheduler, ...] = ("volcano", "scheduler-plugins")
    for scheduler in schedulers:
        files[f"overlays/{scheduler}/kustomization.yaml"] = [_overlay_gang(scheduler)]
    files["overlays/istio/kustomization.yaml"] = [
        _kustomization(resources=[_BASE], patches=[_add_arguments("--istio-sidecar")])
    ]
    files["overlays/kueue/kustomization.yaml"] = [_kustomization(resources=[_BASE, "kueue-roles.yaml"])]
    files["overlays/kueue/kueue-roles.yaml"] = build_kueue_roles()
    files["overlays/single-namespace/kustomization.yaml"] = [_overlay_namespace()]
    files["overlays/single-namespace/role.yaml"] = _list_namespaced_roles()
    return {path: _FIRST_LINE + dump_documents(documents) for path, documents in files.items()}


def dump_documents(documents: list[Document]) -> str:
    """Return documents as one stream of YAML."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return "---\n".join(yaml.dump(item, Dumper=Dumper, sort_keys=False, width=120) for item in documents)


def _kustomization(**fields: Any) -> Document:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **fields}


def _overlay_gang(scheduler: GangScheduler) -> Document:
    rules = [{"op": "add", "path": "/rules/-", "value": rule} for rule in list_gang_rules(scheduler)]
    return _kustomization(
        resources=[_BASE],
        patches=[_patch("ClusterRole", NAME, rules), _add_arguments(f"--gang-scheduler={scheduler}")],
    )


def _overlay_namespace() -> Document:
    """Return an overlay with operator and jobs in one namespace, and no permissions outside of it."""
    deletions = [
        {"patch": json.dumps({"$patch": "delete", "apiVersion": _RBAC, "kind": kind, "metadata": {"name": NAME}})}
        for kind in ("ClusterRole", "ClusterRoleBinding")
    ]
    own = {
        "op": "add",
        "path": "/spec/template/spec/containers/0/env/-",
        "value": {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    }
    return _kustomization(
        resources=[_BASE, "role.yaml"],
        patches=[
            *deletions,
            _patch("Deployment", NAME, [own]),
            _add_arguments("--namespace=$(POD_NAMESPACE)"),
        ],
        namespace=NAMESPACE,
    )


def _list_namespaced_roles() -> list[Document]:
    roles = build_operator_roles(InstallOptions(watched=(NAMESPACE,)))
    return [item for item in roles if item["metadata"]["name"] == NAME and item["kind"] in ("Role", "RoleBinding")]


def _add_arguments(*arguments: str) -> Document:
    path = "/spec/template/spec/containers/0/args/-"
    return _patch("Deployment", NAME, [{"op": "add", "path": path, "value": item} for item in arguments])


def _patch(kind: str, name: str, operations: list[Document]) -> Document:
    import yaml

    return {"target": {"kind": kind, "name": name}, "patch": yaml.safe_dump(operations, sort_keys=False)}
