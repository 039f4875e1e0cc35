"""A Ray instance that the tests of this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# By default Ray's workers yield to every other process: they take a minute to start beside another test run.
os.environ |= {"RAY_worker_niceness": "0"}
# Ray would end workers for memory that another process uses.
os.environ |= {"RAY_memory_monitor_refresh_ms": "0"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests: `make test-ray` runs them."""
    for item in items:
        if "tests/ray/" in item.path.as_posix():
            item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Any]:
    """Start Ray with four CPUs, and shut it down after the last test."""
    import mindspore  # noqa: F401

    # Serve gives its proxy 5 s to start.
    os.environ |= {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120"}
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=256 << 20, logging_level="error")
    yield ray
    ray.shutdown()
