"""Build progress."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

_INTERMEDIATE_STATES = ("Preparing", "Waiting", "Pushing", "Pulling fs layer", "Verifying Checksum")
_DIGEST_LENGTH = 19


@dataclass(frozen=True)
class BuildProgress:
    """One progress event.

    Args:
        step: The step, such as `Push layer` or the Containerfile's instruction `RUN pip install …`.
        item: A layer digest's first digits, or empty.
        done_bytes: Bytes done so far; 0 for a step without a size.
        total_bytes: Bytes in all; 0 when unknown.
        text: A line from the step's output, or empty.
    """

    step: str
    item: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    text: str = ""

    @property
    def layer_name(self) -> str:
        """A layer event's step and short digest."""
        return f"{self.step} {self.item.removeprefix('sha256:')[:_DIGEST_LENGTH]}"


OnProgress = Callable[[BuildProgress], None]


def ignore_progress(_: BuildProgress) -> None:
    """Ignore an event."""


class ProgressPrinter:
    """Prints steps, their output and finished layers as lines; to be passed to a builder as `on_progress`.

    Args:
        stream: Where to; default standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self._step = ""
        self._finished: set[str] = set()

    def __call__(self, progress: BuildProgress) -> None:
        """Print an event."""
        if progress.item:
            self.show_layer(progress)
            return
        if progress.step != self._step:
            self._step = progress.step
            self.print(progress.step)
        if progress.text:
            self.print(f"  {progress.text}")

    def show_layer(self, progress: BuildProgress) -> None:
        """Print a layer once it is finished."""
        name = progress.layer_name
        if name in self._finished:
            return
        if progress.total_bytes:
            if progress.done_bytes >= progress.total_bytes:
                self._finished.add(name)
                self.print(f"{name}: {progress.total_bytes:,} bytes")
        elif progress.text and progress.text not in _INTERMEDIATE_STATES:
            self._finished.add(name)
            self.print(f"{name}: {progress.text}")

    def print(self, text: str) -> None:
        """Print a line."""
        print(text, file=self.stream, flush=True)
