"""Fixtures that several rooms share."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A machine that does something else too is slow, and no mistake of ours.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

SUPPORT = Path(__file__).parent / "support"


def load_support(name: str) -> Any:
    """Import a module of tests/support."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with `dataset`, `checkpoint`, and bundles.

    `free`, `fixed` (batch 8) and `transformed` (PNG and JPEG files to the three best classes) are classifiers of
    digits, and `encrypted` with the key bytes(range(32)); `pair` has two inputs and two outputs, `sequence` a free
    length of up to 64 tokens. Made once, by a process of its own. They belong to all tests: copy what is to be damaged.
    """
    root = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "make_models.py"), str(root)],
        env={**os.environ, "GLOG_v": "4"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return root


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a desk that submits small jobs on this machine, see tests/support/jobs.py."""
    for name in ("KFP_MINDSPORE_LEASE", "KFP_MINDSPORE_EVENTS", "KFP_MINDSPORE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    new = load_support("jobs").Desk(tmp_path)
    yield new
    new.close()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a shop that deploys small services on this machine, see tests/support/services.py."""
    for name in ("KFP_MINDSPORE_LEASE", "KFP_MINDSPORE_EVENTS", "KFP_MINDSPORE_STEP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    new = load_support("services").Shop(tmp_path)
    yield new
    new.close()


@pytest.fixture(scope="session")
def otlp() -> Any:
    """Return the module with a receiver of OpenTelemetry's protocol, tests/support/otlp.py."""
    return load_support("otlp")


@pytest.fixture
def eventually() -> Any:
    """Return a function that waits until another returns something true, and returns that."""
    return load_support("jobs").eventually


@pytest.fixture
def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
