"""Fixtures shared by the tests of several packages, of components and of pipelines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Deadlines of single examples would fail on a loaded machine.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

_MAKE_LIFECYCLE = """
import sys
from kfp_mindspore.formats.dataset import load_dataset
from kfp_mindspore.mindir import export_mindir
from kfp_mindspore.digits.train import main

root = sys.argv[1]
load_dataset("digits", f"{root}/dataset")
main(["--epochs", "3"])
export_mindir(f"{root}/model/checkpoint", f"{root}/bundle", dataset_dir=f"{root}/dataset")
"""


def pytest_configure() -> None:
    """Restore the default SIGINT handler, which a shell disables in background processes and children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Lifecycle:
    """Outputs of a short digits lifecycle; read-only.

    Args:
        dataset: The dataset directory.
        model: Output directory of the training job after three epochs: `checkpoint/` and metrics.jsonl.
        bundle: The model bundle.
    """

    dataset: Path
    model: Path
    bundle: Path


@pytest.fixture(scope="session")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Lifecycle:
    """Train and export LeNet on digits once per session, in a subprocess (about 8 seconds)."""
    from tests.support.shared import make_once

    def make(root: Path) -> None:
        environment = {
            **os.environ,
            "KFP_MINDSPORE_DATASET_DIR": str(root / "dataset"),
            "KFP_MINDSPORE_OUTPUT_DIR": str(root / "model"),
            "KFP_MINDSPORE_CHECKPOINT_DIR": str(root / "checkpoints"),
        }
        argv = [sys.executable, "-c", _MAKE_LIFECYCLE, str(root)]
        done = subprocess.run(argv, env=environment, cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    root = make_once(tmp_path_factory, "lifecycle", make)
    return Lifecycle(root / "dataset", root / "model", root / "bundle")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a directory with `dataset`, `checkpoint` and model bundles, made once per session; copy before damaging.

    `free`, `fixed` (batch 8) and `transformed` (PNG and JPEG files to the three best classes) are classifiers of
    digits, and `encrypted` with the key bytes(range(32)); `pair` has two inputs and two outputs, `sequence` a free
    length of up to 64 tokens.
    """
    from tests.support.shared import make_once

    def make(root: Path) -> None:
        script = Path(__file__).parent / "tests" / "support" / "make_models.py"
        code, output = request.getfixturevalue("mindspore_processes").run([script, root], root)
        assert code == 0, output

    return make_once(tmp_path_factory, "models", make)


@dataclass(frozen=True)
class StepOutputs:
    """Outputs of a step, as a run reads them.

    Args:
        parameters: Output parameters by name.
        artifacts: Output artifacts by name, each with `uri` and `metadata`.
        log: Standard output and error of the step.
    """

    parameters: Mapping[str, Any]
    artifacts: Mapping[str, Mapping[str, Any]]
    log: str


@pytest.fixture
def local_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Local state of one test, under a lease that terminates the processes that the test started."""
    from kfp_mindspore.local.lease import Lease

    home = tmp_path / "home"
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(home))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    monkeypatch.delenv("KFP_MINDSPORE_EVENTS", raising=False)
    # Jobs start `python`: the interpreter of the tests.
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    with Lease.hold(tmp_path / "lease") as lease:
        for name, value in lease.environment.items():
            monkeypatch.setenv(name, value)
        yield home


@pytest.fixture
def run_component(local_home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., StepOutputs]:
    """Run one component by kfp.local as a process, with directories as its input artifacts.

    Called as run_component(component, {"dataset": (dsl.Dataset, path)}, name=value, …); raises RuntimeError with the
    step's output when it fails.
    """
    from kfp import dsl, local

    def run(
        component: Any, artifacts: Mapping[str, tuple[Any, Path]] | None = None, /, **parameters: Any
    ) -> StepOutputs:
        root = tmp_path / "artifacts"
        local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(root))

        @dsl.pipeline(name="one-component")
        def pipeline():  # type: ignore[no-untyped-def]
            given = {
                name: dsl.importer(artifact_uri=str(path), artifact_class=kind).output
                for name, (kind, path) in (artifacts or {}).items()
            }
            component(**given, **parameters)

        before = set(root.glob("*/*/executor_output.json"))
        try:
            pipeline()
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{''.join(capfd.readouterr())}") from error
        log = "".join(capfd.readouterr())
        (file,) = set(root.glob("*/*/executor_output.json")) - before
        output = json.loads(file.read_text())
        return StepOutputs(
            parameters=output.get("parameterValues", {}),
            artifacts={name: entry["artifacts"][0] for name, entry in output.get("artifacts", {}).items()},
            log=log,
        )

    return run


@pytest.fixture(scope="session")
def mindspore_processes() -> Iterator[Any]:
    """Start processes with MindSpore without its import in each, see tests/support/mindspore_processes.py."""
    from tests.support.mindspore_processes import MindSporeProcesses

    processes = MindSporeProcesses()
    yield processes
    processes.close()


@pytest.fixture
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Select the local backend with an empty home, without variables of the surrounding environment."""
    for name in ("KFP_MINDSPORE_LEASE", "KFP_MINDSPORE_EVENTS", "KFP_MINDSPORE_IMAGE", "KFP_MINDSPORE_STEP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    return tmp_path


@pytest.fixture
def desk(isolated_home: Path) -> Iterator[Any]:
    """Submit small local jobs, see tests/support/jobs.py."""
    from tests.support.jobs import JobFixture

    new = JobFixture(isolated_home)
    yield new
    new.close()


@pytest.fixture
def shop(isolated_home: Path) -> Iterator[Any]:
    """Deploy small local services, see tests/support/services.py."""
    from tests.support.services import ServiceFixture

    new = ServiceFixture(isolated_home)
    yield new
    new.close()


@pytest.fixture
def pipelines_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run a fake Kubeflow Pipelines API server on 127.0.0.1; no variable of the environment names another."""
    from tests.support.pipelines_server import serve

    for name in ("KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT", "KFP_TOKEN", "KFP_MINDSPORE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    with serve() as server:
        yield server


@pytest.fixture(scope="session")
def otlp() -> Any:
    """Return the module with a receiver of the OpenTelemetry protocol, tests/support/otlp.py."""
    from tests.support import otlp

    return otlp


@pytest.fixture
def eventually() -> Any:
    """Return a function that waits until another returns a true value, and returns that value."""
    from tests.support.jobs import eventually

    return eventually


@pytest.fixture
def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
