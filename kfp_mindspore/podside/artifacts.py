"""Entrypoint for job pods that hand over data by artifacts: `python -m kfp_mindspore.podside.artifacts`.

It downloads the inputs, restores the checkpoints, runs the command as a subprocess and uploads the checkpoints and
outputs. Only worker 0 uploads. The job's image needs kfp_mindspore and fsspec's implementation for the store
(`kfp-mindspore[artifacts]`, `kfp-mindspore[gcs]`); neither kfp nor MindSpore is imported.

Exit codes: the command's (128 + n after signal n); 2 when the store denies a request or an object is missing; 138,
which restarts the job, when the store cannot be reached.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from kfp_mindspore.settings import (
    METRICS_FILE,
    NODE_ID_VARIABLE,
    ROLE_VARIABLE,
    WORKER_ROLE,
)
from kfp_mindspore.stores.artifact_store import SECRET_PREFIX, STORES_VARIABLE, ArtifactStore, StoreError
from kfp_mindspore.stores.mirror import ArtifactMirror, restore

# Retryable by the restart policy ExitCode: 128 + SIGUSR1, "user-defined retryable error" in Kubeflow's operators.
RETRYABLE_EXIT_CODE = 138
PERMANENT_EXIT_CODE = 2
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Delays between attempts at the final upload: a store that restarts loses no training.
_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0)
_POLL_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parse_arguments(argv)
    store = ArtifactStore.from_environment(os.environ)
    runner = _CommandRunner()
    is_writer = (
        os.environ.get(ROLE_VARIABLE, WORKER_ROLE) == WORKER_ROLE and int(os.environ.get(NODE_ID_VARIABLE) or 0) == 0
    )
    try:
        for uri, path in options.download:
            _fetch(store, uri, Path(path), wait=options.shared and not is_writer)
        checkpoints = (
            restore(store, options.checkpoints[1], Path(options.checkpoints[0])) if options.checkpoints else None
        )
        outputs = [
            ArtifactMirror(store, Path(path), uri, store.list_files(uri) if is_writer else ())
            for path, uri in options.upload
        ]
    except StoreError as error:
        return _report(error)
    for directory in (*options.mkdir, *(os.path.dirname(path) for path, _ in options.upload)):  # noqa: PTH120
        Path(directory).mkdir(parents=True, exist_ok=True)

    def upload_progress() -> None:
        for output in outputs:
            output.sync(only=(METRICS_FILE,))
        if checkpoints is not None:
            checkpoints.sync()

    def upload_all() -> None:
        if checkpoints is not None:
            checkpoints.sync(final=True)
        for output in outputs:
            output.sync(final=True)
        if checkpoints is not None and code == 0 and not options.keep_checkpoints:
            checkpoints.delete()

    code = runner.run(options.command, upload_progress if is_writer else None, options.sync_seconds)
    if not is_writer:
        return code
    try:
        _retry(upload_all)
    except StoreError as error:
        return code or _report(error)
    return code


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kfp_mindspore.podside.artifacts", description=__doc__)
    parser.add_argument("--download", nargs=2, action="append", default=[], metavar=("URI", "PATH"))
    parser.add_argument("--upload", nargs=2, action="append", default=[], metavar=("PATH", "URI"))
    parser.add_argument("--mkdir", action="append", default=[], metavar="PATH", help="a directory for the command")
    parser.add_argument("--checkpoints", nargs=2, metavar=("PATH", "URI"))
    parser.add_argument("--keep-checkpoints", action="store_true", help="do not delete them when the command succeeds")
    parser.add_argument("--shared", action="store_true", help="worker 0 downloads for all: the paths are on a volume")
    parser.add_argument("--sync-seconds", type=float, default=2.0, help="seconds between uploads during the training")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args(argv)


def _fetch(store: ArtifactStore, uri: str, path: Path, *, wait: bool) -> None:
    if wait:
        while not path.exists():
            time.sleep(_POLL_SECONDS)
    if path.exists():
        return
    begun = time.monotonic()
    count = store.download(uri, path)
    print(f"downloaded {uri}: {count} files in {time.monotonic() - begun:.1f} s", flush=True)


def _retry(upload: Callable[[], None]) -> None:
    for seconds in (*_RETRY_SECONDS, None):
        try:
            upload()
            return
        except StoreError as error:
            if seconds is None or not error.retryable:
                raise
            print(f"{error}; next attempt in {seconds:g} s", file=sys.stderr, flush=True)
            time.sleep(seconds)


def _report(error: StoreError) -> int:
    print(f"Error: {error}", file=sys.stderr, flush=True)
    return RETRYABLE_EXIT_CODE if error.retryable else PERMANENT_EXIT_CODE


class _CommandRunner:
    """The command as a subprocess; signals are forwarded to it. Before the start, a signal ends this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_starting = False
        self._pending: list[int] = []
        for number in _FORWARDED:
            signal.signal(number, self._forward)

    def run(self, command: Sequence[str], upload: Callable[[], None] | None, seconds: float) -> int:
        """Run the command to the end.

        Args:
            command: The command with the arguments.
            upload: Called while the command runs; None for a replica that does not upload.
            seconds: Time between two calls.

        Returns:
            The exit code; 128 + n when signal n ended it.
        """
        self._is_starting = True
        try:
            process = subprocess.Popen(command, env=_strip_secrets(os.environ))
        except FileNotFoundError:
            print(f"Error: {command[0]}: no such command in the image of the job", file=sys.stderr, flush=True)
            return 127
        except PermissionError:
            print(f"Error: {command[0]}: not executable", file=sys.stderr, flush=True)
            return 126
        self._process = process
        for number in self._pending:
            process.send_signal(number)
        while True:
            try:
                code = process.wait(timeout=seconds if upload else None)
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                assert upload is not None
            try:
                upload()
            except StoreError as error:
                print(f"Warning: {error}; the next upload is in {seconds:g} s", file=sys.stderr, flush=True)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._process is not None:
            # No effect after the command has ended: its outputs are uploaded to the end.
            self._process.send_signal(number)
        elif self._is_starting:
            self._pending.append(number)
        else:
            raise SystemExit(128 + number)


def _strip_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name != STORES_VARIABLE and not name.startswith(SECRET_PREFIX)
    }


if __name__ == "__main__":
    sys.exit(main())
