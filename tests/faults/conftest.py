"""Servers of models that are hard to serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.model_servers import ModelServer, make_models


@pytest.fixture(scope="session")
def hard_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of tests/support/make_serving_models.py."""
    return make_models(tmp_path_factory.mktemp("hard"), "make_serving_models.py")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ModelServer]]:
    """Return what starts servers, which end with the test: `serve({"digits": path}, "--max_queue=64").wait_ready()`."""
    with ExitStack() as stack:
        yield lambda models, *flags, **options: stack.enter_context(ModelServer(tmp_path, models, *flags, **options))
