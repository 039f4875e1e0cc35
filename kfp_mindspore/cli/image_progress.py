"""Shows a build while it goes on: a bar a layer on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO

from kfp_mindspore.images.result import Progress

_LARGEST_ITEM = 19


class BuildDisplay:
    """Shows a build; give it to a builder as `on_progress`.

    Args:
        stream: Where to write; default standard error, so that standard output holds the result alone.
        bars: Whether to draw bars that rewrite themselves; default whether `stream` is a terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, bars: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._has_bars = self._stream.isatty() if bars is None else bars
        self._step = ""
        self._tasks: dict[tuple[str, str], Any] = {}
        self._finished: set[tuple[str, str]] = set()
        self._progress: Any = None

    def __enter__(self) -> BuildDisplay:
        if self._has_bars:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
            from rich.progress import Progress as Bars

            self._progress = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=Console(file=self._stream, force_terminal=True, highlight=False, markup=False, soft_wrap=True),
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __call__(self, progress: Progress) -> None:
        """Show what moved."""
        if progress.item:
            self._show_layer(progress)
            return
        if progress.step != self._step:
            self._step = progress.step
            self._print(progress.step)
        if progress.text:
            self._print(f"  {progress.text}")

    def _show_layer(self, progress: Progress) -> None:
        key = (progress.step, progress.item)
        name = f"{progress.step} {progress.item.removeprefix('sha256:')[:_LARGEST_ITEM]}"
        if progress.text and not progress.total_bytes:
            if key not in self._tasks and not _is_intermediate(progress.text):
                self._print(f"{name}: {progress.text}")
            return
        if self._progress is not None:
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(name, total=progress.total_bytes or None)
            self._progress.update(self._tasks[key], completed=progress.done_bytes, total=progress.total_bytes or None)
        elif progress.total_bytes and progress.done_bytes >= progress.total_bytes and key not in self._finished:
            self._finished.add(key)
            self._print(f"{name}: {progress.total_bytes:,} bytes")

    def _print(self, text: str) -> None:
        if self._progress is not None:
            self._progress.console.print(text)
        else:
            print(text, file=self._stream, flush=True)


def _is_intermediate(text: str) -> bool:
    """Tell whether a daemon's word about a layer is followed by another one."""
    return text in ("Preparing", "Waiting", "Pushing", "Pulling fs layer", "Verifying Checksum")
