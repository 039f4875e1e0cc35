"""A run report: one self-contained HTML file."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.evaluation.chart import STYLES
from kfp_mindspore.evaluation.curves import build_environment, compute_curves, read_records
from kfp_mindspore.runs.report.result import RunResult, StepResult

_LIBRARIES = ("kfp-mindspore", "mindspore", "kfp", "kserve", "numpy", "scikit-learn")
_MAXIMUM_PIXELS = 64 * 64


def write_report(result: RunResult, path: Path) -> Path:
    """Write a run's report in any state, with the steps' HTML pages beside it, and return the path.

    Args:
        result: The run.
        path: The HTML file.
    """
    for step in result.steps.values():
        for source, page in _list_pages(step):
            files.write_text(path.with_name(page), source.read_text(encoding="utf-8", errors="replace"))
    files.write_text(path, render_html(result))
    return path


def render_html(result: RunResult) -> str:
    """Return the report as HTML: summary, steps, training curves, confusion matrix, prediction, versions."""
    environment = build_environment(Path(__file__).with_name("templates"))
    return environment.get_template("report.html.j2").render(
        run=result,
        error=result.error,
        started=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(result.started)),
        tiles=_list_tiles(result),
        steps=_list_steps(result),
        charts=compute_curves({"": read_records(result.metrics_file) if result.metrics_file else []}),
        styles=STYLES,
        matrix=get_confusion_matrix(result),
        sample=get_sample(result),
        parameters=[(name, _shorten(value)) for name, value in sorted(result.arguments.items())],
        versions=_list_versions(),
    )


def get_confusion_matrix(result: RunResult) -> dict[str, Any] | None:
    """Return the last logged confusion matrix's labels, counts and errors, or None."""
    content: Any = None
    for _, _, artifact in result.list_artifacts("system.ClassificationMetrics"):
        value = artifact["metadata"].get("confusionMatrix")
        value = json.loads(value) if isinstance(value, str) else value
        value = value.get("struct", value) if isinstance(value, dict) else None
        if value and value.get("rows"):
            content = value
    if content is None:
        return None
    counts = [[int(count) for count in row["row"]] for row in content["rows"]]
    total = sum(map(sum, counts))
    return {
        "labels": [str(entry.get("displayName", "")) for entry in content["annotationSpecs"]],
        "counts": counts,
        "largest": max(map(max, counts)) or 1,
        "total": total,
        "wrong": total - sum(row[index] for index, row in enumerate(counts)),
    }


def get_sample(result: RunResult) -> dict[str, Any] | None:
    """Return prediction, label (empty if unknown) and, for a small grey image, pixels from the smoke test's sample."""
    prediction, label = result.get_output("prediction"), result.get_output("label") or ""
    if prediction is None:
        return None
    sample: dict[str, Any] = {"prediction": str(prediction), "label": str(label), "pixels": []}
    image = _read_image(result, int(result.get_output("sample_index") or 0))
    if image is not None:
        low, high = min(map(min, image)), max(map(max, image))
        scale = 255 / (high - low) if high > low else 0.0
        sample["rows"], sample["columns"] = len(image), len(image[0])
        sample["pixels"] = [
            {"x": x, "y": y, "shade": round((value - low) * scale)}
            for y, row in enumerate(image)
            for x, value in enumerate(row)
        ]
    return sample


def _read_image(result: RunResult, index: int) -> list[list[float]] | None:
    """Return a sample in the bundle as rows of grey values, or None if it is not a one-channel image."""
    import numpy as np

    for _, _, artifact in result.list_artifacts("system.Model"):
        path = Path(artifact["uri"], "verified.npz")
        if not path.is_file():
            continue
        with np.load(path) as content:
            inputs = [content[name] for name in content.files if name.startswith("input.")]
        if len(inputs) != 1 or index >= len(inputs[0]):
            continue
        image = np.squeeze(inputs[0][index])
        if image.ndim == 2 and image.size <= _MAXIMUM_PIXELS and min(image.shape) > 1:
            rows: list[list[float]] = image.astype(float).tolist()
            return rows
    return None


def _list_tiles(result: RunResult) -> list[dict[str, str]]:
    tiles = []
    gate = next(iter(result.gates), None)
    evaluation = result.get_evaluation()
    if isinstance(evaluation.get("value"), (int, float)):
        note = ""
        if gate is not None and gate.threshold is not None:
            note = f"gate {gate.threshold:.4g}: {'passed' if gate.passed else 'not met'}"
        if gate is not None and gate.baseline:
            note += f"{', ' if note else ''}{gate.baseline}"
        tiles.append({"name": str(evaluation["metric"]), "value": f"{evaluation['value']:.4f}", "note": note})
    if isinstance(evaluation.get("samples"), (int, float)):
        tiles.append({"name": "samples", "value": f"{evaluation['samples']:.0f}", "note": "held out"})
    difference = result.get_output("max_abs_diff", first=True)
    if isinstance(difference, (int, float)):
        tiles.append(
            {
                "name": "largest difference",
                "value": f"{difference:.1e}" if difference else "0",
                "note": "exported graph against network",
            }
        )
    prediction = result.get_output("prediction")
    if prediction is not None:
        label = result.get_output("label")
        tiles.append({"name": "prediction", "value": str(prediction), "note": f"label {label}" if label else ""})
    return tiles


def _list_steps(result: RunResult) -> list[dict[str, Any]]:
    longest = max([step.seconds for step in result.steps.values()], default=0.0) or 1.0
    return [_describe_step(step, longest) for step in result.steps.values()]


def _describe_step(step: StepResult, longest: float) -> dict[str, Any]:
    body = min(step.body_seconds, step.seconds)
    return {
        "name": step.name,
        "state": step.state,
        "seconds": step.seconds,
        "body_seconds": step.body_seconds,
        "body_width": round(100 * body / longest, 1),
        "rest_width": round(100 * (step.seconds - body) / longest, 1),
        "result": step.describe() if step.describe() != step.state else "",
        "pages": [page for _, page in _list_pages(step)],
    }


def _list_pages(step: StepResult) -> list[tuple[Path, str]]:
    """Return the files with a step's HTML artifacts, and the names of their copies beside the run's report.

    KFP's artifact files have no suffix, and a cached step's are in another run's directory.
    """
    return [
        (Path(value["uri"]), f"{step.name}-{name}.html".replace("/", "-"))
        for name, value in step.list_artifacts("system.HTML")
        if Path(value["uri"]).is_file() and Path(value["uri"]).stat().st_size
    ]


def _list_versions() -> list[tuple[str, str]]:
    versions = [("Python", platform.python_version())]
    for library in _LIBRARIES:
        try:
            versions.append((library, importlib.metadata.version(library)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _shorten(value: Any, limit: int = 200) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
