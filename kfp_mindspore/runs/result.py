"""What a run did: its steps, their outputs, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kfp_mindspore.errors import GateNotMetError, KfpMindSporeError, ProcessFailedError

StepState = Literal["pending", "running", "succeeded", "cached", "failed", "skipped"]
RunState = Literal["running", "succeeded", "refused", "failed", "interrupted"]

GATE_OUTPUT = "passed"
# What a step that has no output parameters is described by, if it logged metrics.
_HEADLINES = ("accuracy", "loss", "validation.accuracy")


@dataclass
class StepResult:
    """One step of a run.

    Args:
        name: The step's name.
        state: `pending`, `running`, `succeeded`, `cached`, `failed` or `skipped`.
        seconds: Wall clock of the step, its start-up included; the sum when a loop ran it several times.
        body_seconds: Seconds of work, without start-up and imports: the outermost spans (`kfp_mindspore.events.span`)
            of the step's processes; 0 for a step that opens none.
        arguments: Its input parameters.
        outputs: Its output parameters; an artifact is a dict with `uri`, `type` and `metadata`.
        log: Its log.
    """

    name: str
    state: StepState = "pending"
    seconds: float = 0.0
    body_seconds: float = 0.0
    arguments: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    log: Path | None = None

    @property
    def is_done(self) -> bool:
        """Whether the step ended well, from the cache or by itself."""
        return self.state in ("succeeded", "cached")

    def describe(self) -> str:
        """Return the step's outcome in a few words, such as `accuracy 0.981`."""
        if not self.is_done:
            return self.state
        values = []
        shown = {name: value for name, value in self.outputs.items() if not _is_artifact(value)}
        for name, value in (shown or self._list_metrics()).items():
            if isinstance(value, bool):
                values.append(f"{name} {'yes' if value else 'no'}")
            elif isinstance(value, float):
                values.append(f"{name} {value:.4g}")
            elif isinstance(value, int) or (isinstance(value, str) and 0 < len(value) <= 60 and "\n" not in value):
                values.append(f"{name} {value}")
        return ", ".join(values) or self.state

    def _list_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for value in self.outputs.values():
            if _is_artifact(value) and value["type"] == "system.Metrics":
                metrics.update({name: number for name, number in value["metadata"].items() if _read_number(number)})
        return {name: metrics[name] for name in _HEADLINES if name in metrics}


@dataclass(frozen=True)
class Gate:
    """A model's admission: a metric beside what it has to reach.

    Args:
        step: The step that decided.
        metric: Name of the metric.
        value: What was measured; None when the step does not tell.
        threshold: What had to be reached; None when the step does not tell.
        passed: Whether it was reached.
    """

    step: str
    metric: str
    value: float | None
    threshold: float | None
    passed: bool

    def describe(self) -> str:
        """Return a sentence such as `accuracy 0.931 is 0.019 below the gate of 0.950`."""
        if self.value is None or self.threshold is None:
            return f"{self.step} {'admitted' if self.passed else 'refused'} the model"
        distance = abs(self.value - self.threshold)
        side = "above" if self.value >= self.threshold else "below"
        # As many digits as tell the two numbers apart, and no fewer than three.
        digits = next((count for count in range(3, 9) if round(distance, count) > 0), 3)
        return (
            f"{self.metric} {self.value:.{digits}f} is {distance:.{digits}f} {side} "
            f"the gate of {self.threshold:.{digits}f}"
        )


