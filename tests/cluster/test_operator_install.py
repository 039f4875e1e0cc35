"""The installed objects: accepted by the API server, sufficient for the operator, and no more rights than needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import ApiRequest
from kfp_mindspore.kube.resources import NAMESPACES, PODS
from kfp_mindspore.operator.install import InstallOptions, build_objects
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.infrastructure.api_server import ControlPlane
from tests.support.kube.operators import Jobs, OperatorProcess, is_deleting, wait_for

SYSTEM = "msjob-system"
OPERATOR = f"system:serviceaccount:{SYSTEM}:msjob-controller"
MSJOBS, GROUP = "msjobs", "mindspore.gitee.com"


@pytest.fixture(scope="module")
def cluster(api_server: ControlPlane) -> Iterator[Cluster]:
    """Return an API server with the operator installed for all namespaces."""
    names = list(apply_objects(build_objects(InstallOptions()), kubeconfig=str(api_server.kubeconfig)))
    assert names[0] == "customresourcedefinition/msjobs.mindspore.gitee.com"
    cluster = Cluster(api_server.kubeconfig)
    yield cluster
    cluster.delete(NAMESPACES, SYSTEM)


class Reviewer:
    """Reviews rights at the API server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def allows(self, user: str, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
        resource, _, subresource = resource.partition("/")
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        attributes |= {"subresource": subresource, "name": name}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = self._cluster.request(ApiRequest("create", "subjectaccessreviews"), "POST", path, None, review)
        return bool(answer["status"]["allowed"])


@pytest.fixture
def reviewer(cluster: Cluster) -> Reviewer:
    return Reviewer(cluster)


ALLOWED = [
    ("get list watch delete", GROUP, MSJOBS, "anywhere", ""),
    ("update", GROUP, f"{MSJOBS}/status", "anywhere", ""),
    ("update", GROUP, f"{MSJOBS}/finalizers", "anywhere", ""),
    ("get list watch create patch delete", "", "pods", "anywhere", ""),
    ("get", "", "pods/log", "anywhere", ""),
    ("get list watch create delete", "", "services", "anywhere", ""),
    ("get list watch create delete", "discovery.k8s.io", "endpointslices", "anywhere", ""),
    ("create", "discovery.k8s.io", "endpointslices/restricted", "anywhere", ""),
    ("create patch", "", "events", "anywhere", ""),
    ("create", "coordination.k8s.io", "leases", SYSTEM, ""),
    ("get update", "coordination.k8s.io", "leases", SYSTEM, "msjob-controller"),
]
DENIED = [
    ("create update patch deletecollection", GROUP, MSJOBS, "anywhere", ""),
    ("patch get", GROUP, f"{MSJOBS}/status", "anywhere", ""),
    ("patch update", GROUP, f"{MSJOBS}/scale", "anywhere", ""),
    ("update deletecollection", "", "pods", "anywhere", ""),
    ("create get", "", "pods/exec", "anywhere", ""),
    ("create", "", "pods/eviction", "anywhere", ""),
    ("update patch", "", "services", "anywhere", ""),
    ("update patch deletecollection", "discovery.k8s.io", "endpointslices", "anywhere", ""),
    ("get create update", "", "endpoints", "anywhere", ""),
    ("get list watch create", "", "secrets", "anywhere", ""),
    ("get list create", "", "configmaps", SYSTEM, ""),
    ("get list watch delete", "", "events", "anywhere", ""),
    ("get list", "", "nodes", "", ""),
    ("list", "", "namespaces", "", ""),
    ("create", "", "serviceaccounts/token", SYSTEM, "msjob-controller"),
    ("get list create", "scheduling.volcano.sh", "podgroups", "anywhere", ""),
    ("get list create", "scheduling.x-k8s.io", "podgroups", "anywhere", ""),
    ("get update", "coordination.k8s.io", "leases", SYSTEM, "other"),
    ("get update create", "coordination.k8s.io", "leases", "anywhere", "msjob-controller"),
    ("get create patch", "apiextensions.k8s.io", "customresourcedefinitions", "", ""),
    ("create bind escalate", "rbac.authorization.k8s.io", "clusterroles", "", ""),
    ("create", "apps", "deployments", "anywhere", ""),
]


@pytest.mark.parametrize(
    ("verbs", "group", "resource", "namespace", "name", "is_allowed"),
    [*((*rule, True) for rule in ALLOWED), *((*rule, False) for rule in DENIED)],
)
def test_rights_of_operator(
    reviewer: Reviewer, verbs: str, group: str, resource: str, namespace: str, name: str, is_allowed: bool
) -> None:
    for verb in verbs.split():
        assert reviewer.allows(OPERATOR, verb, group, resource, namespace, name) is is_allowed, verb


@pytest.mark.parametrize(
    ("role", "allowed", "denied"),
    [
        ("edit", "get list watch create update patch delete", ""),
        ("admin", "get list watch create update patch delete", ""),
        ("view", "get list watch", "create update patch delete"),
    ],
)
def test_tenants_are_limited_to_their_namespace(
    cluster: Cluster, reviewer: Reviewer, api_server: ControlPlane, role: str, allowed: str, denied: str
) -> None:
    user = f"tenant-{role}"
    with api_server.make_namespace() as own, api_server.make_namespace() as other:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user, "namespace": own},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
        }
        cluster.apply(binding)
        # A controller adds the rules to the role.
        wait_for(lambda: reviewer.allows(user, "get", GROUP, MSJOBS, own), lambda: f"{role} has no rules of MSJobs")
        for verb in allowed.split():
            assert reviewer.allows(user, verb, GROUP, MSJOBS, own), verb
            assert not reviewer.allows(user, verb, GROUP, MSJOBS, other), verb
        for verb in denied.split():
            assert not reviewer.allows(user, verb, GROUP, MSJOBS, own), verb
        # The status and the operator's own objects are not writable for them.
        assert not reviewer.allows(user, "patch", GROUP, f"{MSJOBS}/status", own)
        assert not reviewer.allows(user, "update", GROUP, f"{MSJOBS}/status", own)
        assert not reviewer.allows(user, "update", "coordination.k8s.io", "leases", SYSTEM, "msjob-controller")


