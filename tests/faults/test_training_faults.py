"""Faults of a training process: SIGTERM, SIGKILL during a checkpoint, a broken checkpoint, a full disk."""

from __future__ import annotations

import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.formats.checkpoint import Checkpoint, get_latest_checkpoint, list_checkpoints
from kfp_mindspore.stores.checkpoints import LOCK_FILE
from kfp_mindspore.training.history import read_history
from tests.support.mindspore_processes import MindSporeProcess, MindSporeProcesses
from tests.support.remote.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, start_object_store

pytestmark = pytest.mark.mindspore

SCRIPT = Path(__file__).with_name("training_script.py")
STEPS = 36


class Trainer:
    """Runs the script over one dataset, each time in a process of its own."""

    def __init__(self, processes: MindSporeProcesses, dataset: Path) -> None:
        self._processes = processes
        self.environment = {"KFP_MINDSPORE_DATASET_DIR": str(dataset)}

    def start(self, root: Path, *arguments: str, largest_file: int | None = None) -> MindSporeProcess:
        return self._processes.start(
            [SCRIPT, root, *arguments], root, environment=self.environment, largest_file=largest_file
        )

    def run(self, root: Path, *arguments: str, largest_file: int | None = None, code: int = 0) -> str:
        found, output = self.start(root, *arguments, largest_file=largest_file).finish()
        assert found == code, output
        return output


def read_weights(root: Path) -> list[np.ndarray]:
    with np.load(root / "weights.npz") as archive:
        return [archive[name] for name in archive]


def list_names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != LOCK_FILE)


@pytest.fixture(scope="module")
def trainer(mindspore_processes: MindSporeProcesses, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(mindspore_processes, load_dataset("digits", tmp_path_factory.mktemp("data") / "digits").path)


@pytest.fixture(scope="module")
def whole(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of an uninterrupted run."""
    root = tmp_path_factory.mktemp("whole")
    trainer.run(root)
    return root


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of its checkpoints, to damage."""
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


def test_sigterm_within_epoch_loses_no_completed_step(trainer: Trainer, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    step = STEPS + 9
    process = trainer.start(root, "--hold-step", str(step))
    process.wait_for(root / "in-step")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, output = process.finish()

    assert code == 143, output
    assert time.monotonic() - begun < 25, "1 s for the current step, and five times the duration of an exit"
    newest = get_latest_checkpoint(root / "checkpoints")
    assert newest is not None
    # The step during the signal is the last one, and it is saved: no completed step is lost.
    assert (newest.epoch, newest.step) == (1, step)
    assert f"SIGTERM after step {step}: saved" in output
    assert not (root / "output" / "checkpoint").exists()

    assert "resuming from" in trainer.run(root)
    assert_same_end(root, whole)


def test_sigkill_during_checkpoint_keeps_previous_one(trainer: Trainer, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    process = trainer.start(root, "--hold-checkpoint", "00003-108")
    process.wait_for(root / "in-checkpoint")
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    names = list_names(root / "checkpoints")
    assert names[1:] == ["00001-36", "00002-72"]
    assert names[0].startswith(".00003-108.")
    newest = get_latest_checkpoint(root / "checkpoints")
    assert newest is not None
    assert newest.step == 2 * STEPS

    trainer.run(root)
    assert_same_end(root, whole)
    assert list_names(root / "checkpoints") == ["00002-72", "00003-108", "00004-144"]


def test_sigkill_within_epoch_loses_one_interval_at_most(trainer: Trainer, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    process = trainer.start(root, "--checkpoint-steps", "10", "--hold-step", str(2 * STEPS + 25))
    process.wait_for(root / "in-step")
    process.send_signal(signal.SIGKILL)
    process.wait()

    newest = get_latest_checkpoint(root / "checkpoints")
    assert newest is not None
    assert newest.epoch == 2
    assert newest.step in (80, 90), "the last one, or the one before if it was being written"

    # The network has Dropout: its masks are those of the uninterrupted run too.
    trainer.run(root)
    assert_same_end(root, whole)


def test_killed_run_continues_on_another_node_from_s3(
    trainer: Trainer, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_object_store() as store:
        credentials = {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        monkeypatch.setattr(trainer, "environment", trainer.environment | credentials)
        arguments = ("--checkpoints", f"s3://{BUCKET}/run", "--checkpoint-steps", "10")
        process = trainer.start(tmp_path / "first", *arguments, "--hold-step", str(2 * STEPS + 25))
        process.wait_for(tmp_path / "first" / "in-step")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not list(tmp_path.rglob("*.ckpt")), "no checkpoint on this node"

        output = trainer.run(tmp_path / "second", *arguments)

    found = re.search(rf"resuming from s3://{BUCKET}/run/00002-(\d+): epoch 2 of 4", output)
    assert found, output
    assert int(found[1]) in (80, 90), "the last one, or the one before if it was being written"
    assert_same_end(tmp_path / "second", whole)


def test_second_run_in_checkpoint_directory_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    root = tmp_path / "run"
    process = trainer.start(root, "--hold-checkpoint", "00001-36")
    process.wait_for(root / "in-checkpoint")

    output = trainer.run(root, code=1)

    assert f"checkpoint_dir: {root / 'checkpoints'} is in use by process {process.pid} on" in output
    process.kill()
    process.wait()


@pytest.mark.parametrize(("damage", "message"), [("truncate", "must have"), ("flip", "sha256 must be")])
def test_damaged_checkpoint_costs_one_interval(
    trainer: Trainer, whole: Path, copied: Path, damage: str, message: str
) -> None:
    newest = list_checkpoints(copied / "checkpoints")[0]
    file = newest / "network.ckpt"
    content = bytearray(file.read_bytes())
    if damage == "truncate":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(content)

    output = trainer.run(copied)

    assert f"skipping a broken checkpoint: {file}: {message}" in output
    assert f"resuming from {copied / 'checkpoints' / '00003-108'}" in output
    assert_same_end(copied, whole)
    assert Checkpoint.open(newest).step == 4 * STEPS, "written anew"


def test_full_disk_keeps_earlier_checkpoints(trainer: Trainer, copied: Path) -> None:
    root = copied / "checkpoints"
    shutil.rmtree(root / "00004-144")
    limit = (root / "00003-108" / "optimizer.ckpt").stat().st_size - 1000

    output = trainer.run(copied, largest_file=limit, code=1)

    assert "UserError" in output
    assert f"{root / '00004-144'}: the checkpoint cannot be written (File too large)" in output
    assert "Earlier checkpoints are untouched" in output
    assert list_names(root) == ["00002-72", "00003-108"]
    newest = get_latest_checkpoint(root)
    assert newest is not None
    assert newest.step == 3 * STEPS
