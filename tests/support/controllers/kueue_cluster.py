"""Kueue beside a test cluster, with or without a node, and its quotas."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.msjob.api.kueue import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS, name_workload
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.api_server import ControlPlane
from tests.cluster.infrastructure.binaries import KUEUE, get_binaries
from tests.cluster.infrastructure.control_plane import is_healthy
from tests.support.controllers.kserve_cluster import KUBEFLOW_VARIABLE
from tests.support.controllers.webhooks import build_client_config, get_address, issue_certificate, locate_webhook
from tests.support.kube.operators import SECONDS, wait_for
from tests.support.ports import reserve_port

VERSION = "kueue.x-k8s.io/v1beta2"
FRAMEWORKS = ("batch/job", "trainer.kubeflow.org/trainjob")
_NAME = "kueue"
_CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
# Definitions whose stored version is not the one that the manager reads.
_CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
_HOOKED = {"jobs", "trainjobs", "clusterqueues", "cohorts", "resourceflavors", "workloads", "workloads/status"}
# Without its own certificate management the manager reads the metrics server's certificate from /etc/kueue, also when
# that server is off: a mount namespace has the cluster's directory in place of /etc.
_WITH_CERTIFICATES = 'mount --bind "$0" /etc && exec "$@"'


@contextlib.contextmanager
def run_kueue(cluster: ControlPlane) -> Iterator[None]:
    """Run Kueue with its own definitions and webhooks; afterwards neither they nor its objects are left."""
    if not os.environ.get(KUBEFLOW_VARIABLE):
        pytest.skip(f"the build is slow: run `make test-kueue`, which sets {KUBEFLOW_VARIABLE}")
    folder = Path(start(lambda: get_binaries(KUEUE)))
    port, probe = reserve_port(), reserve_port()
    definitions = [_read_definition(cluster, folder, name, port) for name in map(_get_stem, KUEUE.files) if name]
    hooks = [_select_hooks(cluster, item, port) for item in _read(folder / "kueue-webhooks.yaml")]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
    list(apply_objects([*definitions, namespace], kubeconfig=str(cluster.kubeconfig)))
    api = Cluster(cluster.kubeconfig)
    cluster.daemons.start(_NAME, _build_command(cluster, folder, port, probe))
    try:
        cluster.daemons.wait_ready(_NAME, lambda: is_healthy(f"http://{get_address(cluster)}:{probe}/readyz"))
        list(apply_objects(hooks, kubeconfig=str(cluster.kubeconfig)))
        yield
        # A controller that exited explains a failure better than the test's own timeout.
        cluster.daemons.check(_NAME)
        # Kueue's finalizers end here, and the conversion of what is stored with it.
        _delete_definitions(api, definitions)
    finally:
        for item in hooks:
            api.delete(api.resolve_resource(item["apiVersion"], item["kind"]), item["metadata"]["name"])
        cluster.daemons.stop(_NAME)


class Queue:
    """A ClusterQueue with a LocalQueue in one namespace; its quota counts pods.

    Args:
        api: The cluster.
        namespace: The LocalQueue's.
        name: Name of both queues.
    """

    def __init__(self, api: Cluster, namespace: str, name: str) -> None:
        self.api = api
        self.namespace = namespace
        self.name = name

    def create(
        self,
        pods: int,
        *,
        node_labels: Mapping[str, str] | None = None,
        tolerations: Sequence[Mapping[str, Any]] = (),
        preemption: bool = False,
    ) -> Queue:
        """Create the queues with a flavor of their own.

        Args:
            pods: Pods that may be admitted at once.
            node_labels: Node labels of the flavor.
            tolerations: Tolerations of the flavor.
            preemption: Whether a Workload with a higher priority evicts a lower one.
        """
        flavor = {"nodeLabels": dict(node_labels or {}), "tolerations": [dict(each) for each in tolerations]}
        quota = {"name": self.name, "resources": [{"name": "pods", "nominalQuota": pods}]}
        spec = {
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "resourceGroups": [{"coveredResources": ["pods"], "flavors": [quota]}],
            "preemption": {"withinClusterQueue": "LowerPriority" if preemption else "Never"},
        }
        self.api.apply(build("ResourceFlavor", self.name, spec={key: value for key, value in flavor.items() if value}))
        self.api.apply(build("ClusterQueue", self.name, spec=spec))
        self.api.apply(build("LocalQueue", self.name, self.namespace, spec={"clusterQueue": self.name}))
        self.wait_condition(CLUSTER_QUEUES, "Active", "True")
        return self

    def set_quota(self, pods: int) -> None:
        """Change how many pods may be admitted at once."""
        groups = self.api.get(CLUSTER_QUEUES, self.name)["spec"]["resourceGroups"]
        groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = pods
        self.api.patch(CLUSTER_QUEUES, self.name, "", {"spec": {"resourceGroups": groups}})

    def stop(self, policy: str = "HoldAndDrain") -> None:
        """Set the LocalQueue's stop policy."""
        self.api.patch(LOCAL_QUEUES, self.name, self.namespace, {"spec": {"stopPolicy": policy}})

    def count_used(self) -> int:
        """Return how many pods of the quota are reserved."""
        status = self.api.get(CLUSTER_QUEUES, self.name).get("status") or {}
        flavors = status.get("flavorsUsage") or []
        return sum(int(resource.get("total") or 0) for flavor in flavors for resource in flavor["resources"])

    def wait_used(self, pods: int) -> None:
        """Wait until that many pods of the quota are reserved."""
        wait_for(
            lambda: self.count_used() == pods,
            lambda: f"{self.name}: {self.count_used()} pods are reserved instead of {pods}: {self.list_workloads()}",
        )

    def wait_condition(self, resource: Resource, kind: str, status: str) -> dict[str, Any]:
        """Wait until one of the queues has a condition; return the condition."""
        namespace = self.namespace if resource.namespaced else ""
        fields = f"metadata.name={self.name}"
        found: dict[str, Any] = {}
        for objects in self.api.watch(resource, namespace, fields=fields, timeout=SECONDS):
            found = get_condition(objects.get(self.name) or {}, kind)
            if found.get("status") == status:
                return found
        raise AssertionError(f"{resource.kind} {self.name}: {kind} is not {status}: {found}")

    def list_workloads(self) -> list[dict[str, Any]]:
        """Return the Workloads of the LocalQueue."""
        items = self.api.list(WORKLOADS, self.namespace)
        return [item for item in items if item["spec"].get("queueName") == self.name]


