"""RBAC of the operator, least privilege, and of tenants for MSJobs."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.kube.resources import ENDPOINT_SLICES, LEASES
from kfp_mindspore.msjob.names import GROUP, PLURAL
from kfp_mindspore.operator.install.options import LABELS, NAME, InstallOptions
from kfp_mindspore.operator.options import GangScheduler
from kfp_mindspore.operator.resources import get_pod_groups

Document = dict[str, Any]
_RBAC = "rbac.authorization.k8s.io"
_API_VERSION = f"{_RBAC}/v1"
_READ = ["get", "list", "watch"]
_AGGREGATE = f"{_RBAC}/aggregate-to-"


def list_rules(gang_scheduler: GangScheduler) -> list[Document]:
    """Return the rules of the operator's role.

    Args:
        gang_scheduler: `volcano` and `scheduler-plugins` need PodGroups.
    """
    rules = [
        # Delete is for TTLs; specs are never changed.
        make_rule(GROUP, PLURAL, [*_READ, "delete"]),
        make_rule(GROUP, f"{PLURAL}/status", ["update"]),
        # OwnerReferencesPermissionEnforcement requires it for blockOwnerDeletion.
        make_rule(GROUP, f"{PLURAL}/finalizers", ["update"]),
        make_rule("", "pods", [*_READ, "create", "delete"]),
        make_rule("", "services", [*_READ, "create", "delete"]),
        make_rule(ENDPOINT_SLICES.group, ENDPOINT_SLICES.plural, [*_READ, "create", "delete"]),
        # OpenShift requires it for slices with addresses of its pod network.
        make_rule(ENDPOINT_SLICES.group, f"{ENDPOINT_SLICES.plural}/restricted", ["create"]),
        make_rule("", "events", ["create", "patch"]),
    ]
    return [*rules, *list_gang_rules(gang_scheduler)]


def list_gang_rules(gang_scheduler: GangScheduler) -> list[Document]:
    """Return the rules for PodGroups."""
    groups = get_pod_groups(gang_scheduler)
    return [make_rule(groups.group, groups.plural, [*_READ, "create", "delete"])] if groups else []


def build_operator_roles(options: InstallOptions) -> list[Document]:
    """Return the operator's account, roles and bindings."""
    account: Document = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(NAME, options.namespace),
        # Mounted by the Deployment only.
        "automountServiceAccountToken": False,
    }
    lease_rules = [
        make_rule(LEASES.group, LEASES.plural, ["create"]),
        {**make_rule(LEASES.group, LEASES.plural, ["get", "update"]), "resourceNames": [NAME]},
    ]
    leases = [
        _role("Role", f"{NAME}-leader", lease_rules, options.namespace),
        _binding("Role", f"{NAME}-leader", options, options.namespace),
    ]
    rules = list_rules(options.gang_scheduler)
    if not options.watched:
        return [account, _role("ClusterRole", NAME, rules), _binding("ClusterRole", NAME, options), *leases]
    own = [
        item
        for namespace in options.watched
        for item in (_role("Role", NAME, rules, namespace), _binding("Role", NAME, options, namespace))
    ]
    return [account, *own, *leases]


def build_tenant_roles() -> list[Document]:
    """Return the roles that Kubernetes aggregates to `admin`, `edit` and `view`."""
    write = ["create", "delete", "deletecollection", "patch", "update"]
    return [
        {
            **_role(
                "ClusterRole",
                "msjob-edit",
                [
                    make_rule(GROUP, PLURAL, [*_READ, *write]),
                    make_rule(GROUP, f"{PLURAL}/scale", ["get", "patch", "update"]),
                    make_rule(GROUP, f"{PLURAL}/status", ["get"]),
                ],
            ),
            "metadata": {
                "name": "msjob-edit",
                "labels": {**LABELS, f"{_AGGREGATE}admin": "true", f"{_AGGREGATE}edit": "true"},
            },
        },
        {
            **_role(
                "ClusterRole",
                "msjob-view",
                [make_rule(GROUP, PLURAL, _READ), make_rule(GROUP, f"{PLURAL}/status", ["get"])],
            ),
            "metadata": {"name": "msjob-view", "labels": {**LABELS, f"{_AGGREGATE}view": "true"}},
        },
    ]


def build_kueue_roles() -> list[Document]:
    """Return the role with which Kueue's manager suspends and resumes MSJobs."""
    name = "kueue-msjob-manager"
    rules = [
        make_rule(GROUP, PLURAL, [*_READ, "patch", "update"]),
        make_rule(GROUP, f"{PLURAL}/status", ["get"]),
        make_rule(GROUP, f"{PLURAL}/finalizers", ["update"]),
    ]
    binding: Document = {
        "apiVersion": _API_VERSION,
        "kind": "ClusterRoleBinding",
        "metadata": _metadata(name),
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "kueue-controller-manager", "namespace": "kueue-system"}],
    }
    return [_role("ClusterRole", name, rules), binding]


def make_rule(group: str, resource: str, verbs: list[str]) -> Document:
    """Return a rule over one resource."""
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def _role(kind: str, name: str, rules: list[Document], namespace: str = "") -> Document:
    return {"apiVersion": _API_VERSION, "kind": kind, "metadata": _metadata(name, namespace), "rules": rules}


def _binding(kind: str, name: str, options: InstallOptions, namespace: str = "") -> Document:
    return {
        "apiVersion": _API_VERSION,
        "kind": f"{kind}Binding",
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": options.namespace}],
    }


def _metadata(name: str, namespace: str = "") -> Document:
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": dict(LABELS)}
