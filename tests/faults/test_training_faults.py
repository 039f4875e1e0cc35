"""What a training process survives: SIGTERM, kill -9 while it saves, a broken checkpoint, a full disk."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.formats.checkpoint import Checkpoint, get_latest_checkpoint, list_checkpoints
from kfp_mindspore.formats.dataset import load_dataset
from kfp_mindspore.training.history import read_history

pytestmark = pytest.mark.mindspore

SCRIPT = Path(__file__).with_name("training_script.py")
STEPS = 36


class Runs:
    """Starts the script over one dataset, in a directory of its own."""

    def __init__(self, dataset: Path) -> None:
        self.dataset = dataset

    def start(self, root: Path, *arguments: str, prepare: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        root.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), str(root), *arguments],
            env={**environment, "KFP_MINDSPORE_DATASET_DIR": str(self.dataset)},
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=prepare,
        )

    def run(self, root: Path, *arguments: str, prepare: Callable[[], None] | None = None, code: int = 0) -> str:
        output, returned = finish(self.start(root, *arguments, prepare=prepare))
        assert returned == code, output
        return output


def finish(process: subprocess.Popen[str]) -> tuple[str, int]:
    try:
        output = process.communicate(timeout=120)[0]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return output, process.returncode


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{path.name} did not appear:\n{finish(process)[0]}")
        time.sleep(0.02)


def read_weights(root: Path) -> list[np.ndarray]:
    with np.load(root / "weights.npz") as archive:
        return [archive[name] for name in archive]


def list_names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(load_dataset("digits", tmp_path_factory.mktemp("data") / "digits").path)


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    root = tmp_path_factory.mktemp("whole")
    runs.run(root)
    return root


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """That run's checkpoints, in a directory to do harm to."""
    root = tmp_path / "run"
    shutil.copytree(whole / "checkpoints", root / "checkpoints")
    return root


def assert_same_end(root: Path, whole: Path) -> None:
    for one, other in zip(read_weights(root), read_weights(whole), strict=True):
        assert np.array_equal(one, other)
    assert Checkpoint.open(root / "output" / "checkpoint").step == 4 * STEPS
    losses = [[record["loss"] for record in read_history(path / "output" / "metrics.jsonl")] for path in (root, whole)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4


def test_sigterm_in_the_middle_of_an_epoch_loses_no_completed_step(runs: Runs, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    step = STEPS + 9
    process = runs.start(root, "--hold-step", str(step))
    wait_for(root / "in-step", process)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output, code = finish(process)

    assert code == 143, output
    assert time.monotonic() - begun < 25, "1 s of step at work, and five times what leaving takes"
    newest = get_latest_checkpoint(root / "checkpoints")
    assert newest is not None
    # The step at work when the signal came is the last one, and it is saved: 0 completed steps are lost.
    assert (newest.epoch, newest.step) == (1, step)
    assert f"SIGTERM after step {step}: saved" in output
    assert not (root / "output" / "checkpoint").exists()

    assert "resuming from" in runs.run(root)
    assert_same_end(root, whole)


def test_kill_9_while_a_checkpoint_is_written_leaves_the_one_before(runs: Runs, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    process = runs.start(root, "--hold-checkpoint", "3")
    wait_for(root / "in-checkpoint", process)
    process.kill()
    finish(process)

    names = list_names(root / "checkpoints")
    assert names[1:] == ["00001-36", "00002-72"]
    assert names[0].startswith(".00003-108.")
    newest = get_latest_checkpoint(root / "checkpoints")
    assert newest is not None
    assert newest.step == 2 * STEPS

    runs.run(root)
    assert_same_end(root, whole)
    assert list_names(root / "checkpoints") == ["00002-72", "00003-108", "00004-144"]


def test_a_truncated_newest_checkpoint_is_skipped_by_name(runs: Runs, whole: Path, copied: Path) -> None:
    newest = list_checkpoints(copied / "checkpoints")[0]
    file = newest / "network.ckpt"
    os.truncate(file, file.stat().st_size // 2)

    output = runs.run(copied)

    assert f"skipping a broken checkpoint: {file}: must have" in output
    assert f"resuming from {copied / 'checkpoints' / '00003-108'}" in output
    assert_same_end(copied, whole)
    assert Checkpoint.open(newest).step == 4 * STEPS, "written anew"


def test_a_full_disk_is_a_clear_error_and_leaves_the_old_ones(runs: Runs, copied: Path) -> None:
    root = copied / "checkpoints"
    shutil.rmtree(root / "00004-144")
    limit = (root / "00003-108" / "optimizer.ckpt").stat().st_size - 1000

    def fill_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    output = runs.run(copied, prepare=fill_disk, code=1)

    assert "UserError" in output
    assert f"{root / '00004-144'}: the checkpoint cannot be written (File too large)" in output
    assert "Earlier checkpoints are untouched" in output
    assert list_names(root) == ["00002-72", "00003-108"]
    newest = get_latest_checkpoint(root)
    assert newest is not None
    assert newest.step == 3 * STEPS
