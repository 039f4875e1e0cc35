"""A run's state, updated from process events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kfp_mindspore.local.logs import LogReader
from kfp_mindspore.runs.report.result import RunResult, StepResult

Event = dict[str, Any]


class RunTracker:
    """Applies a run's events to the result.

    Args:
        result: The run; updated in place.
        events: The events file; may not exist yet.
        logs: Step log directory.
    """

    def __init__(self, result: RunResult, events: Path, logs: Path) -> None:
        self.result = result
        self._reader = LogReader(events)
        self._logs = logs
        self._open: dict[tuple[str, int], list[float]] = {}
        self._spans: dict[str, list[tuple[float, float]]] = {}
        self.failure: Event | None = None
        self.is_finished = False

    def read(self, *, final: bool = False) -> list[Event]:
        """Apply the new events and return them.

        Args:
            final: Whether the run has ended: pending steps become skipped.
        """
        events = []
        for line in self._reader.read(final=final):
            try:
                event = json.loads(line)
            except ValueError:
                # A killed process or a full disk leaves an incomplete line.
                continue
            if isinstance(event, dict):
                self._apply(event)
                events.append(event)
        if final:
            self._finish()
        return events

    def _apply(self, event: Event) -> None:
        kind, name = event.get("kind"), str(event.get("name", ""))
        step = str(event.get("task") or "")
        if kind == "plan":
            self.result.pipeline = name
            self.result.arguments = event["arguments"]
            self.result.steps = {step: StepResult(step, log=self._logs / f"{step}.log") for step in event["steps"]}
        elif kind == "task":
            self._apply_task(self.result.steps.setdefault(name, StepResult(name)), event)
        elif kind == "finish":
            self.is_finished = True
            self.result.outputs = event["outputs"]
        elif kind == "failure":
            self.failure = event
        elif kind == "note":
            self.result.steps.setdefault(step, StepResult(step)).note = event["text"]
        elif kind == "begin":
            self._open.setdefault((step, int(event["pid"])), []).append(float(event["time"]))
        elif kind == "end":
            starts = self._open.get((step, int(event["pid"])))
            if starts:
                self._spans.setdefault(step, []).append((starts.pop(), float(event["time"])))

    def _apply_task(self, step: StepResult, event: Event) -> None:
        step.state = event["state"]
        step.arguments = event.get("arguments", step.arguments)
        step.outputs = event.get("outputs", step.outputs)
        step.note = event.get("note", step.note)
        step.seconds += float(event.get("seconds", 0.0))

    def _finish(self) -> None:
        for step in self.result.steps.values():
            if step.state == "running":
                step.state = "failed"
            elif step.state == "pending":
                step.state = "skipped"
            step.body_seconds = min(sum_intervals(self._spans.get(step.name, ())), step.seconds)


def sum_intervals(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the intervals' total length, overlaps counted once.

    Args:
        intervals: (start, end) pairs, in seconds; they may overlap.
    """
    total, covered = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return total