@dataclass
class RunResult:
    """A run of a pipeline on this machine.

    Args:
        id: Name of the run, unique below the home directory.
        pipeline: Name of the pipeline.
        directory: Everything the run wrote: logs, artifacts, events, report.
        state: `succeeded`, `refused` (a gate was not met), `failed` or `interrupted`.
        arguments: The arguments that were given.
        seconds: Wall clock of the whole run.
        steps: The steps by name, in the order of the pipeline.
        outputs: The pipeline's own outputs.
        error: What went wrong, for a run that did not succeed.
        report: The HTML report; None when none was written.
    """

    id: str
    pipeline: str
    directory: Path
    state: RunState = "running"
    arguments: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    steps: dict[str, StepResult] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    error: KfpMindSporeError | None = None
    report: Path | None = None
    started: float = 0.0
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def overhead_seconds(self) -> float:
        """Wall clock minus the steps' work: start-up, imports and waiting for a server count as overhead."""
        return max(0.0, self.seconds - sum(step.body_seconds for step in self.steps.values()))

    @property
    def gates(self) -> list[Gate]:
        """The gates that were decided, from the steps with an output named `passed`."""
        return [gate for step in self.steps.values() if (gate := get_gate(step)) is not None]

    def find(self, name: str, *, last: bool = True) -> Any:
        """Return the output parameter of that name of the last step that has one, or of the first, else None."""
        for step in reversed(self.steps.values()) if last else self.steps.values():
            value = step.outputs.get(name)
            if value is not None and not _is_artifact(value):
                return value
        return None

    def find_failed(self) -> StepResult | None:
        """Return the step that failed, else None."""
        return next((step for step in self.steps.values() if step.state == "failed"), None)

    def list_artifacts(self, kind: str = "") -> Iterator[tuple[StepResult, str, dict[str, Any]]]:
        """Yield step, name and content of the artifacts, of one type such as `system.Metrics` or of all."""
        for step in self.steps.values():
            for name, value in step.outputs.items():
                if _is_artifact(value) and kind in ("", value["type"]):
                    yield step, name, value

    def check(self) -> RunResult:
        """Return the run itself when it succeeded.

        Raises:
            GateNotMetError: A gate refused the model.
            KfpMindSporeError: A step failed, or the pipeline cannot run.
        """
        if self.error is not None:
            raise self.error
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the run as JSON types, as `kfp-mindspore run --json` prints it."""
        return {
            "run_id": self.id,
            "pipeline": self.pipeline,
            "state": self.state,
            "arguments": self.arguments,
            "accuracy": self.find("accuracy"),
            "test_images": self.find("test_images"),
            "prediction": self.find("prediction"),
            "label": self.find("label"),
            "url": self.find("url"),
            "max_abs_diff": self.find("max_abs_diff", last=False),
            "gates": [
                {"step": g.step, "metric": g.metric, "value": g.value, "threshold": g.threshold, "passed": g.passed}
                for g in self.gates
            ],
            "seconds": {step.name: round(step.seconds, 3) for step in self.steps.values()},
            "body_seconds": {step.name: round(step.body_seconds, 3) for step in self.steps.values()},
            "states": {step.name: step.state for step in self.steps.values()},
            "wall_seconds": round(self.seconds, 3),
            "overhead_seconds": round(self.overhead_seconds, 3),
            "outputs": self.outputs,
            "report": str(self.report) if self.report else None,
            "directory": str(self.directory),
            "error": self.error.message if self.error else None,
        }


def get_gate(step: StepResult) -> Gate | None:
    """Return the gate that a step decided, or None when it has no output named `passed`."""
    passed = step.outputs.get(GATE_OUTPUT)
    if not isinstance(passed, bool) or not step.is_done:
        return None
    threshold = _read_number(step.arguments.get("threshold"))
    metric = str(step.arguments.get("metric") or "accuracy")
    value = _read_number(step.outputs.get(metric, step.outputs.get("value")))
    return Gate(step.name, metric, value, threshold, passed)


def explain(result: RunResult, last_lines: Mapping[str, list[str]]) -> KfpMindSporeError | None:
    """Return the error of a run whose steps are complete, or None when it succeeded.

    Args:
        result: The run.
        last_lines: The last lines of the failed steps' logs, by step.
    """
    failed = result.find_failed()
    if failed is not None:
        return ProcessFailedError(
            f"step {failed.name} failed after {failed.seconds:.1f} s",
            log=last_lines.get(failed.name, []),
            hint=f"Its whole log: {failed.log}" if failed.log else "",
        )
    refused = next((gate for gate in result.gates if not gate.passed), None)
    if refused is not None:
        skipped = [step.name for step in result.steps.values() if step.state == "skipped"]
        return GateNotMetError(
            refused.describe(),
            hint=f"Not run: {', '.join(skipped)}. What is deployed is untouched." if skipped else "",
        )
    return None


def _is_artifact(value: Any) -> bool:
    return isinstance(value, dict) and {"uri", "type", "metadata"} <= value.keys()


def _read_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