def test_roles_suffice_for_whole_job(
    cluster: Cluster, api_server: ControlPlane, api_namespace: str, tmp_path: Path
) -> None:
    account = api_server.write_kubeconfig(OPERATOR, ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}"])
    jobs = Jobs(api_server.kubeconfig, api_namespace)
    flags = ("--namespace", api_namespace, "--leader-elect", "--lease-namespace", SYSTEM)
    with OperatorProcess(account, tmp_path / "log", *flags) as operator:
        jobs.create("job", workers=2, ttlSecondsAfterFinished=3)
        jobs.launch("job", 3)
        jobs.end("job-worker-1", 1)
        jobs.wait("job", "Restarting")
        jobs.wait_pods("job", lambda pods: all(map(is_deleting, pods.values())))
        jobs.reap("job")
        jobs.launch("job", 3)
        jobs.patch("job", {"spec": {"runPolicy": {"suspend": True}}})
        jobs.wait("job", "Suspended")
        jobs.reap("job")
        jobs.patch("job", {"spec": {"runPolicy": {"suspend": False}}})
        jobs.launch("job", 3)
        jobs.end("job-worker-0", 0)
        jobs.wait("job", "Succeeded")
        jobs.wait_gone("job")
        assert operator.read_metric("msjob_api_requests_total", code="403") == 0
        assert operator.read_metric("msjob_lost_events_total") == 0


def test_deployment_is_admitted_in_its_restricted_namespace(cluster: Cluster) -> None:
    """Pod Security validates pods on creation: two are created, and wait for a node."""
    labels = "app.kubernetes.io/name=msjob-controller"
    for pods in cluster.watch(PODS, SYSTEM, labels=labels, timeout=60):
        if len(pods) == 2:
            return
    pytest.fail("the Deployment's pods are not made")


def test_single_namespace_has_no_permissions_outside(
    cluster: Cluster, reviewer: Reviewer, api_server: ControlPlane
) -> None:
    with api_server.make_namespace() as home, api_server.make_namespace() as own:
        list(
            apply_objects(
                build_objects(InstallOptions(namespace=home, watched=(own,))), kubeconfig=str(api_server.kubeconfig)
            )
        )
        user = f"system:serviceaccount:{home}:msjob-controller"
        assert reviewer.allows(user, "create", "", "pods", own)
        assert not reviewer.allows(user, "create", "", "pods", home)
        assert not reviewer.allows(user, "list", GROUP, MSJOBS, "")
        assert reviewer.allows(user, "create", "coordination.k8s.io", "leases", home)


@pytest.mark.parametrize("scheduler", ["volcano", "scheduler-plugins"])
def test_every_overlay_is_accepted(cluster: Cluster, scheduler: str) -> None:
    choices = InstallOptions(gang_scheduler=scheduler, kueue=True, istio_sidecar=True)  # type: ignore[arg-type]
    for document in build_objects(choices):
        cluster.apply(document, manager="kfp-mindspore-install", dry_run=True)


def test_second_install_changes_nothing(cluster: Cluster, api_server: ControlPlane) -> None:
    def read() -> dict[str, str]:
        versions = {}
        for document in build_objects(InstallOptions()):
            resource = cluster.resolve_resource(document["apiVersion"], document["kind"])
            namespace = document["metadata"].get("namespace", "")
            found = cluster.get(resource, document["metadata"]["name"], namespace)
            # A status has its own life.
            key = f"{document['kind']}/{document['metadata']['name']}"
            versions[key] = str(found["metadata"].get("generation") or found["metadata"]["resourceVersion"])
        return versions

    before = read()
    list(apply_objects(build_objects(InstallOptions()), kubeconfig=str(api_server.kubeconfig)))
    assert read() == before
