"""Fixtures with a real Kubernetes: `api_server`, `start_api_server`; see README.md in this directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.infrastructure.api_server import ApiServer, ControlPlane
from tests.cluster.infrastructure.prerequisites import UnavailableError

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


@pytest.fixture(scope="session")
def api_server() -> Iterator[ControlPlane]:
    """Return an API server without nodes that all tests share: use a namespace of your own (`api_namespace`)."""
    with start(ApiServer) as server:
        yield server


@pytest.fixture
def start_api_server() -> Iterator[Callable[..., ApiServer]]:
    """Return a function that starts an API server for one test alone; it takes ApiServer's arguments."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(start(lambda: ApiServer(**options)))


@pytest.fixture
def api_namespace(api_server: ControlPlane) -> Iterator[str]:
    """Return a new namespace of `api_server`."""
    with api_server.make_namespace() as name:
        yield name
