"""A run's progress display: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO

from kfp_mindspore.runs.report.result import RunResult, StepResult

_MARKS = {"succeeded": "✓", "cached": "✓", "failed": "✗", "skipped": "-"}
_COLORS = {"succeeded": "green", "cached": "green", "failed": "red", "skipped": "dim"}
_LINE_SECONDS = 2.0


class ProgressDisplay:
    """Progress display for `run_local(on_progress=…)`.

        with ProgressDisplay() as display:
            run_local("digits_lifecycle", on_progress=display)

    Args:
        stream: Output stream; default standard output.
        bar: Whether to draw a progress bar; default whether `stream` is a terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, bar: bool | None = None) -> None:
        self._stream = stream or sys.stdout
        self._has_bar = self._stream.isatty() if bar is None else bar
        self._shown: dict[str, str] = {}
        self._last_line: dict[str, float] = {}
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressDisplay:
        if self._has_bar:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                SpinnerColumn(finished_text=" "),
                TextColumn("{task.fields[step]}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                console=Console(file=self._stream, force_terminal=True, highlight=False),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("", total=None, step="starting", detail="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __call__(self, result: RunResult, events: list[dict[str, Any]]) -> None:
        """Show a run's new events."""
        for step in result.steps.values():
            if self._shown.get(step.name, "pending") != step.state:
                self._shown[step.name] = step.state
                self._show_state(result, step)
        for event in events:
            if event["kind"] == "progress":
                self._show_progress(event)

    def _show_state(self, result: RunResult, step: StepResult) -> None:
        names = list(result.steps)
        width = max(map(len, names))
        position = f"[{names.index(step.name) + 1}/{len(names)}]"
        if step.state == "running":
            if self._progress is not None:
                self._progress.reset(self._task, total=None, step=f"{position} {step.name}", detail="")
            else:
                self._print(f"{position} {step.name}: started")
            return
        seconds = "" if step.state == "skipped" else f" {step.seconds:.1f} s"
        detail = f", {step.describe()}" if step.is_done and step.describe() != step.state else ""
        if self._progress is not None:
            from rich.markup import escape
            from rich.table import Table

            color = _COLORS.get(step.state, "default")
            outcome = f"{step.state}{seconds}"
            # A grid wraps the details in their own column.
            line = Table.grid()
            line.add_column(no_wrap=True)
            line.add_column(overflow="fold")
            line.add_row(
                f"[{color}]{_MARKS.get(step.state, ' ')}[/] {step.name:<{width}}  {outcome:<18}",
                escape(detail.removeprefix(", ")),
            )
            self._progress.console.print(line)
        else:
            self._print(f"{position} {step.name}: {step.state}{seconds and ' in' + seconds}{detail}")

    def _show_progress(self, event: dict[str, Any]) -> None:
        step, detail = str(event.get("task", "")), describe_event(event)
        done, total = _get_fraction(event)
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, detail=detail)
            return
        now = time.monotonic()
        # A step's first and last lines are always printed, those between are rate-limited.
        if detail and (now - self._last_line.get(step, 0.0) >= _LINE_SECONDS or (total and done >= total)):
            self._last_line[step] = now
            self._print(f"{step}: {detail}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def describe_event(event: dict[str, Any]) -> str:
    """Format a progress event, such as `epoch 3/20, loss 0.412`."""
    words = []
    for name, total in (("epoch", "epochs"), ("step", "steps")):
        value = _to_number(event.get(name))
        if value is not None:
            words.append(f"{name} {value}/{event[total]}" if event.get(total) else f"{name} {value}")
    if _to_number(event.get("loss")) is not None:
        words.append(f"loss {event['loss']:.4f}")
    for name, value in (event.get("metrics") or {}).items():
        # The validation loss would exceed a line's width.
        if not name.endswith("loss") and _to_number(value) is not None:
            words.append(f"{name.replace('_', ' ')} {value:.4f}")
    return ", ".join(words)


def _get_fraction(event: dict[str, Any]) -> tuple[float, float | None]:
    for name, total in (("step", "steps"), ("epoch", "epochs")):
        done, count = _to_number(event.get(name)), _to_number(event.get(total))
        if done is not None and count:
            return done, count
    return 0.0, None


def _to_number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
