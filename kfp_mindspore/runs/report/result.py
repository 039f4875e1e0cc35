"""A run's result: steps, outputs, gates and durations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kfp_mindspore.errors import GateNotMetError, KfpMindSporeError, ProcessFailedError
from kfp_mindspore.settings import METRICS_FILE

StepState = Literal["pending", "running", "succeeded", "cached", "failed", "skipped"]
RunState = Literal["running", "succeeded", "refused", "failed", "interrupted"]
# `killed`: of a stored run without a result.
RESUMABLE_STATES = ("interrupted", "failed", "killed")

GATE_OUTPUT = "passed"
# Metrics that describe a step without output parameters.
_HEADLINES = ("accuracy", "loss", "validation.accuracy")


@dataclass
class StepResult:
    """A step in a run.

    Args:
        name: Step name.
        state: `pending`, `running`, `succeeded`, `cached`, `failed` or `skipped`.
        seconds: The step's wall-clock time including start-up, summed over a loop's iterations.
        body_seconds: Time in the outermost spans (`kfp_mindspore.events.span`) in the step's processes, without
            start-up and imports; 0 without spans.
        arguments: Input parameters.
        outputs: Output parameters; an artifact is a dict with `uri`, `type` and `metadata`.
        log: Log file.
        note: What the cache could not compare, why the step was not cached, or that a resumed training found no
            checkpoint; empty for nothing.
    """

    name: str
    state: StepState = "pending"
    seconds: float = 0.0
    body_seconds: float = 0.0
    arguments: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    log: Path | None = None
    note: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the step succeeded or was cached."""
        return self.state in ("succeeded", "cached")

    def describe(self) -> str:
        """Return a one-line output summary, such as `accuracy 0.981`, else the state."""
        if not self.is_done:
            return self.state
        values = []
        shown = {name: value for name, value in self.outputs.items() if not _is_artifact(value)}
        headline = {}
        for name, value in (("metric", "value"), ("baseline", "baseline_value")):
            if isinstance(shown.get(name), str) and value in shown:
                title, number = shown.pop(name), shown.pop(value)
                if title:
                    headline[title if name == "metric" else f"{name} {title}"] = number
        if shown.get("deployed") is False:
            # The step's number for no version.
            shown.pop("version", None)
        shown = {**headline, **shown}
        metrics = self.list_metrics()
        for name, value in (shown or {name: metrics[name] for name in _HEADLINES if name in metrics}).items():
            if isinstance(value, dict):
                # A sweep's best parameters.
                texts = [f"{key}={_shorten(entry)}" for key, entry in value.items()]
                values += [f"{name} {' '.join(texts)}"] if texts else []
            elif isinstance(value, bool):
                values.append(f"{name} {'yes' if value else 'no'}")
            elif isinstance(value, float):
                values.append(f"{name} {value:.4g}")
            elif isinstance(value, int) or (isinstance(value, str) and 0 < len(value) <= 60 and "\n" not in value):
                values.append(f"{name} {value}")
        return ", ".join(values) or self.state

    def list_artifacts(self, kind: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and content of each artifact with a type such as `system.Metrics`; all types by default."""
        for name, value in self.outputs.items():
            if _is_artifact(value) and kind in ("", value["type"]):
                yield name, value

    def list_metrics(self) -> dict[str, float]:
        """Return the numbers in the step's metric artifacts by name."""
        return {
            name: number
            for _, artifact in self.list_artifacts("system.Metrics")
            for name, value in artifact["metadata"].items()
            if (number := _read_number(value)) is not None
        }


@dataclass(frozen=True)
class Gate:
    """A gate decision from a step with an output `passed`.

    Args:
        step: Step name.
        metric: Metric name.
        value: The metric's value; None if the step has no such output.
        threshold: The metric's threshold; None if the step has no such argument.
        passed: Whether the threshold is reached.
        baseline: A baseline's name and metric, as `ridge regression 56.21`; empty for none.
    """

    step: str
    metric: str
    value: float | None
    threshold: float | None
    passed: bool
    baseline: str = ""

    def describe(self) -> str:
        """Return a sentence such as `accuracy 0.931 is 0.019 below the threshold of 0.950`."""
        if self.value is None or self.threshold is None:
            return f"{self.step}: gate {'passed' if self.passed else 'not met'}"
        distance = abs(self.value - self.threshold)
        side = "above" if self.value >= self.threshold else "below"
        # At least three digits, and as many as the two numbers need to differ.
        digits = next((count for count in range(3, 9) if round(distance, count) > 0), 3)
        baseline = f"; baseline {self.baseline}" if self.baseline else ""
        return (
            f"{self.metric} {self.value:.{digits}f} is {distance:.{digits}f} {side} "
            f"the threshold of {self.threshold:.{digits}f}{baseline}"
        )


@dataclass
class RunResult:
    """A local pipeline run.

    Args:
        id: Run name, unique in the home directory.
        pipeline: Pipeline name.
        directory: Run directory: logs, artifacts, events, report.
        state: `succeeded`, `refused` (a gate was not met), `failed` or `interrupted`.
        arguments: Run arguments, defaults included.
        seconds: The run's wall-clock time.
        steps: Steps by name, in topological order.
        outputs: The pipeline's outputs.
        error: Error for a run that did not succeed.
        report: The HTML report; None if none was written.
        started: When the run started, in seconds since the epoch.
        note: Why nothing was cached; empty if caching is enabled or was disabled by the caller.
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
    note: str = ""

    @property
    def is_resumable(self) -> bool:
        """Whether the run ended without a result; one that a gate has refused has it."""
        return self.state in RESUMABLE_STATES

    @property
    def notes(self) -> list[str]:
        """What the cache could not compare and what was not cached, a sentence per step."""
        notes = [f"{step.name}: {step.note}" for step in self.steps.values() if step.note]
        return [self.note, *notes] if self.note else notes

    @property
    def overhead_seconds(self) -> float:
        """Wall-clock time outside the steps' spans: start-up, imports and waiting."""
        return max(0.0, self.seconds - sum(step.body_seconds for step in self.steps.values()))

    @property
    def gates(self) -> list[Gate]:
        """The completed steps' gates."""
        return [gate for step in self.steps.values() if (gate := get_gate(step)) is not None]

    def get_output(self, name: str, *, first: bool = False) -> Any:
        """Return the output parameter from the last (or first) step with a non-empty one, else None."""
        for step in self.steps.values() if first else reversed(self.steps.values()):
            value = step.outputs.get(name)
            if value not in (None, "") and not _is_artifact(value):
                return value
        return None

    def get_evaluation(self) -> dict[str, Any]:
        """Return `metric`, `value` and `samples` from the last step that outputs a metric and a value, else {}."""
        for step in reversed(self.steps.values()):
            if {"metric", "value"} <= step.outputs.keys():
                return {name: step.outputs.get(name) for name in ("metric", "value", "samples")}
        return {}

    def list_artifacts(self, kind: str = "") -> Iterator[tuple[StepResult, str, dict[str, Any]]]:
        """Yield step, name and content of each artifact with a type such as `system.Metrics`; all types by default."""
        for step in self.steps.values():
            for name, value in step.list_artifacts(kind):
                yield step, name, value

    @property
    def metrics_file(self) -> Path | None:
        """The training's metrics.jsonl, of the first artifact that has it."""
        files = (Path(artifact["uri"], METRICS_FILE) for _, _, artifact in self.list_artifacts())
        return next((file for file in files if file.is_file()), None)

    def check(self) -> RunResult:
        """Return the run if it succeeded, else raise the run's error.

        Raises:
            GateNotMetError: A gate was not met.
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
            "metric": None,
            "value": None,
            "samples": None,
            **self.get_evaluation(),
            "prediction": self.get_output("prediction"),
            "label": self.get_output("label"),
            "url": self.get_output("url"),
            "max_abs_diff": self.get_output("max_abs_diff", first=True),
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
            "notes": self.notes,
            "report": str(self.report) if self.report else None,
            "directory": str(self.directory),
            "metrics_file": str(self.metrics_file) if self.metrics_file else None,
            "error": self.error.message if self.error else None,
        }


def get_gate(step: StepResult) -> Gate | None:
    """Return a step's gate, or None if the step has no output `passed`."""
    passed = step.outputs.get(GATE_OUTPUT)
    if not isinstance(passed, bool) or not step.is_done:
        return None
    # The threshold that a step computed, from a baseline for example, is in its metrics.
    threshold = step.list_metrics().get("threshold", _read_number(step.arguments.get("threshold")))
    metric = str(step.outputs.get("metric") or step.arguments.get("metric") or "accuracy")
    value = _read_number(step.outputs.get(metric, step.outputs.get("value")))
    baseline, baseline_value = step.outputs.get("baseline"), _read_number(step.outputs.get("baseline_value"))
    is_known = isinstance(baseline, str) and baseline and baseline_value is not None
    return Gate(step.name, metric, value, threshold, passed, f"{baseline} {baseline_value:.4g}" if is_known else "")


def build_error(result: RunResult, last_lines: Mapping[str, list[str]]) -> KfpMindSporeError | None:
    """Return a finished run's error, or None if it succeeded.

    Args:
        result: The run.
        last_lines: The failed steps' last log lines by step.
    """
    failed = next((step for step in result.steps.values() if step.state == "failed"), None)
    if failed is not None:
        return ProcessFailedError(
            f"step {failed.name} failed after {failed.seconds:.1f} s",
            log=last_lines.get(failed.name, []),
            hint=f"Full log: {failed.log}" if failed.log else "",
        )
    unmet = next((gate for gate in result.gates if not gate.passed), None)
    if unmet is not None:
        steps = result.steps.values()
        skipped = [step.name for step in steps if step.state == "skipped" or step.outputs.get("deployed") is False]
        return GateNotMetError(
            unmet.describe(),
            hint=f"Skipped: {', '.join(skipped)}. Deployed models are unchanged." if skipped else "",
        )
    # A gate from the cache or of another kind, such as a comparison: the deployment has its verdict.
    refused = next((step for step in result.steps.values() if step.outputs.get("deployed") is False), None)
    if refused is not None:
        verdict = refused.outputs.get("verdict") or "the gate is not met"
        return GateNotMetError(f"{refused.name}: {verdict}", hint="Deployed models are unchanged.")
    return None


def _is_artifact(value: Any) -> bool:
    return isinstance(value, dict) and {"uri", "type", "metadata"} <= value.keys()


def _shorten(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
