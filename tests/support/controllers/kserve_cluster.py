"""KServe's controller and webhooks in Standard mode, beside a test cluster, and namespaces whose pods serve models."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.inference.backends.rollout import DEPLOYMENTS
from kfp_mindspore.inference.runtime import build_serving_runtime
from kfp_mindspore.inference.service import MODEL_FORMAT
from kfp_mindspore.inference.store_account import build_account, build_secret
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, Resource
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import KEDA, KSERVE, get_binaries
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.cluster import resolve
from tests.cluster.infrastructure.control_plane import CLUSTER_DOMAIN, is_healthy
from tests.cluster.infrastructure.packages import ImagePackages
from tests.cluster.kserve_images import AGENT_IMAGE, INITIALIZER_IMAGE, ROUTER_IMAGE, SERVER_IMAGE, make_kserve_archives
from tests.support.controllers.webhooks import issue_certificate, locate_webhook
from tests.support.remote.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore

KUBEFLOW_VARIABLE = "KFP_MINDSPORE_TEST_KUBEFLOW"
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
_USER, _NAMESPACE, _MANAGER = "kserve-controller-manager", "kserve", "kserve-manager"
_DEFINITIONS = (
    "clusterservingruntimes",
    "clusterstoragecontainers",
    "inferencegraphs",
    "inferenceservices",
    "servingruntimes",
    "trainedmodels",
)
_WEBHOOK_PORT, _PROBE_PORT = 9443, 8081
# Small enough for two versions of two services on two cores.
# Of a scale-down, which waits five minutes for the load to come back.
_REPLICAS_SECONDS = 600.0
_REQUESTS = {"cpuRequest": "20m", "cpuLimit": "2", "memoryRequest": "64Mi", "memoryLimit": "2Gi"}


class KServe:
    """A cluster with KServe, whose ClusterServingRuntime is the project's.

    Args:
        cluster: The cluster.
        packages: Packages of the server's pods.
    """

    def __init__(self, cluster: NodeCluster, packages: ImagePackages) -> None:
        self.cluster = cluster
        self.packages = packages
        self.api = Cluster(cluster.kubeconfig)

    @contextlib.contextmanager
    def make_namespace(self, *, restricted: bool = False) -> Iterator[str]:
        """Create a namespace with the claims of the server's pods; delete it after the block, without waiting.

        Args:
            restricted: Enforce the Pod Security Standard `restricted`.
        """
        with self.cluster.make_namespace("kserve") as namespace:
            if restricted:
                labels = {"pod-security.kubernetes.io/enforce": "restricted"}
                self.api.patch(NAMESPACES, namespace, "", {"metadata": {"labels": labels}})
            volumes = {volume["name"]: Path(volume["hostPath"]["path"]) for volume in self.packages.volumes}
            try:
                for name, path in volumes.items():
                    self.add_claim(namespace, name, path)
                yield namespace
            finally:
                for volume in self.api.list(VOLUMES, labels=f"namespace={namespace}"):
                    self.api.delete(VOLUMES, volume["metadata"]["name"])

    def add_claim(self, namespace: str, name: str, path: Path) -> None:
        """Create a claim of a directory of this machine, and wait until it is bound.

        Restricted namespaces refuse hostPath volumes.
        """
        capacity = {"storage": "1Gi"}
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = f"{namespace}-{name}"
        self.api.apply({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": {"namespace": namespace}},
            "spec": {
                **common,
                "capacity": capacity,
                "hostPath": {"path": str(path), "type": "Directory"},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace},
            },
        })  # fmt: skip
        self.api.apply({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**common, "volumeName": volume, "resources": {"requests": capacity}},
        })  # fmt: skip
        # The scheduler sees a claim that is not bound yet as a reason to fail.
        for claims in self.api.watch(PERSISTENT_VOLUME_CLAIMS, namespace, fields=f"metadata.name={name}", timeout=60):
            if claims[name].get("status", {}).get("phase") == "Bound":
                return
        raise TimeoutError(f"claim {name} is not bound")

    def make_models(self, namespace: str, name: str, bundles: Mapping[str, Path]) -> Path:
        """Create a claim with copies of model bundles; return its directory on this machine."""
        directory = self.cluster.make_volume(f"{namespace}-{name}")
        for folder, bundle in bundles.items():
            shutil.copytree(bundle, directory / folder)
        self.add_claim(namespace, name, directory)
        return directory

    def add_store(self, namespace: str, store: ObjectStore) -> None:
        """Create the Secret `store` and the service account `models` that has it, for `s3://` URIs.

        The keys are the environment of the AWS SDKs, the annotations those of KServe's storage initializer.
        """
        secret = build_secret("store", namespace, (ACCESS_KEY, SECRET_KEY), endpoint=store.url, region="us-east-1")
        account = {**build_account("models", namespace), "secrets": [{"name": "store"}]}
        for document in (secret, account):
            self.api.apply(document)

    def build_runtime(self, model_format: str = MODEL_FORMAT) -> dict[str, Any]:
        """Return the project's ClusterServingRuntime with its packages from the claims of a namespace."""
        runtime = build_serving_runtime(SERVER_IMAGE, model_format=model_format)
        names = [volume["name"] for volume in self.packages.volumes]
        runtime["spec"]["volumes"] += [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
        (container,) = runtime["spec"]["containers"]
        container["volumeMounts"] += self.packages.mounts
        # The pods of two versions of two services fit on two cores.
        container["resources"]["requests"] = {"cpu": "50m", "memory": "128Mi"}
        return runtime


def skip_without_kserve() -> None:
    """Skip the test unless tests with KServe are requested."""
    if not os.environ.get(KUBEFLOW_VARIABLE):
        pytest.skip(f"the build of KServe is slow: run `make test-kubeflow`, which sets {KUBEFLOW_VARIABLE}")


@contextlib.contextmanager
def run_kserve(cluster: NodeCluster, packages: ImagePackages) -> Iterator[KServe]:
    """Run KServe with its own definitions, role, webhooks and default configuration, for Standard mode without ingress.

    The controller is a process in the node's network, as the user that its ClusterRole is bound to.
    """
    skip_without_kserve()
    folder = Path(start(lambda: get_binaries(KSERVE)))
    for archive in start(make_kserve_archives).values():
        cluster.import_image(archive)
    kserve = KServe(cluster, packages)
    definitions = [folder / f"{name}.yaml" for name in _DEFINITIONS]
    # The controller looks for it once, as it starts.
    definitions.append(Path(start(lambda: get_binaries(KEDA))) / "keda.sh_scaledobjects.yaml")
    objects = [*map(_read, definitions), *_list_objects(folder)]
    list(apply_objects(objects, kubeconfig=str(cluster.kubeconfig)))
    command = ["env", f"TMPDIR={issue_certificate(cluster, 'kserve')}", f"POD_NAMESPACE={_NAMESPACE}"]
    flags = ["--metrics-addr=0", f"--webhook-port={_WEBHOOK_PORT}", f"--health-probe-addr=:{_PROBE_PORT}"]
    kubeconfig = cluster.write_kubeconfig(_USER)
    cluster.daemons.start(_MANAGER, [*command, str(folder / _MANAGER), f"--kubeconfig={kubeconfig}", *flags])
    webhooks = [
        locate_webhook(cluster, item, _WEBHOOK_PORT)
        for item in yaml.safe_load_all((folder / "webhooks.yaml").read_text())
    ]
    try:
        ready = f"http://{cluster.network.node}:{_PROBE_PORT}/readyz"
        cluster.daemons.wait_ready(_MANAGER, lambda: is_healthy(ready))
        list(apply_objects(webhooks, kubeconfig=str(cluster.kubeconfig)))
        kserve.api.apply(kserve.build_runtime())
        kserve.api.apply(_build_storage_container(folder))
        yield kserve
        # A controller that exited explains a failure better than the test's own timeout.
        cluster.daemons.check(_MANAGER)
    finally:
        for item in webhooks:
            resource = kserve.api.resolve_resource(item["apiVersion"], item["kind"])
            with contextlib.suppress(Exception):
                kserve.api.delete(resource, item["metadata"]["name"])
        cluster.daemons.stop(_MANAGER)


@contextlib.contextmanager
def resolve_services(cluster: NodeCluster) -> Iterator[None]:
    """Resolve names of the cluster's Services in this process, as in a pod; the addresses are reachable from here."""
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(host, str) and host.endswith(f".svc.{CLUSTER_DOMAIN}"):
            addresses = resolve(cluster.network.dns, host)
            if not addresses:
                raise socket.gaierror(socket.EAI_NONAME, f"{host}: the cluster's DNS has no address")
            host = addresses[0]
        return original(host, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield


def wait_replicas(kserve: KServe, name: str, namespace: str, count: int) -> None:
    """Wait until a Deployment is asked for so many replicas, and has them."""
    status: dict[str, Any] = {}
    for found in kserve.api.watch(DEPLOYMENTS, namespace, fields=f"metadata.name={name}", timeout=_REPLICAS_SECONDS):
        status = found[name].get("status") or {}
        if found[name]["spec"]["replicas"] == status.get("readyReplicas") == status.get("replicas") == count:
            return
    raise AssertionError(f"{name} has not {count} replicas after {_REPLICAS_SECONDS:g} s: {status}")


def _list_objects(folder: Path) -> list[dict[str, Any]]:
    """Return KServe's namespace, configuration and role, bound to the controller's user."""
    role = _read(folder / "role.yaml")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]}
    configuration = _read(folder / "configuration.yaml")
    changes: dict[str, dict[str, Any]] = {
        "deploy": {"defaultDeploymentMode": "Standard"},
        "ingress": {"disableIngressCreation": True},
        "inferenceService": {"resource": _REQUESTS},
        "router": {"image": ROUTER_IMAGE, **_REQUESTS},
        "agent": {"image": AGENT_IMAGE, **_REQUESTS},
        "logger": {"image": AGENT_IMAGE, **_REQUESTS},
        # The sidecar of an oci:// model and the server have one user, who reads the sidecar's files below /proc.
        "storageInitializer": {"image": INITIALIZER_IMAGE, **_REQUESTS, "enableModelcar": True, "uidModelcar": 1010},
    }
    data = configuration["data"]
    for name, values in changes.items():
        data[name] = json.dumps({**json.loads(data[name]), **values})
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        {**configuration, "data": data},
        role,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _USER},
            "roleRef": reference,
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": _USER}],
        },
    ]


def _build_storage_container(folder: Path) -> dict[str, Any]:
    document = _read(folder / "storage-container.yaml")
    container = document["spec"]["container"]
    container["image"] = INITIALIZER_IMAGE
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    return document


def _read(file: Path) -> dict[str, Any]:
    (document,) = [document for document in yaml.safe_load_all(file.read_text()) if document]
    return dict(document)
