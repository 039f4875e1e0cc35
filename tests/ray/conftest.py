"""A Ray instance that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Any]:
    """Start Ray with two CPUs, and shut it down after the last test."""
    import mindspore  # noqa: F401
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=256 << 20, logging_level="error")
    yield ray
    ray.shutdown()
