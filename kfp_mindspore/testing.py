"""pytest fixtures for component tests: `pytest_plugins = ["kfp_mindspore.testing"]`."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

_MAKE_LIFECYCLE = """
import sys
from kfp_mindspore.data import load_dataset
from kfp_mindspore.mindir import export_mindir
from kfp_mindspore.workloads.digits.train import main

root = sys.argv[1]
load_dataset("digits", f"{root}/dataset")
main(["--epochs", "3"])
export_mindir(f"{root}/model/checkpoint", f"{root}/bundle", dataset_dir=f"{root}/dataset")
"""


@dataclass(frozen=True)
class Lifecycle:
    """Outputs from a short digits lifecycle; read-only.

    Args:
        dataset: The dataset directory.
        model: The training job's output directory after three epochs: `checkpoint/` and metrics.jsonl.
        bundle: The model bundle.
    """

    dataset: Path
    model: Path
    bundle: Path


@pytest.fixture(scope="session")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Lifecycle:
    """Train and export LeNet on digits once per session, in a subprocess (about 8 seconds)."""

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


@dataclass(frozen=True)
class StepOutputs:
    """A step's outputs, as a run reads them.

    Args:
        parameters: Output parameters by name.
        artifacts: Output artifacts by name, each with `uri` and `metadata`.
        log: The step's standard output and error.
    """

    parameters: Mapping[str, Any]
    artifacts: Mapping[str, Mapping[str, Any]]
    log: str


@pytest.fixture
def local_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One test's local state, under a lease that terminates the processes that the test started."""
    from kfp_mindspore.local.lease import Lease

    home = tmp_path / "home"
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(home))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    monkeypatch.delenv("KFP_MINDSPORE_EVENTS", raising=False)
    # kfp 2.17 replaces print while a task runs; ParallelFor tasks, which are threads, leave it replaced.
    monkeypatch.setattr(builtins, "print", builtins.print)
    # Jobs start `python`: the tests' interpreter.
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
        component: Any, artifacts: Mapping[str, tuple[Any, Path]] | None = None, /, **parameters: object
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


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory that the first worker to request it fills; read-only afterwards.

    Args:
        factory: The session's `tmp_path_factory`.
        name: Directory name.
        make: Fills the directory, which exists and is empty.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    directory, complete = base / name, base / f"{name}.complete"
    with FileLock(base / f"{name}.lock"):
        if not complete.exists():
            directory.mkdir()
            make(directory)
            complete.touch()
    return directory
