"""Access on a cluster: Roles and RoleBindings for what steps do, reviews of granted rights, and jobs' NetworkPolicy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.errors import NotInstalledError
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.msjob.api.names import CONTROLLER_LABELS, GROUP, PLURAL

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

Document = dict[str, Any]
Capability = Literal["run", "training", "ray", "deployment", "images"]

_RBAC = "rbac.authorization.k8s.io"
_READ = ("get", "list", "watch")
_WRITE = ("create", "patch", "delete")
_PREFIX = "kfp-mindspore"
_LABELS = {"app.kubernetes.io/part-of": "kfp-mindspore"}
# ConfigMap with the pipeline root and Secret with the artifact store's credentials, in KFP's installations.
LAUNCHER_CONFIG = "kfp-launcher"
ARTIFACT_SECRET = "mlpipeline-minio-artifact"
_LOCAL_REVIEWS = Resource("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview")
_SELF_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
_WHO_AM_I = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


@dataclass(frozen=True)
class Permission:
    """Verbs on a resource.

    Args:
        group: API group; empty for the core group.
        resource: Plural, with a subresource after a slash.
        verbs: Verbs.
        names: Object names; empty for all in the namespace.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """`plural.group`, or the plural alone in the core group."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def to_rule(self) -> Document:
        """Return the permission as a Role rule."""
        rule: Document = {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}
        return {**rule, "resourceNames": list(self.names)} if self.names else rule


# Pods and their logs are read for the job's output and for a failure's reason.
_PODS = (
    Permission("", "pods", _READ),
    Permission("", "pods/log", ("get",)),
    Permission("", "events", ("list",)),
)
PERMISSIONS: Mapping[Capability, tuple[Permission, ...]] = {
    "run": (
        Permission("", "configmaps", ("get",), (LAUNCHER_CONFIG,)),
        Permission("", "secrets", ("get",), (ARTIFACT_SECRET,)),
        Permission("", "pods", ("get",)),
        Permission("argoproj.io", "workflowtaskresults", ("create", "patch")),
    ),
    "training": (
        Permission(GROUP, PLURAL, (*_READ, *_WRITE)),
        *_PODS,
        # Shortens a deleted job's grace period.
        Permission("", "pods", ("delete",)),
        # For `storage`: a claim or the run's workspace.
        Permission("", "persistentvolumeclaims", ("get",)),
    ),
    "ray": (
        Permission("ray.io", "rayjobs", (*_READ, "create", "delete")),
        *_PODS,
        Permission("", "persistentvolumeclaims", ("get",)),
    ),
    "deployment": (
        Permission("serving.kserve.io", "inferenceservices", ("get", "list", *_WRITE)),
        Permission("serving.kserve.io", "inferencegraphs", ("get", "list", *_WRITE)),
        Permission("apps", "deployments", ("get",)),
        # KServe keeps a service's after a change to KEDA.
        Permission("autoscaling", "horizontalpodautoscalers", ("delete",)),
        *_PODS,
    ),
    "images": (Permission("batch", "jobs", ("get", "create", "delete")), *_PODS),
}
CAPABILITIES: tuple[Capability, ...] = tuple(PERMISSIONS)
# Granted on request only: few pipelines need them, and not each cluster has KubeRay.
ON_REQUEST: tuple[Capability, ...] = ("ray", "images")


def list_default_capabilities(*, has_builds: bool) -> list[Capability]:
    """Return the capabilities for any pipeline, and with builds those for images."""
    return [name for name in CAPABILITIES if name not in ON_REQUEST or (has_builds and name == "images")]


@dataclass(frozen=True)
class ServiceAccount:
    """The service account for a run's steps.

    Args:
        name: Account name.
        namespace: The account's and the run's namespace.
    """

    name: str
    namespace: str

    @property
    def user(self) -> str:
        """The account's user name in the Kubernetes API."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> list[str]:
        """The account's groups in the Kubernetes API."""
        return ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]


