"""Sessions of Ray Train and Ray Tune, which keep the checkpoints that `fit` writes inside them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray.train
import ray.tune

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.training.checkpointing import Snapshot, use_session


class RaySession:
    """One worker's session.

    Args:
        get_checkpoint: Ray's function that returns the newest reported checkpoint.
        report: Ray's function with the arguments metrics and checkpoint.
        checkpoint_class: Its checkpoint class.
    """

    def __init__(self, get_checkpoint: Callable[[], Any], report: Callable[..., None], checkpoint_class: Any) -> None:
        self._get_checkpoint = get_checkpoint
        self._report = report
        self._class = checkpoint_class
        self._directory = tempfile.TemporaryDirectory(prefix="kfp-mindspore-ray-")

    def get_latest(self) -> Checkpoint | None:
        """Download and return the newest reported checkpoint, or None.

        Raises:
            UserError: It has vanished from the storage path.
        """
        found = self._get_checkpoint()
        if found is None:
            return None
        # Kept until the run has read its further files.
        target = Path(self._directory.name) / "resumed"
        try:
            return Checkpoint.open(found.to_directory(str(target)))
        except FileNotFoundError as error:
            raise UserError(
                f"{found.path}: the reported checkpoint cannot be read ({error})",
                hint="All of Ray's nodes need the storage_path: a shared volume or an object store.",
            ) from error

    def report(self, snapshot: Snapshot | None) -> None:
        """Report a checkpoint with its metrics; the other ranks report along, without one."""
        if snapshot is None:
            self._report({})
            return
        path = Path(self._directory.name) / snapshot.name
        snapshot.write(path)
        described = snapshot.description
        is_finished = described["training"]["stopped"] or described["epoch"] == described["training"]["epochs"]
        metrics = {"epoch": described["epoch"], "step": described["step"], "finished": bool(is_finished)}
        self._report({**metrics, **described["metrics"]}, checkpoint=self._class.from_directory(str(path)))
        for file in path.iterdir():
            file.unlink()
        path.rmdir()

    def close(self) -> None:
        """Remove the temporary copies."""
        self._directory.cleanup()


@contextlib.contextmanager
def use_train_session() -> Iterator[None]:
    """Run the block, a worker's train loop, with Ray Train's session."""
    with (
        contextlib.closing(RaySession(ray.train.get_checkpoint, ray.train.report, ray.train.Checkpoint)) as session,
        use_session(session),
    ):
        yield


@contextlib.contextmanager
def use_tune_session() -> Iterator[None]:
    """Run the block, a trial, with Ray Tune's session."""
    with (
        contextlib.closing(RaySession(ray.tune.get_checkpoint, ray.tune.report, ray.tune.Checkpoint)) as session,
        use_session(session),
    ):
        yield
