"""A run's checkpoints: a copy of the state between two steps, written by a thread."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import mindspore

from kfp_mindspore.formats import checkpoint as checkpoints
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.stores.checkpoints import open_store

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """Training state between two steps, in host memory.

    Args:
        description: `write_checkpoint` arguments: epoch, step and the further fields of checkpoint.json.
        parameters: `mindspore.save_checkpoint` arguments by file name.
        texts: The other files' contents by name.
    """

    description: Mapping[str, Any]
    parameters: Mapping[str, list[dict[str, Any]]]
    texts: Mapping[str, str]

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return checkpoints.name_checkpoint(self.description["epoch"], self.description["step"])

    def write(self, path: Path) -> None:
        """Write the checkpoint `path`.

        Raises:
            UserError: The disk is full or the directory cannot be written.
        """
        with checkpoints.write_checkpoint(
            path, mindspore_version=mindspore.__version__, **self.description
        ) as directory:
            for name, parameters in self.parameters.items():
                mindspore.save_checkpoint(parameters, str(directory / name))
            for name, text in self.texts.items():
                (directory / name).write_text(text, encoding="utf-8")


class TrainingSession(Protocol):
    """Something that `fit` runs inside and that keeps the checkpoints, such as a worker of Ray Train."""

    def get_latest(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, the same on all ranks, or None."""

    def report(self, snapshot: Snapshot | None) -> None:
        """Keep a checkpoint and publish the metrics; called on every rank, with a snapshot on rank 0."""

    def is_notice_due(self, step: int, *, is_epoch_end: bool) -> bool:
        """Return whether to call `is_preempted` after this step, the same on all ranks."""

    def is_preempted(self) -> bool:
        """Return whether a new preemption notice asks for a checkpoint, the same on all ranks, each of which calls.

        No report may be pending: the calls of all ranks have one order.
        """


_session: ContextVar[TrainingSession | None] = ContextVar("session", default=None)


@contextlib.contextmanager
def use_session(session: TrainingSession) -> Iterator[None]:
    """Run the block with a session, which the block's first `fit` takes."""
    token = _session.set(session)
    try:
        yield
    finally:
        _session.reset(token)


def take_session() -> TrainingSession | None:
    """Return this block's session if no earlier `fit` has taken it, or None."""
    session = _session.get()
    _session.set(None)
    return session


class Checkpointer:
    """Reads and writes a run's checkpoints; as a context manager it awaits the last write.

    One thread writes one checkpoint at a time. The next method call other than `locate` raises the write's error.

    Args:
        location: Directory or URI; None for a run without checkpoints.
        keep: How many of the newest checkpoints to keep.
        is_writer: Whether this process writes; others only read.
        session: Keeps the checkpoints instead of the location.

    Attributes:
        step: Optimizer steps in the newest completely written checkpoint; None before the first one.
        latest: Its path or URI.
    """

    def __init__(
        self, location: str | None, keep: int, *, is_writer: bool, session: TrainingSession | None = None
    ) -> None:
        self.step: int | None = None
        self.latest: str | None = None
        self.session = session
        self._store = None if location is None or session is not None else open_store(location, keep)
        self._is_writer = is_writer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Snapshot | None] | None = None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            # The training's own error is raised.
            _logger.error("%s", failure)
        finally:
            self._thread.shutdown()
            if self._store is not None:
                self._store.close()

    @property
    def is_active(self) -> bool:
        """Whether this process writes checkpoints, or takes part in a session's reports."""
        return self.session is not None or (self._store is not None and self._is_writer)

    def open(self) -> Checkpoint | None:
        """Lock the directory in the writer, and return the newest intact checkpoint, or None.

        Raises:
            UserError: Another run writes checkpoints there.
        """
        if self.session is not None:
            return self.session.get_latest()
        if self._store is None:
            return None
        if self._is_writer:
            self._store.open_for_writing()
        return self._store.get_latest()

    def locate(self, name: str) -> Path | str | None:
        """Return a checkpoint's path or URI; None for a run without checkpoints."""
        return None if self._store is None else self._store.locate(name)

    def submit(self, snapshot: Snapshot | None) -> None:
        """Write a checkpoint in the background, after the previous one; None in a session's further ranks."""
        self.wait()
        self._pending = self._thread.submit(self._write, snapshot)

    def poll(self) -> None:
        """Raise a finished write's error."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the pending write and raise any error.

        Raises:
            UserError: The disk is full, or the directory cannot be written.
            KfpMindSporeError: The object store cannot be reached.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            written = pending.result()
            if written is not None:
                self.step, self.latest = written.description["step"], str(self.locate(written.name))

    def _write(self, snapshot: Snapshot | None) -> Snapshot | None:
        if self.session is not None:
            self.session.report(snapshot)
            return snapshot
        assert self._store is not None
        assert snapshot is not None
        path = self._store.root / snapshot.name
        snapshot.write(path)
        self._store.commit(path)
        return snapshot