def get_workload(api: Cluster, namespace: str, job: str) -> dict[str, Any]:
    """Return an MSJob's Workload."""
    return api.get(WORKLOADS, name_workload(job), namespace)


def wait_workload(api: Cluster, namespace: str, name: str, kind: str, status: str = "True") -> dict[str, Any]:
    """Wait until a Workload has a condition; return the Workload."""
    workload: dict[str, Any] = {}
    for objects in api.watch(WORKLOADS, namespace, timeout=SECONDS):
        workload = objects.get(name) or {}
        if get_condition(workload, kind).get("status") == status:
            return workload
    raise AssertionError(f"{name}: {kind} is not {status} after {SECONDS:g} s: {workload.get('status')}")


def get_condition(document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of an object; an empty one if it has none of that type."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == kind), {})


def build(kind: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    """Return a manifest of Kueue's."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": VERSION, "kind": kind, "metadata": metadata, **fields}


def _build_command(cluster: ControlPlane, folder: Path, port: int, probe: int) -> list[str]:
    directory = issue_certificate(cluster, _NAME)
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    metrics = directory / "kueue" / "metrics"
    metrics.mkdir(parents=True, exist_ok=True)
    (metrics / "certs").symlink_to(certificates)
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f":{probe}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": list(FRAMEWORKS)},
        # Its server listens at a fixed port; pending Workloads are read from the API server.
        "featureGates": {"VisibilityOnDemand": False},
    }
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    program = [str(folder / "kueue-manager"), f"--kubeconfig={cluster.kubeconfig}", f"--config={file}"]
    return ["unshare", "--mount", "sh", "-c", _WITH_CERTIFICATES, str(directory), *program]


def _get_stem(file: str) -> str:
    return "" if file == "kueue-webhooks.yaml" else Path(file).stem


def _read_definition(cluster: ControlPlane, folder: Path, name: str, port: int) -> dict[str, Any]:
    (definition,) = _read(folder / f"{name}.yaml")
    if name in _CONVERTED:
        webhook = {
            "clientConfig": build_client_config(cluster, port, "/convert"),
            "conversionReviewVersions": ["v1"],
        }
        definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return definition


def _select_hooks(cluster: ControlPlane, configuration: dict[str, Any], port: int) -> dict[str, Any]:
    """Return the webhooks of Kueue's own kinds and of the enabled frameworks."""
    webhooks = [hook for hook in configuration["webhooks"] if _HOOKED.issuperset(hook["rules"][0]["resources"])]
    name = f"kueue-{configuration['kind'].lower()}"
    return locate_webhook(cluster, {**configuration, "webhooks": webhooks}, port, name)


def _delete_definitions(api: Cluster, definitions: Sequence[Mapping[str, Any]]) -> None:
    names = {item["metadata"]["name"] for item in definitions}
    for name in names:
        api.delete(_CRDS, name)

    def list_left() -> set[str]:
        return names & {item["metadata"]["name"] for item in api.list(_CRDS)}

    wait_for(lambda: not list_left(), lambda: f"Kueue's definitions are not deleted: {sorted(list_left())}")


def _read(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]
