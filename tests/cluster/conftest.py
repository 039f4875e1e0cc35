"""Fixtures with a real Kubernetes; see README.md in this directory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.infrastructure.api_server import Api, ApiServer
from tests.cluster.infrastructure.cluster import Cluster, OwnedCluster, find_current
from tests.cluster.infrastructure.packages import PodPackages, install_project
from tests.cluster.infrastructure.prerequisites import UnavailableError

CLUSTER_VARIABLE = "KFP_MINDSPORE_TEST_CLUSTER"
REQUIRE_VARIABLE = "KFP_MINDSPORE_REQUIRE_CLUSTER"
# A test on a loaded two-core machine waits for pods to start, end and be deleted, each in its own time.
TIMEOUT_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def start(make: Callable[[], Any]) -> Any:
    """Start a cluster; where this machine cannot have one, skip, or fail when the environment says that it must."""
    try:
        return make()
    except UnavailableError as error:
        if os.environ.get(REQUIRE_VARIABLE):
            pytest.fail(f"{error} ({REQUIRE_VARIABLE} is set)", pytrace=False)
        pytest.skip(str(error))


def is_current_wanted() -> bool:
    """Tell whether the tests are to run on the cluster of the current KUBECONFIG."""
    value = os.environ.get(CLUSTER_VARIABLE, "")
    if value not in ("", "own", "current"):
        pytest.fail(f"{CLUSTER_VARIABLE}: must be `own` or `current`, got {value!r}", pytrace=False)
    return value == "current"


@pytest.fixture(scope="session")
def api_server() -> Iterator[Api]:
    """Return an API server that all tests share: use a namespace of your own (`api_namespace`). No pod runs."""
    if is_current_wanted():
        yield start(find_current)
        return
    with start(ApiServer) as server:
        yield server


@pytest.fixture
def start_api_server() -> Iterator[Callable[..., ApiServer]]:
    """Return a function that starts an API server for one test alone; it takes ApiServer's arguments."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(start(lambda: ApiServer(**options)))


@pytest.fixture
def api_namespace(api_server: Api) -> Iterator[str]:
    """Return a new namespace of `api_server`."""
    with api_server.make_namespace() as name:
        yield name


@pytest.fixture(scope="session")
def cluster() -> Iterator[Api]:
    """Return a cluster that runs pods, shared by all tests: use a namespace of your own (`namespace`)."""
    if is_current_wanted():
        yield start(find_current)
        return
    with start(OwnedCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def own_cluster(cluster: Api) -> Cluster:
    """Return the cluster when its processes are ours to stop, pause and look into."""
    if not isinstance(cluster, Cluster):
        pytest.skip(f"the cluster is not the tests' own: unset {CLUSTER_VARIABLE}")
    return cluster


@pytest.fixture
def namespace(cluster: Api) -> Iterator[str]:
    """Return a new namespace of `cluster`."""
    with cluster.make_namespace() as name:
        yield name


@pytest.fixture(scope="session")
def registry(own_cluster: Cluster) -> str:
    """Return `address:port` of a registry that this machine, pods and the node reach by plain HTTP."""
    return own_cluster.start_registry()


@pytest.fixture(scope="session")
def pod_packages(own_cluster: Cluster) -> PodPackages:
    """Return what gives pods of the image `PYTHON` MindSpore and the project as it is in the working tree."""
    return start(lambda: install_project(own_cluster.directory / f"project-{secrets.token_hex(3)}"))
