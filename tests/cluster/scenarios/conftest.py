"""Jobs on a node, with one operator for all tests that do nothing to it, and services on KServe."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.testing import Lifecycle
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.controllers.kserve_cluster import KServe, run_kserve
from tests.support.kube.node_jobs import NodeJobs
from tests.support.kube.operator_image import write_operator_image
from tests.support.kube.operators import OperatorProcess
from tests.support.kube.step_pods import StepRunner
from tests.support.remote.object_store import GatedProxy, ObjectStore, start_object_store
from tests.support.serving.serving_cases import FIRST, SECOND


@pytest.fixture(scope="session")
def definition(own_cluster: NodeCluster) -> None:
    """Install the definition of MSJob."""
    Cluster(own_cluster.kubeconfig).apply(build_crd())


@pytest.fixture(scope="session")
def shared_operator(
    own_cluster: NodeCluster, definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, OperatorProcess]]:
    """Return a namespace and the operator that watches it."""
    log = tmp_path_factory.mktemp("operator") / "log"
    with (
        own_cluster.make_namespace("scenarios") as namespace,
        OperatorProcess(own_cluster.kubeconfig, log, "-n", namespace) as operator,
    ):
        yield namespace, operator


@pytest.fixture(scope="session")
def operator_image(
    own_cluster: NodeCluster, pod_packages: PodPackages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the name of the operator's image on the node."""
    name = f"kfp-mindspore.test/operator:{secrets.token_hex(4)}"
    archive = tmp_path_factory.mktemp("image") / "operator.tar"
    write_operator_image(name, archive, pod_packages)
    own_cluster.import_image(archive)
    archive.unlink()
    yield name
    own_cluster.remove_image(name)


@pytest.fixture(scope="session")
def kserve(own_cluster: NodeCluster, pod_packages: PodPackages) -> Iterator[KServe]:
    """Return KServe on the cluster, with the project's serving runtime."""
    with run_kserve(own_cluster, pod_packages) as kserve:
        yield kserve


@pytest.fixture(scope="session")
def bundles(models: Path, lifecycle: Lifecycle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two models of digits with the same raw images, and one whose graph is damaged."""
    broken = tmp_path_factory.mktemp("bundles") / "broken"
    shutil.copytree(lifecycle.bundle, broken)
    graph = broken / "model.mindir"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 0xFF
    graph.chmod(0o644)
    graph.write_bytes(content)
    return {FIRST: lifecycle.bundle, SECOND: models / "raw", "broken": broken}


@pytest.fixture(scope="session")
def store(kserve: KServe, bundles: dict[str, Path]) -> Iterator[ObjectStore]:
    """Return an S3 server with the bundles, for pods and this machine."""
    with start_object_store(kserve.cluster.network.outside) as store:
        for name, bundle in bundles.items():
            for file in filter(Path.is_file, bundle.rglob("*")):
                store.put(f"{name}/{file.relative_to(bundle)}", file.read_bytes())
        yield store


@pytest.fixture
def jobs(own_cluster: NodeCluster, shared_operator: tuple[str, OperatorProcess]) -> Iterator[NodeJobs]:
    """Return what makes jobs; the operator must have survived what the test did, without a trace in its log."""
    namespace, operator = shared_operator
    process = operator.process
    yield NodeJobs(own_cluster, namespace)
    assert process is not None
    assert process.poll() is None, operator.read_log()
    assert "Traceback" not in operator.read_log(), operator.read_log()


@pytest.fixture(scope="session")
def artifact_store(own_cluster: NodeCluster) -> Iterator[ObjectStore]:
    """Return an S3 server for the artifacts of steps."""
    with start_object_store(own_cluster.network.outside) as store:
        yield store


@pytest.fixture
def store_proxy(own_cluster: NodeCluster, artifact_store: ObjectStore) -> Iterator[GatedProxy]:
    """Return the proxy by which the pods of steps and of their jobs reach `artifact_store`."""
    with GatedProxy(artifact_store, own_cluster.network.outside) as proxy:
        yield proxy


@pytest.fixture
def training_steps(
    jobs: NodeJobs, pod_packages: PodPackages, artifact_store: ObjectStore, store_proxy: GatedProxy
) -> StepRunner:
    """Return what runs steps in the namespace of `jobs`, with KFP's configuration for `artifact_store`."""
    for document in artifact_store.build_kfp_configuration(store_proxy.url):
        metadata = {**document["metadata"], "namespace": jobs.namespace}
        jobs.api.apply({**document, "metadata": metadata})
    return StepRunner(jobs.cluster, jobs.namespace, pod_packages, ("run", "training"))