def list_permissions(capability: Capability, secrets: Sequence[str] = ()) -> list[Permission]:
    """Return a capability's permissions, one per resource and names.

    Args:
        capability: `run`, `training`, `ray`, `deployment` or `images`.
        secrets: Secrets with artifact store credentials, besides KFP's default.
    """
    merged: dict[tuple[str, str], Permission] = {}
    for permission in PERMISSIONS[capability]:
        key = (permission.group, permission.resource)
        verbs = (*merged[key].verbs, *permission.verbs) if key in merged else permission.verbs
        names = (*permission.names, *secrets) if permission.resource == "secrets" else permission.names
        merged[key] = Permission(*key, tuple(dict.fromkeys(verbs)), tuple(dict.fromkeys(names)))
    return list(merged.values())


def build_access(
    account: ServiceAccount, namespaces: Mapping[Capability, Sequence[str]], secrets: Sequence[str] = ()
) -> list[Document]:
    """Return Roles and RoleBindings that grant an account's capabilities.

    Args:
        account: The service account.
        namespaces: Namespaces by capability.
        secrets: Secrets with artifact store credentials, besides KFP's default.
    """
    documents = []
    for capability, places in namespaces.items():
        rules = [permission.to_rule() for permission in list_permissions(capability, secrets)]
        for namespace in dict.fromkeys(places):
            name = f"{_PREFIX}-{capability}"
            documents.append(_make_document("Role", name, namespace, rules=rules))
            documents.append(
                _make_document(
                    "RoleBinding",
                    f"{name}.{account.namespace}.{account.name}",
                    namespace,
                    roleRef={"apiGroup": _RBAC, "kind": "Role", "name": name},
                    subjects=[{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
                )
            )
    return documents


def build_network_policy(namespace: str) -> Document:
    """Return a NetworkPolicy that lets only MSJob pods connect to MSJob pods, within a namespace.

    MindSpore's scheduler and workers authenticate nobody. Connections of the pods to others are not limited.

    Args:
        namespace: The jobs' namespace.
    """
    selector = {"matchLabels": dict(CONTROLLER_LABELS)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{_PREFIX}-jobs", "namespace": namespace, "labels": dict(_LABELS)},
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": selector}]}],
        },
    }


def list_missing_permissions(
    cluster: Cluster, account: ServiceAccount, permissions: Sequence[Permission], namespace: str
) -> list[Permission]:
    """Return the permissions that the account lacks in a namespace, reduced to the missing verbs and names.

    The API server decides, by LocalSubjectAccessReview. Creating one requires the role `admin` in the namespace. A
    process that runs as the account itself, such as a notebook, uses SelfSubjectAccessReview, which anyone may create.

    Args:
        cluster: Cluster client.
        account: The service account.
        permissions: The permissions.
        namespace: The namespace.

    Raises:
        ForbiddenError: The caller may not create reviews for other accounts.
        KfpMindSporeError: The API server is unreachable.
    """
    is_self = _get_username(cluster) == account.user
    reviews = _SELF_REVIEWS if is_self else _LOCAL_REVIEWS
    subject = {} if is_self else {"user": account.user, "groups": account.groups}
    missing = []
    for permission in permissions:
        resource, _, subresource = permission.resource.partition("/")
        for name in permission.names or ("",):
            verbs = []
            for verb in permission.verbs:
                attributes = {
                    "namespace": namespace,
                    "verb": verb,
                    "group": permission.group,
                    "resource": resource,
                    "subresource": subresource,
                    "name": name,
                }
                review = _make_review(reviews, spec={**subject, "resourceAttributes": attributes})
                review["metadata"] = {} if is_self else {"namespace": namespace}
                if not cluster.create(reviews, review, namespace)["status"].get("allowed"):
                    verbs.append(verb)
            if verbs:
                missing.append(Permission(permission.group, permission.resource, tuple(verbs), (name,) if name else ()))
    return missing


def _get_username(cluster: Cluster) -> str:
    try:
        review = cluster.create(_WHO_AM_I, _make_review(_WHO_AM_I))
    except (NotInstalledError, NotFoundError):
        # Kubernetes before 1.28.
        return ""
    return str(review["status"]["userInfo"].get("username"))


def _make_document(kind: str, name: str, namespace: str, **content: object) -> Document:
    metadata = {"name": name, "namespace": namespace, "labels": dict(_LABELS)}
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, **content}


def _make_review(resource: Resource, **content: object) -> Document:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, **content}
