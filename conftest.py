"""Fixtures that the tests of several rooms share: one small real model, made once, and a way to run one component."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_MAKE_LIFECYCLE = """
import sys
from kfp_mindspore.formats.dataset import load_dataset
from kfp_mindspore.mindir import export_mindir
from kfp_mindspore.pipelines.digits_lifecycle.train import main

root = sys.argv[1]
load_dataset("digits", f"{root}/dataset")
main(["--epochs", "3"])
export_mindir(f"{root}/model/checkpoint", f"{root}/bundle", dataset_dir=f"{root}/dataset")
"""


def pytest_configure() -> None:
    """Let the processes that tests start take Ctrl-C, also when this one was started in the background of a script.

    A shell starts such a process with SIGINT ignored, which every process below it inherits.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Lifecycle:
    """What the steps of a short digits lifecycle left; treat as read-only.

    Args:
        dataset: The dataset directory.
        model: What a training job wrote: `checkpoint/` and metrics.jsonl, after three epochs.
        bundle: The model bundle.
    """

    dataset: Path
    model: Path
    bundle: Path


@pytest.fixture(scope="session")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Lifecycle:
    """Train and export LeNet on digits once a session, in a process of its own (about 8 seconds)."""
    root = tmp_path_factory.mktemp("lifecycle")
    environment = {
        **os.environ,
        "KFP_MINDSPORE_DATASET_DIR": str(root / "dataset"),
        "KFP_MINDSPORE_OUTPUT_DIR": str(root / "model"),
        "KFP_MINDSPORE_CHECKPOINT_DIR": str(root / "checkpoints"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _MAKE_LIFECYCLE, str(root)], env=environment, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Lifecycle(root / "dataset", root / "model", root / "bundle")


@dataclass(frozen=True)
class StepOutputs:
    """What a step left, as a run reads it.

    Args:
        parameters: Output parameters by name.
        artifacts: Output artifacts by name, each with `uri` and `metadata`.
        log: What the step printed.
    """

    parameters: Mapping[str, Any]
    artifacts: Mapping[str, Mapping[str, Any]]
    log: str


@pytest.fixture
def local_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Local state of its own, under a lease: what a test starts ends with it."""
    from kfp_mindspore.local.lease import Lease

    home = tmp_path / "home"
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(home))
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    monkeypatch.delenv("KFP_MINDSPORE_EVENTS", raising=False)
    # The interpreter of the tests, also when its folder is not on the PATH.
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    with Lease.hold(tmp_path / "lease") as lease:
        for name, value in lease.environment.items():
            monkeypatch.setenv(name, value)
        yield home


@pytest.fixture
def run_component(local_home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., StepOutputs]:
    """Run one component by kfp.local as a process, with directories as its input artifacts.

    Called as run_component(component, {"dataset": (dsl.Dataset, path)}, name=value, …); raises RuntimeError when the
    step fails, with what it printed.
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
        answer = json.loads(file.read_text())
        return StepOutputs(
            parameters=answer.get("parameterValues", {}),
            artifacts={name: entry["artifacts"][0] for name, entry in answer.get("artifacts", {}).items()},
            log=log,
        )

    return run
