"""An installation's manifests: config/operator/base, changed by options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.api.kueue import KUEUE_GROUP
from kfp_mindspore.operator.install.options import NAME, NAMESPACE, InstallOptions
from kfp_mindspore.operator.options import get_pod_groups

Document = dict[str, Any]
_MANIFESTS = Path(__file__).parent / "manifests"
# In application order; the definition is generated.
_FILES = ("namespace", "operator-roles", "tenant-roles", "deployment", "service", "network-policy")


def build_objects(options: InstallOptions) -> list[Document]:
    """Return definition, namespace, roles, Deployment, Service and NetworkPolicy."""
    objects = [build_crd()]
    for document in [document for name in _FILES for document in load_documents(_MANIFESTS / f"{name}.yaml")]:
        _set_namespace(document, options.namespace)
        kind, is_named = document["kind"], document["metadata"]["name"] == NAME
        if kind == "Deployment":
            _set_deployment(document["spec"], options)
        if kind == "ClusterRole" and is_named:
            document["rules"] += list_gang_rules(options) + list_kueue_rules(options)
        if kind in ("ClusterRole", "ClusterRoleBinding") and is_named and options.kueue:
            objects.append(_make_kueue_reader(document))
        if kind in ("ClusterRole", "ClusterRoleBinding") and is_named and options.watched:
            objects += [_restrict(document, namespace) for namespace in options.watched]
        else:
            objects.append(document)
    return objects


def list_gang_rules(options: InstallOptions) -> list[Document]:
    """Return the operator's rules for a gang scheduler's PodGroups."""
    groups = get_pod_groups(options.gang_scheduler)
    verbs = ["get", "list", "watch", "create", "delete"]
    return [{"apiGroups": [groups.group], "resources": [groups.plural], "verbs": verbs}] if groups else []


def list_kueue_rules(options: InstallOptions) -> list[Document]:
    """Return the operator's rules for Kueue's Workloads."""
    verbs = ["get", "list", "watch", "create", "delete"]
    rules = [
        {"apiGroups": [KUEUE_GROUP], "resources": ["workloads"], "verbs": verbs},
        {"apiGroups": [KUEUE_GROUP], "resources": ["workloads/status"], "verbs": ["patch"]},
    ]
    return rules if options.kueue else []


def _make_kueue_reader(document: Document) -> Document:
    """Return the role, or its binding, for what Kueue has cluster-wide: also an operator for namespaces reads it."""
    name = f"{NAME}-kueue"
    reader = {**document, "metadata": {**document["metadata"], "name": name}}
    if "roleRef" in document:
        return {**reader, "roleRef": {**document["roleRef"], "name": name}}
    rules = [
        {"apiGroups": [KUEUE_GROUP], "resources": ["resourceflavors", "workloadpriorityclasses"], "verbs": ["get"]},
        {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["get"]},
    ]
    return {**reader, "rules": rules}


def dump_documents(documents: list[Document]) -> str:
    """Return documents as one YAML stream."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return "---\n".join(yaml.dump(item, Dumper=Dumper, sort_keys=False, width=120) for item in documents)


def load_documents(file: Path) -> list[Document]:
    """Return a YAML file's documents."""
    import yaml

    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def _set_namespace(document: Document, namespace: str) -> None:
    metadata = document["metadata"]
    if document["kind"] == "Namespace":
        metadata["name"] = namespace
    for item in (metadata, *document.get("subjects", ())):
        if item.get("namespace") == NAMESPACE:
            item["namespace"] = namespace


def _set_deployment(spec: Document, options: InstallOptions) -> None:
    spec["replicas"] = options.replicas
    (container,) = spec["template"]["spec"]["containers"]
    container["image"] = options.image
    container["args"] += [f"--namespace={namespace}" for namespace in options.watched]
    if options.gang_scheduler != "none":
        container["args"].append(f"--gang-scheduler={options.gang_scheduler}")
    if options.kueue:
        container["args"].append("--kueue")
    if options.pod_security != "restricted":
        container["args"].append(f"--pod-security={options.pod_security}")
    if options.istio_sidecar:
        container["args"].append("--istio-sidecar")


def _restrict(document: Document, namespace: str) -> Document:
    """Return one namespace's Role or RoleBinding for a ClusterRole or ClusterRoleBinding."""
    metadata = document["metadata"]
    restricted = {**document, "kind": document["kind"].removeprefix("Cluster")}
    restricted["metadata"] = {"name": metadata["name"], "namespace": namespace, "labels": metadata["labels"]}
    if "roleRef" in document:
        restricted["roleRef"] = {**document["roleRef"], "kind": "Role"}
    return restricted
