"""Fixtures shared by the tests of several packages, of components and of pipelines."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Deadlines of single examples would fail on a loaded machine.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

pytest_plugins = ["kfp_mindspore.testing"]


def pytest_configure() -> None:
    """Restore the default SIGINT handler, which a shell disables in background processes and children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow: faults, load, fuzzing, steps run by kfp.local, which a lifecycle runs too, and measured tests.

    Long files come first, each in its order.
    """
    from tests.support.durations import read_long_files, read_slow_tests

    # Started last, a long file would keep one process busy while the others have nothing left.
    long_files = read_long_files()
    items.sort(key=lambda item: long_files.get(item.nodeid.partition("::")[0], len(long_files)))
    folders = [Path(__file__).parent / "tests" / name for name in ("faults", "fuzz")]
    measured = read_slow_tests()
    for item in items:
        is_step = item.path.name == "test_component_local.py"
        if is_step or item.nodeid in measured or any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Record a test's seconds without its fixtures in the JUnit file, for tests/support/durations.py."""
    if call.when == "call":
        item.user_properties.append(("call", f"{call.duration:.3f}"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a directory with `dataset`, `checkpoint` and model bundles, made once per session; copy before damaging.

    `raw` (pixels 0 to 16 to scores and label), `free` and `fixed` (batch 8; the graph alone) and `transformed` (PNG and
    JPEG files to the three best classes) are classifiers of digits, and `encrypted` with the key bytes(range(32));
    `pair` has two inputs and two outputs, `sequence` a free length of up to 64 tokens.
    """
    from kfp_mindspore.testing import make_once

    def make(root: Path) -> None:
        script = Path(__file__).parent / "tests" / "support" / "models" / "make_models.py"
        code, output = request.getfixturevalue("mindspore_processes").run([script, root], root)
        assert code == 0, output

    return make_once(tmp_path_factory, "models", make)


@pytest.fixture(scope="session")
def mindspore_processes() -> Any:
    """Start processes with MindSpore without its import in each, see tests/support/mindspore_processes.py."""
    from tests.support.mindspore_processes import share_processes

    return share_processes()


@pytest.fixture
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Select the local backend with an empty home, without variables of the surrounding environment."""
    for name in ("KFP_MINDSPORE_LEASE", "KFP_MINDSPORE_EVENTS", "KFP_MINDSPORE_IMAGE", "KFP_MINDSPORE_STEP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    return tmp_path


@pytest.fixture
def local_jobs(isolated_home: Path) -> Iterator[Any]:
    """Submit small local jobs, see tests/support/training/jobs.py."""
    from tests.support.training.jobs import JobFixture

    new = JobFixture(isolated_home)
    yield new
    new.close()


@pytest.fixture
def local_services(isolated_home: Path) -> Iterator[Any]:
    """Deploy small local services, see tests/support/serving/services.py."""
    from tests.support.serving.services import ServiceFixture

    new = ServiceFixture(isolated_home)
    yield new
    new.close()


@pytest.fixture
def api() -> Iterator[Any]:
    """Run a fake of Kubernetes' API server, see tests/support/kube/fake_api_server.py."""
    from tests.support.kube.fake_api_server import FakeApiServer

    with FakeApiServer().serve() as server:
        yield server


@pytest.fixture
def pipelines_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run a fake Kubeflow Pipelines API server on 127.0.0.1; no variable of the environment names another."""
    from tests.support.remote.pipelines_server import serve

    for name in ("KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT", "KFP_TOKEN", "KFP_COOKIE", "KF_PIPELINES_SA_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("KFP_MINDSPORE_IMAGE", raising=False)
    # No cluster of the machine is read for the reasons of failures.
    monkeypatch.setenv("KUBECONFIG", "/none/kubeconfig")
    with serve() as server:
        yield server


@pytest.fixture(params=["inline", "uploaded"])
def run_source(request: pytest.FixtureRequest, pipelines_server: Any) -> str:
    """Store the fake server's runs with their pipeline, and with a reference to an uploaded version."""
    pipelines_server.stores_versions = request.param == "uploaded"
    return str(request.param)


@pytest.fixture(scope="session")
def otlp() -> Any:
    """Return the module with a receiver of the OpenTelemetry protocol, tests/support/remote/otlp.py."""
    from tests.support.remote import otlp

    return otlp


@pytest.fixture
def eventually() -> Any:
    """Return a function that waits until another returns a true value, and returns that value."""
    from tests.support.training.jobs import eventually

    return eventually


@pytest.fixture
def free_port() -> int:
    """Return a port without a listener, see tests/support/ports.py."""
    from tests.support.ports import reserve_port

    return reserve_port()
