"""Sessions of Ray Train and Ray Tune, which keep the checkpoints that `fit` writes inside them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray.train
import ray.tune

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.settings import HANG_EXIT_CODE
from kfp_mindspore.training.checkpoints.checkpointing import Snapshot, use_session

_STDERR = 2


class RaySession:
    """One worker's session.

    Args:
        get_checkpoint: Ray's function that returns the newest reported checkpoint.
        report: Ray's function with the arguments metrics and checkpoint.
        checkpoint_class: Its checkpoint class.
        get_preemption: Ray's function that returns a preemption notice; None without one.
        preemption_steps: Steps after which it is called, besides epoch ends; 0 for epoch ends only.
    """

    def __init__(
        self,
        get_checkpoint: Callable[[], Any],
        report: Callable[..., None],
        checkpoint_class: Any,
        get_preemption: Callable[[], Any] | None = None,
        preemption_steps: int = 0,
    ) -> None:
        self._get_checkpoint = get_checkpoint
        self._report = report
        self._class = checkpoint_class
        self._get_preemption = get_preemption
        self._preemption_steps = preemption_steps
        self._preempted: frozenset[str] = frozenset()
        self.reported = threading.Event()
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
            self.reported.set()
            return
        path = Path(self._directory.name) / snapshot.name
        snapshot.write(path)
        described = snapshot.description
        is_finished = described["training"]["stopped"] or described["epoch"] == described["training"]["epochs"]
        metrics = {"epoch": described["epoch"], "step": described["step"], "finished": bool(is_finished)}
        self._report({**metrics, **described["metrics"]}, checkpoint=self._class.from_directory(str(path)))
        self.reported.set()
        for file in path.iterdir():
            file.unlink()
        path.rmdir()

    def is_notice_due(self, step: int, *, is_epoch_end: bool) -> bool:
        """Return whether to ask for a notice after this step."""
        is_due = is_epoch_end or (self._preemption_steps > 0 and step % self._preemption_steps == 0)
        return self._get_preemption is not None and is_due

    def is_preempted(self) -> bool:
        """Return whether nodes are new in Ray's notice; Ray waits until all ranks have called."""
        found = self._get_preemption() if self._get_preemption is not None else None
        nodes = frozenset(found.preempted_node_ids) if found is not None else frozenset()
        is_new = not nodes <= self._preempted
        self._preempted |= nodes
        return is_new

    def close(self) -> None:
        """Remove the temporary copies."""
        self._directory.cleanup()


@contextlib.contextmanager
def use_train_session(preemption_steps: int = 0, report_timeout: float | None = None) -> Iterator[None]:
    """Run the block, a worker's train loop, with Ray Train's session.

    Args:
        preemption_steps: Steps after which `fit` looks for a preemption notice, besides epoch ends.
        report_timeout: Seconds without a report of `fit` until this process exits with code 76; None for no limit.
    """
    train = ray.train
    with (
        contextlib.closing(
            RaySession(
                train.get_checkpoint, train.report, train.Checkpoint, train.get_preemption_info, preemption_steps
            )
        ) as session,
        _limit_silence(session.reported, report_timeout),
        use_session(session),
    ):
        yield


@contextlib.contextmanager
def _limit_silence(reported: threading.Event, seconds: float | None) -> Iterator[None]:
    """Exit this process unless it reports in time, or the block ends."""
    is_over = threading.Event()

    def watch() -> None:
        while reported.wait(seconds):
            if is_over.is_set():
                return
            reported.clear()
        print(f"no report in {seconds:g} s (report_timeout): ending this worker", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(_STDERR)
        os._exit(HANG_EXIT_CODE)

    if seconds is not None:
        threading.Thread(target=watch, name="report timeout", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        reported.set()


@contextlib.contextmanager
def use_tune_session() -> Iterator[None]:
    """Run the block, a trial, with Ray Tune's session."""
    with (
        contextlib.closing(RaySession(ray.tune.get_checkpoint, ray.tune.report, ray.tune.Checkpoint)) as session,
        use_session(session),
    ):
        yield
