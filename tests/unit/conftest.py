"""Fixtures that several rooms' unit tests share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def pipelines_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a small Kubeflow Pipelines server on 127.0.0.1; nothing of the environment names another."""
    for name in ("KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT", "KFP_TOKEN", "KFP_MINDSPORE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("pipelines_server", _SUPPORT / "pipelines_server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.serve() as server:
        yield server
