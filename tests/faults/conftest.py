"""Servers of models that are hard to serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kfp_mindspore.testing import make_once
from tests.support.serving.model_servers import ModelServer, make_models


@pytest.fixture(scope="session")
def hard_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of tests/support/models/make_serving_models.py."""
    return make_once(tmp_path_factory, "hard", lambda root: make_models(root, "make_serving_models.py"))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ModelServer]]:
    """Return what starts servers, which end with the test: `serve({"digits": path}, "--max_queue=64").wait_ready()`."""
    with ExitStack() as stack:
        yield lambda models, *flags, **options: stack.enter_context(ModelServer(tmp_path, models, *flags, **options))


@pytest.fixture(scope="session")
def everything(models: Path, hard_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """Return a server of several models that accepts long queues and bodies of 1 MB."""
    bundles = {"digits": models / "free", "fixed": models / "fixed", "pair": models / "pair"}
    bundles |= {name: hard_models / name for name in ("tokens", "loose", "lookup", "unranged", "shifted")}
    flags = ("--max_queue=100000", "--max_request_bytes=1000000")
    with ModelServer(tmp_path_factory.mktemp("everything"), bundles, *flags) as server:
        yield server.wait_ready()
