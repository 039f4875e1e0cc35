"""Build progress on the command line: a bar per layer on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO

from kfp_mindspore.images.progress import BuildProgress, ProgressPrinter


class BuildDisplay(ProgressPrinter):
    """Displays a build; a context manager.

    Args:
        stream: Where to; default standard error, since standard output has the result.
        bars: Whether to draw bars; default: whether `stream` is a terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, bars: bool | None = None) -> None:
        super().__init__(stream or sys.stderr)
        self._has_bars = self.stream.isatty() if bars is None else bars
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> BuildDisplay:
        if self._has_bars:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
            from rich.progress import Progress as Bars

            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=Console(file=self.stream, force_terminal=True, highlight=False, markup=False, soft_wrap=True),
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def show_layer(self, progress: BuildProgress) -> None:
        """Update a layer's bar, or print the layer once it is finished."""
        name = progress.layer_name
        if self._bars is None or not (progress.total_bytes or name in self._tasks):
            super().show_layer(progress)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=progress.total_bytes)
        if progress.total_bytes:
            self._bars.update(self._tasks[name], completed=progress.done_bytes, total=progress.total_bytes)

    def print(self, text: str) -> None:
        """Print a line, above the bars."""
        if self._bars is not None:
            self._bars.console.print(text)
        else:
            super().print(text)
