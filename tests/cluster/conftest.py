"""Fixtures of a real Kubernetes, see README.md in this directory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.kube.cluster import Cluster as ApiClient
from tests.cluster.infrastructure.api_server import Api, ApiServer
from tests.cluster.infrastructure.binaries import HELM, get_binaries
from tests.cluster.infrastructure.cluster import Cluster, OwnedCluster, open_current_cluster
from tests.cluster.infrastructure.packages import PodPackages, install_project
from tests.cluster.infrastructure.prerequisites import UnavailableError
from tests.support.kube.helm import Helm
from tests.support.kube.operators import install_definition

CLUSTER_VARIABLE = "KFP_MINDSPORE_TEST_CLUSTER"
REQUIRE_VARIABLE = "KFP_MINDSPORE_REQUIRE_CLUSTER"
HELM_VARIABLE = "KFP_MINDSPORE_TEST_HELM"
# Pods start and terminate slowly on a loaded machine of two cores.
TIMEOUT_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)
            # Workers of pytest-xdist: one has the cluster with a node, the others API servers.
            fixtures = getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("node" if "cluster" in fixtures else item.path.stem))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def start(make: Callable[[], Any]) -> Any:
    """Start a cluster; if it cannot run on this machine, skip the test, or fail with KFP_MINDSPORE_REQUIRE_CLUSTER."""
    try:
        return make()
    except UnavailableError as error:
        if os.environ.get(REQUIRE_VARIABLE):
            pytest.fail(f"{error} ({REQUIRE_VARIABLE} is set)", pytrace=False)
        pytest.skip(str(error))


def skip_without_helm() -> None:
    """Skip the test unless tests with Helm are requested."""
    if not os.environ.get(HELM_VARIABLE):
        pytest.skip(f"{HELM_VARIABLE} is not set: `make test-helm` builds Helm and sets it")


def is_current_wanted() -> bool:
    """Return whether the tests use the cluster of the current KUBECONFIG."""
    value = os.environ.get(CLUSTER_VARIABLE, "")
    if value not in ("", "own", "current"):
        pytest.fail(f"{CLUSTER_VARIABLE}: must be `own` or `current`, got {value!r}", pytrace=False)
    return value == "current"


@pytest.fixture(scope="session")
def api_server() -> Iterator[Api]:
    """Return an API server without nodes, shared by all tests; use `api_namespace`."""
    if is_current_wanted():
        yield start(open_current_cluster)
        return
    with start(ApiServer) as server:
        yield server


@pytest.fixture
def start_api_server() -> Iterator[Callable[..., ApiServer]]:
    """Return a function that starts an API server for one test, with the arguments of ApiServer."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(start(lambda: ApiServer(**options)))


@pytest.fixture
def api_namespace(api_server: Api) -> Iterator[str]:
    """Return a new namespace of `api_server`."""
    with api_server.make_namespace() as name:
        yield name


@pytest.fixture(scope="module")
def crd_cluster(api_server: Api) -> ApiClient:
    """Return a client of `api_server`, which has the definition of MSJob."""
    install_definition(api_server.kubeconfig)
    return ApiClient(api_server.kubeconfig)


@pytest.fixture(scope="module")
def module_namespace(api_server: Api) -> Iterator[str]:
    """Return a new `api_server` namespace for a module's tests."""
    with api_server.make_namespace() as name:
        yield name


@pytest.fixture(scope="session")
def cluster() -> Iterator[Api]:
    """Return a cluster with a node, shared by all tests; use `namespace`."""
    if is_current_wanted():
        yield start(open_current_cluster)
        return
    with start(OwnedCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def own_cluster(cluster: Api) -> Cluster:
    """Return the cluster if the tests control its processes; skip otherwise."""
    if not isinstance(cluster, Cluster):
        pytest.skip(f"the test needs control of the cluster: unset {CLUSTER_VARIABLE}")
    return cluster


@pytest.fixture
def namespace(cluster: Api) -> Iterator[str]:
    """Return a new namespace of `cluster`."""
    with cluster.make_namespace() as name:
        yield name


@pytest.fixture(scope="session")
def registry(own_cluster: Cluster) -> str:
    """Return `address:port` of a registry for this machine, pods and the node, by plain HTTP."""
    return own_cluster.start_registry()


@pytest.fixture(scope="session")
def pod_packages(own_cluster: Cluster) -> PodPackages:
    """Return packages for pods of the image `PYTHON`: MindSpore and the working tree."""
    return start(lambda: install_project(own_cluster.directory / f"project-{secrets.token_hex(3)}"))


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Return Helm without a cluster."""
    skip_without_helm()
    return Helm(start(lambda: get_binaries(HELM)) / "helm", tmp_path)
