"""Real registries for the tests of images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from tests.support.remote import registries


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registries.Registry]:
    """Run a registry for all tests; each uses repositories of its own."""
    registries.require_binary()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def config(registry: registries.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistryConfig:
    """Return how the registry of all tests is reached, without any login of this machine."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return RegistryConfig(insecure=(registry.host,), backoff_seconds=0.01)


@pytest.fixture
def context() -> BuildContext:
    """Return two small sources."""
    return BuildContext(
        [ContextEntry.from_bytes("train.py", b"print('trained')\n"), ContextEntry.from_bytes("lib/a.py", b"A = 1\n")]
    )
