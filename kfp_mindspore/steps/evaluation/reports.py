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
# A picture with boxes, and the least score of the boxes that are shown.
_BOXES_SIDE = 256
_SURE = 0.5
_TRUE, _FOUND = "#2fd05a", "#ff3b30"
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
        scores=_list_class_scores(evaluation),
        plots=_list_plots(predictions),
        worst=_list_worst(evaluation, columns),
        columns=list(columns),
    )


def _list_class_scores(evaluation: Evaluation) -> list[tuple[str, int, float, float]]:
    """Return each class's name, count, and precision and recall; of boxes the average precisions."""
    import numpy as np

    from kfp_mindspore.evaluation.detection import compute_average_precision
    from kfp_mindspore.evaluation.summaries import compute_class_scores

    predictions, labels = evaluation.predictions, evaluation.labels
    if evaluation.task == "detection":
        found = compute_average_precision(predictions.values, predictions.target, len(labels))
        counts = [int((predictions.target[..., 0] == index).sum()) for index in range(len(labels))]
        with np.errstate(invalid="ignore"):
            return list(zip(labels, counts, found[0].tolist(), found.mean(axis=0).tolist(), strict=True))
    if predictions.probabilities is None:
        return []
    scores = compute_class_scores(labels, predictions)
    return [(row.label, row.count, row.precision, row.recall) for row in scores]


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
            "columns": [
                _draw_boxes(evaluation, array[row], row) if evaluation.task == "detection" else _preview(array[row])
                for array in columns.values()
            ],
        }
        for row in list_worst(predictions, _WORST)
    ]


def _describe_prediction(evaluation: Evaluation, value: Any) -> str:
    if evaluation.task == "classification":
        return evaluation.labels[int(value)]
    if evaluation.task == "detection":
        return ", ".join(text for text, _ in _list_boxes(evaluation, value)) or "none"
    if evaluation.task == "multi_label":
        return ", ".join(label for label, marked in zip(evaluation.labels, value, strict=True) if marked) or "none"
    if evaluation.task == "language_model" and evaluation.labels:
        return _shorten(
            "".join(evaluation.labels[index] for index in value.tolist() if 0 <= index < len(evaluation.labels))
        )
    return _preview(value)["text"]


def _list_boxes(evaluation: Evaluation, rows: NDArray[Any]) -> list[tuple[str, tuple[float, ...]]]:
    """Return text and corners of a picture's true boxes (M, 5), or of its detections (Q, 6) that are sure enough."""
    from kfp_mindspore.evaluation.detection import to_corners

    kept = rows[rows[:, 0] >= 0]
    scores = [f" {score:.2f}" for score in kept[:, 1]] if rows.shape[1] == 6 else [""] * len(kept)
    corners = to_corners(kept[:, -4:]).tolist()
    return [
        (evaluation.labels[int(row[0])] + score, tuple(box))
        for row, score, box in zip(kept, scores, corners, strict=True)
        if not score or row[1] >= _SURE
    ]


def _draw_boxes(evaluation: Evaluation, content: Any, row: int) -> dict[str, str]:
    """Return a picture with its true boxes in green and the detections in red."""
    images, predictions = _import_pillow(), evaluation.predictions
    from PIL import ImageDraw

    if not isinstance(content, bytes):
        return _preview(content)
    with images.open(io.BytesIO(content)) as image:
        side = _BOXES_SIDE / max(image.size)
        shown = image.convert("RGB").resize((max(1, round(image.width * side)), max(1, round(image.height * side))))
    draw = ImageDraw.Draw(shown)
    for colour, rows in ((_FOUND, predictions.values[row]), (_TRUE, predictions.target[row])):
        for text, corners in _list_boxes(evaluation, rows):
            places = [corner * shown.size[index % 2] for index, corner in enumerate(corners)]
            left, right = sorted(places[::2])
            top, bottom = sorted(places[1::2])
            # Dark edges, since a form may have the same colour.
            draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline="black", width=4)
            draw.rectangle((left, top, right, bottom), outline=colour, width=2)
            # The prediction's text is at the other end, where it does not cover the truth's.
            place = (left + 3, top + 2 if colour == _TRUE else bottom - 14)
            draw.text(place, text, fill=colour, stroke_width=1, stroke_fill="black")
    stream = io.BytesIO()
    shown.save(stream, "png")
    return {"text": "", "image": _to_uri(stream.getvalue(), "png")}


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
