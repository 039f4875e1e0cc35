"""Jobs on a node, with one operator for all tests that do nothing to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kfp_mindspore.kube import Cluster
from kfp_mindspore.msjob.crd import build_crd
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.kserve import KServe, run_kserve
from tests.support.node_jobs import NodeJobs
from tests.support.operators import OperatorProcess


@pytest.fixture(scope="session")
def definition(own_cluster: NodeCluster) -> None:
    """Let the cluster know MSJobs."""
    Cluster(own_cluster.kubeconfig).apply(build_crd())


@pytest.fixture(scope="session")
def shared_operator(
    own_cluster: NodeCluster, definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, OperatorProcess]]:
    """Return a namespace and the operator that takes care of it."""
    log = tmp_path_factory.mktemp("operator") / "log"
    with (
        own_cluster.make_namespace("scenarios") as namespace,
        OperatorProcess(own_cluster.kubeconfig, log, "-n", namespace) as operator,
    ):
        yield namespace, operator


@pytest.fixture(scope="session")
def kserve(own_cluster: NodeCluster, pod_packages: PodPackages) -> Iterator[KServe]:
    """Return KServe on the cluster, with the project's serving runtime."""
    with run_kserve(own_cluster, pod_packages) as kserve:
        yield kserve


@pytest.fixture
def jobs(own_cluster: NodeCluster, shared_operator: tuple[str, OperatorProcess]) -> Iterator[NodeJobs]:
    """Return what makes jobs; the operator must have survived what the test did, without a trace in its log."""
    namespace, operator = shared_operator
    process = operator.process
    yield NodeJobs(own_cluster, namespace)
    assert process is not None
    assert process.poll() is None, operator.read_log()
    assert "Traceback" not in operator.read_log(), operator.read_log()
