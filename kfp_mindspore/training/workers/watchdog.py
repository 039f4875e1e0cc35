"""A training process's watchdog: a heartbeat each second, which ends the process when no step completes in time.

It is active in job members only, so that a debugger or a suspended notebook is not ended. MindSpore 2.9 releases the
GIL while it computes or waits in a collective, but not in `init()`: MindSpore's own timeout ends a worker that waits
there for the others, see `init_distributed`; on this machine it is detected by its old heartbeat, as is one that is
stopped as a whole, see `kfp_mindspore.msjob.backends.heartbeats`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import (
    DEFAULT_HANG_SECONDS,
    FIRST_STEP_FACTOR,
    HANG_EXIT_CODE,
    HANG_SECONDS_VARIABLE,
    HEARTBEAT_VARIABLE,
    NODE_ID_VARIABLE,
    ROLE_VARIABLE,
    STACKS_SIGNAL,
    WORKER_ROLE,
)

_BEAT_SECONDS = 1.0
_STDERR = 2


class Watchdog:
    """This process's training state, and the thread that watches it.

    Args:
        rank: This worker's rank.
        hang_seconds: Seconds without progress until the process ends with exit code 76, three times as long before the
            first step; 0 disables it.
        heartbeat_file: File to write each second; None to write no file.

    Attributes:
        progressed: time.monotonic() at the last progress.
    """

    def __init__(self, rank: int, hang_seconds: float, heartbeat_file: Path | None) -> None:
        self._rank = rank
        self._hang_seconds = hang_seconds
        self._file = heartbeat_file
        self._step: int | None = None
        self._in_step = False
        self._ended = ""
        self.progressed = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog of fit", daemon=True)

    def start(self) -> None:
        """Write the first heartbeat and start the thread."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and write the last heartbeat: from now on none is expected."""
        self._stop.set()
        self._thread.join()
        self._ended = self._ended or "done"
        self._beat()

    def begin_step(self) -> None:
        """Record that a step begins: a worker outside a step delays the others."""
        self._in_step = True
        self.progressed = time.monotonic()

    def end_step(self, step: int) -> None:
        """Record that a step is completed.

        Args:
            step: Steps done.
        """
        is_first = self._step is None
        self._step, self._in_step = step, False
        self.progressed = time.monotonic()
        if is_first:
            # A supervisor restarts without delay after an attempt that has trained.
            self._beat()

    def mark_progress(self) -> None:
        """Record progress other than a step, such as an evaluation batch."""
        self.progressed = time.monotonic()

    def mark_terminated(self) -> None:
        """Record that the process exits because a worker received SIGTERM."""
        self._ended = "terminated"

    def is_hung(self, now: float) -> bool:
        """Return whether the last progress is too long ago.

        Args:
            now: time.monotonic().
        """
        limit = self._hang_seconds * (FIRST_STEP_FACTOR if self._step is None else 1.0)
        return 0 < limit <= now - self.progressed

    def _run(self) -> None:
        while not self._stop.wait(_BEAT_SECONDS):
            self._beat()
            if self.is_hung(time.monotonic()):
                self._end_process()

    def _beat(self) -> None:
        if self._file is None:
            return
        beat = {
            "rank": self._rank,
            "step": self._step,
            "time": time.time(),
            "in_step": self._in_step,
            "ended": self._ended,
        }
        # A full disk, or a deleted job's directory: the supervisor sees the process itself.
        with contextlib.suppress(OSError), files.replace_file(self._file, durable=False) as file:
            file.write(json.dumps(beat).encode())

    def _end_process(self) -> None:
        done = "before the first step" if self._step is None else f"since step {self._step}"
        text = f"rank {self._rank}: no progress for {time.monotonic() - self.progressed:.0f} s {done}; its stacks:\n"
        # Not by sys.stderr, whose lock a blocked thread may hold.
        os.write(_STDERR, text.encode())
        faulthandler.dump_traceback(_STDERR, all_threads=True)
        os._exit(HANG_EXIT_CODE)


_current: Watchdog | None = None


@contextlib.contextmanager
def watch(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a watchdog during the block in a job member; STACKS_SIGNAL then writes all thread stacks.

    Args:
        environment: Variables that configure it; by default the process environment.

    Raises:
        UserError: KFP_MINDSPORE_HANG_SECONDS is not a number ≥ 0.
    """
    global _current
    watchdog = build_watchdog(os.environ if environment is None else environment)
    if watchdog is None or _current is not None:
        yield
        return
    if signal.getsignal(STACKS_SIGNAL) == signal.SIG_DFL:
        faulthandler.register(STACKS_SIGNAL, file=_STDERR, all_threads=True)
    _current = watchdog
    watchdog.start()
    try:
        yield
    finally:
        _current = None
        watchdog.stop()


def build_watchdog(environment: Mapping[str, str]) -> Watchdog | None:
    """Return the watchdog that the environment configures; None outside a job and in other roles.

    Raises:
        UserError: KFP_MINDSPORE_HANG_SECONDS is not a number ≥ 0.
    """
    role = environment.get(ROLE_VARIABLE)
    is_member = role or HEARTBEAT_VARIABLE in environment or HANG_SECONDS_VARIABLE in environment
    if not is_member or role not in (None, "", WORKER_ROLE):
        return None
    seconds = read_hang_seconds(environment)
    node = environment.get(NODE_ID_VARIABLE, "")
    file = environment.get(HEARTBEAT_VARIABLE)
    return Watchdog(int(node) if node.isdigit() else 0, seconds, Path(file) if file else None)


def read_hang_seconds(environment: Mapping[str, str]) -> float:
    """Return the seconds without progress until a process exits; 0 for no limit.

    Raises:
        UserError: KFP_MINDSPORE_HANG_SECONDS is not a number ≥ 0.
    """
    text = environment.get(HANG_SECONDS_VARIABLE) or str(DEFAULT_HANG_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(f"{HANG_SECONDS_VARIABLE}: must be a number of seconds ≥ 0, got {text!r}")
    return seconds


def begin_step() -> None:
    """Record that a training step begins; without a watchdog a no-op, as are the functions below."""
    if _current is not None:
        _current.begin_step()


def end_step(step: int) -> None:
    """Record that a training step is completed.

    Args:
        step: Steps done.
    """
    if _current is not None:
        _current.end_step(step)


def mark_progress() -> None:
    """Record progress other than a step, such as an evaluation batch or a checkpoint."""
    if _current is not None:
        _current.mark_progress()


def mark_terminated() -> None:
    """Record that the process exits because a worker received SIGTERM: the supervisor does not count that restart."""
    if _current is not None:
        _current.mark_terminated()
