"""An evaluation's HTML page: metrics, plots and worst samples by task."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import require_extra
from kfp_mindspore.steps.evaluation.plots import Plot, build_plot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.evaluation.predictions import Predictions
    from kfp_mindspore.mindir.evaluate import Evaluation

    Columns = Mapping[str, NDArray[Any]]

_WORST = 10
_PREVIEW = 80
_IMAGE_SIDES = range(4, 4097)
# Ten samples with three images each make a page of at most a megabyte.
_THUMBNAIL_SIDE = 96
_MAX_EMBEDDED = 32 << 10
_IMAGE_TYPES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png", b"GIF8": "gif"}


def render_evaluation(evaluation: Evaluation, threshold: float | None, columns: Columns) -> str:
    """Render an evaluation as one self-contained HTML page.

    Args:
        evaluation: The evaluation.
        threshold: The gate's threshold; None for no gate.
        columns: The samples' feature columns as stored, shown for the worst samples.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from kfp_mindspore.evaluation import compute_confusion, get_metric
    from kfp_mindspore.evaluation.metrics import METRICS
    from kfp_mindspore.evaluation.summaries import compute_class_scores

    predictions = evaluation.predictions
    metric = get_metric(evaluation.metric)
    matrix = compute_confusion(predictions).tolist() if evaluation.task == "classification" else []
    environment = Environment(
        loader=PackageLoader("kfp_mindspore.steps.evaluation", "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["fraction"] = lambda value: "-" if math.isnan(value) else f"{value:.3f}"
    return environment.get_template("evaluation.html.j2").render(
        evaluation=evaluation,
        metric=metric,
        metrics=[
            (METRICS.get(name, metric), value, [found.get(name, math.nan) for found in evaluation.baselines.values()])
            for name, value in evaluation.metrics.items()
        ],
        threshold=threshold,
        passed=metric.is_met(evaluation.value, threshold),
        matrix=matrix,
        largest=max((max(row) for row in matrix), default=0) or 1,
        scores=[] if predictions.probabilities is None else compute_class_scores(evaluation.labels, predictions),
        plots=_list_plots(predictions),
        worst=_list_worst(evaluation, columns),
        columns=list(columns),
    )


def _list_plots(predictions: Predictions) -> list[Plot]:
    import numpy as np

    from kfp_mindspore.evaluation.summaries import compute_calibration

    unit = (0.0, 1.0)
    if predictions.task == "classification":
        curve = compute_calibration(predictions)
        return [
            build_plot(
                "Calibration",
                curve.confidence,
                curve.accuracy,
                labels=("confidence", "accuracy"),
                limits=(unit, unit),
                reference=((0, 0), (1, 1)),
                radii=3 + 7 * np.sqrt(curve.weight / curve.weight.max()),
                connected=True,
            )
        ]
    if predictions.task == "regression":
        target, values = predictions.target.reshape(-1), predictions.values.reshape(-1)
        both = float(min(target.min(), values.min())), float(max(target.max(), values.max()))
        bound = float(np.abs(values - target).max()) or 1.0
        return [
            build_plot(
                "Predictions",
                target,
                values,
                labels=("true value", "prediction"),
                limits=(both, both),
                reference=((both[0], both[0]), (both[1], both[1])),
            ),
            build_plot(
                "Residuals",
                values,
                target - values,
                labels=("prediction", "true value - prediction"),
                limits=(both, (-bound, bound)),
                reference=((both[0], 0), (both[1], 0)),
            ),
        ]
    return []


def _list_worst(evaluation: Evaluation, columns: Columns) -> list[dict[str, Any]]:
    """Return index, truth, prediction, loss and the columns of the samples with the largest losses."""
    from kfp_mindspore.evaluation.summaries import list_worst

    predictions = evaluation.predictions
    losses = predictions.losses
    if losses is None:
        return []
    return [
        {
            "index": row,
            "truth": _describe_prediction(evaluation, predictions.target[row]),
            "prediction": _describe_prediction(evaluation, predictions.values[row]),
            "loss": float(losses[row]) + 0.0,  # not -0
            "columns": [_preview(array[row]) for array in columns.values()],
        }
        for row in list_worst(predictions, _WORST)
    ]


def _describe_prediction(evaluation: Evaluation, value: Any) -> str:
    if evaluation.task == "classification":
        return evaluation.labels[int(value)]
    if evaluation.task == "multi_label":
        return ", ".join(label for label, marked in zip(evaluation.labels, value, strict=True) if marked) or "none"
    if evaluation.task == "language_model" and evaluation.labels:
        return _shorten(
            "".join(evaluation.labels[index] for index in value.tolist() if 0 <= index < len(evaluation.labels))
        )
    return _preview(value)["text"]


def _preview(value: Any) -> dict[str, str]:
    """Return a text, or an image's data URI."""
    import numpy as np

    if isinstance(value, bytes):
        kind = next((kind for magic, kind in _IMAGE_TYPES.items() if value.startswith(magic)), "")
        if kind and len(value) > _MAX_EMBEDDED:
            return _preview_large(value)
        if kind:
            return {"text": "", "image": _to_uri(value, kind)}
        return {"text": _shorten(value.decode(errors="replace")), "image": ""}
    array = np.asarray(value)
    pixels = _to_pixels(array)
    if pixels is not None:
        return {"text": "", "image": _encode_thumbnail(_import_pillow().fromarray(pixels))}
    # A long array is cut before it is formatted.
    numbers = array.reshape(-1)[:_PREVIEW].tolist()
    texts = [number.decode(errors="replace") if isinstance(number, bytes) else f"{number:.4g}" for number in numbers]
    text = " ".join(texts)
    return {"text": text if len(text) <= _PREVIEW else text[:_PREVIEW].rpartition(" ")[0] + " …", "image": ""}


def _to_pixels(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return uint8 (H, W) or (H, W, 3) for an array that is an image with one or three channels, else None."""
    import numpy as np

    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    if not is_image or array.dtype == object or not all(side in _IMAGE_SIDES for side in array.shape[:2]):
        return None
    low, high = float(array.min()), float(array.max())
    return ((array.astype(np.float64) - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)


def _preview_large(content: bytes) -> dict[str, str]:
    """Return an image file's thumbnail, or the size when it cannot be decoded."""
    images = _import_pillow()
    try:
        with images.open(io.BytesIO(content)) as image:
            # JPEG files are decoded at a fraction of their size.
            image.draft(None, (2 * _THUMBNAIL_SIDE, 2 * _THUMBNAIL_SIDE))
            return {"text": "", "image": _encode_thumbnail(image.convert("RGB"))}
    except (OSError, SyntaxError, ValueError, images.DecompressionBombError):
        return {"text": f"an image file of {len(content)} bytes that cannot be decoded", "image": ""}


def _encode_thumbnail(image: Any) -> str:
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    stream = io.BytesIO()
    image.save(stream, "png")
    return _to_uri(stream.getvalue(), "png")


def _to_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _import_pillow() -> Any:
    with require_extra("pillow", "train"):
        from PIL import Image
    return Image


def _shorten(text: str) -> str:
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"
