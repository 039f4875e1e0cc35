"""Faults of training on Ray."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfp_mindspore.errors import MissingExtraError, UserError, ValidationError
from kfp_mindspore.ray.version import check_ray
from tests.ray import loops
from tests.ray.test_train import run_trainer

pytestmark = pytest.mark.mindspore


def kill_scheduler(marker: str) -> Any:
    """Return a callback that kills MindSpore's scheduler, by SIGKILL, in step 15 of the first attempt."""
    from mindspore.train import Callback

    class Kill(Callback):
        def on_train_step_begin(self, run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 15 and not Path(marker).exists():
                Path(marker).touch()
                # The raylet's other children are those of other tests.
                for process in psutil.Process(os.getppid()).children():
                    if process.cmdline()[0].startswith("ray::_SchedulerProcess"):
                        process.send_signal(signal.SIGKILL)

    return [Kill()]


def test_killed_scheduler_ends_workers_and_training_resumes(ray_session: Any, tmp_path: Path) -> None:
    marker = str(tmp_path / "killed")
    found = run_trainer(tmp_path, 2, {"callbacks": lambda: kill_scheduler(marker)}, failures=1)
    assert Path(marker).exists()
    assert found.metrics["step"] == 6 * loops.EPOCHS


def test_vanished_checkpoint_is_named(ray_session: Any, tmp_path: Path) -> None:
    from ray.train import TrainingFailedError

    def remove_and_kill() -> Any:
        (kill,) = loops.kill_once(str(tmp_path / "killed"), 0, 15)
        before = kill.on_train_step_begin

        def begin(run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 15:
                for path in (tmp_path / "run").glob("checkpoint_*"):
                    shutil.rmtree(path)
            before(run_context)

        kill.on_train_step_begin = begin
        return [kill]

    with pytest.raises(TrainingFailedError, match=r"Path not found: .*run/checkpoint_"):
        run_trainer(tmp_path, 1, {"callbacks": remove_and_kill}, failures=1)


def test_worker_that_cannot_be_placed_ends_with_rays_reason(
    ray_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError

    from kfp_mindspore.ray import MindSporeTrainer

    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "3")
    trainer = MindSporeTrainer(
        loops.train,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 64}),
        run_config=RunConfig(storage_path=str(tmp_path), failure_config=FailureConfig(controller_failure_limit=0)),
    )
    with pytest.raises(TrainingFailedError, match="timed out"):
        trainer.fit()


def test_loop_that_never_reports_ends_without_checkpoint(ray_session: Any, tmp_path: Path) -> None:
    from ray.train import RunConfig

    from kfp_mindspore.ray import MindSporeTrainer

    result = MindSporeTrainer(lambda: None, run_config=RunConfig(storage_path=str(tmp_path))).fit()
    assert (result.checkpoint, result.error) == (None, None)


def test_hanging_loop_ends_at_report_timeout(ray_session: Any, tmp_path: Path) -> None:
    from ray.train import RunConfig, TrainingFailedError

    from kfp_mindspore.ray import MindSporeConfig, MindSporeTrainer

    trainer = MindSporeTrainer(
        lambda: threading.Event().wait(),
        mindspore_config=MindSporeConfig(report_timeout=2),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(TrainingFailedError):
        trainer.fit()


def test_wrong_configuration_is_refused() -> None:
    from kfp_mindspore.ray import MindSporeConfig

    with pytest.raises(ValidationError, match=r"report_timeout: must be None or at least 1 s, got 0\.5"):
        MindSporeConfig(report_timeout=0.5)
    with pytest.raises(ValidationError, match="preemption_steps: must be at least 0, got -1"):
        MindSporeConfig(preemption_steps=-1)


def drain_once(address: str) -> Any:
    """Return a callback that drains its node in the first step, as a cloud does, and waits for Ray's notice."""
    from mindspore.train import Callback

    class Drain(Callback):
        def on_train_step_begin(self, run_context: Any) -> None:
            import ray.train

            if run_context.original_args().cur_step_num != 1:
                return
            node = ray.get_runtime_context().get_node_id()
            reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
            deadline = ["--deadline-remaining-seconds", "600"]
            command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", address]
            subprocess.run([*command, "--node-id", node, *reason, *deadline], check=True)
            while ray.train.get_preemption_info() is None:
                threading.Event().wait(0.2)

    return [Drain()]


def test_preemption_notice_causes_checkpoint(ray_session: Any, tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig

    from kfp_mindspore.ray import MindSporeConfig, MindSporeTrainer

    address = ray_session.get_runtime_context().gcs_address
    node = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--num-cpus=1", "--block"]
    # By default the command makes this cluster the one that later processes join.
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*node, '--resources={"spot": 1}'], stdout=subprocess.DEVNULL, env=environment)
    try:
        result = MindSporeTrainer(
            loops.train,
            train_loop_config={"callbacks": lambda: drain_once(address), "options": {"checkpoint_epochs": 100}},
            mindspore_config=MindSporeConfig(preemption_steps=2),
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1, "spot": 1}),
            run_config=RunConfig(name="run", storage_path=str(tmp_path)),
        ).fit()
    finally:
        process.terminate()
        process.wait()
    # The one of the notice; the others are those of the last epoch and of the final weights.
    assert sorted({metrics["step"] for _, metrics in result.best_checkpoints}) == [2, 6 * loops.EPOCHS]


def test_other_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.44.1")
    with pytest.raises(UserError, match=r"ray 2\.44\.1 is installed, kfp_mindspore\.ray needs 2\.60"):
        check_ray()


def test_missing_ray_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find_nothing)
    with pytest.raises(MissingExtraError, match=r"kfp-mindspore\[ray\]"):
        check_ray()
