"""What is measured of columns: numbers and categories themselves, of texts, images and lists their properties."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.errors import require_extra
from kfp_mindspore.evaluation.drift import MAX_CATEGORIES, Values
from kfp_mindspore.evaluation.predictions import to_distribution
from kfp_mindspore.formats.tensors import is_ragged
from kfp_mindspore.transform.base import fill_objects

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.transform.categories import Tokenize

    Rows = Sequence[Any] | NDArray[Any]

VALUE, UNKNOWN = "value", "unknown words"
# Wider inputs are measured as a whole.
MAX_WIDTH = 64
# Numbers with at most so many different values are categories.
_FEW = 10
_IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG")


def resolve_kind(array: NDArray[Any], tokenizer: Tokenize | None = None) -> str:
    """Return how a column is measured: `number`, `category`, `text`, `image` or `list`.

    Args:
        array: The training's values, shape (N, …); texts and files as `bytes` objects.
        tokenizer: The step that splits the column's texts, or None.
    """
    if is_ragged(array) or (array.ndim == 2 and array.dtype != object):
        return "list"
    if array.dtype != object:
        if array.ndim > 2:
            return "image"
        return "category" if len(np.unique(array)) <= _FEW else "number"
    if any(bytes(value).startswith(_IMAGE_MAGIC) for value in array.flat[:1]):
        return "image"
    different = len(set(array.flat))
    few = different <= min(MAX_CATEGORIES, max(_FEW, array.size // 4))
    return "category" if tokenizer is None and few else "text"


def split_columns(inputs: Mapping[str, Any], stacked: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return columns from inputs: of a stacked input, one for each of its numbers.

    Args:
        inputs: Arrays, or lists with a value a row.
        stacked: The stacked inputs' column names.
    """
    columns: dict[str, Any] = {}
    for name, values in inputs.items():
        if name not in stacked:
            columns[name] = values
            continue
        for index, column in enumerate(stacked[name]):
            is_array = isinstance(values, np.ndarray) and values.ndim == 2
            columns[column] = values[:, index] if is_array else [_get_item(value, index) for value in values]
    return columns


def measure_column(kind: str, values: Rows, tokenizer: Tokenize | None = None) -> dict[str, Values]:
    """Return a column's values by measure.

    Args:
        kind: See `resolve_kind`.
        values: A value a row, as an array or as JSON has it; None where missing.
        tokenizer: The step that splits texts; None to count no unknown words.
    """
    if kind == "category":
        return {VALUE: [_to_category(value) for value in values]}
    if kind == "number":
        return {VALUE: _measure(values, _to_number)}
    if kind == "text":
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        found: dict[str, Values] = {"length": _measure(texts, lambda text: len(text.decode(errors="replace")))}
        if tokenizer is not None:
            found[UNKNOWN] = _measure(texts, lambda text: _count_unknown(tokenizer, text))
        return found
    if kind == "image":
        pairs = [_measure_image(value) for value in values]
        return {name: np.array([pair[index] for pair in pairs]) for index, name in enumerate(("brightness", "size"))}
    return {"length": _measure(values, len), "mean": _measure(values, _average)}


def measure_predictions(outputs: Mapping[str, Any], task: str, labels: Sequence[str]) -> dict[str, Values]:
    """Return a prediction's class and its probability, or its numbers and texts by output.

    Args:
        outputs: Arrays, or lists with a value a row, by name.
        task: The model's task.
        labels: Its class names.
    """
    found: dict[str, Values] = {}
    for name, values in outputs.items():
        array = values if isinstance(values, np.ndarray) else to_array(values)
        if array.dtype == object:
            if array.ndim == 1 and all(isinstance(value, str | bytes | None) for value in array):
                found[name] = [_to_category(value) for value in array]
            continue
        array = array.reshape(len(array)) if array.shape[1:] == (1,) else array
        if task == "classification" and array.ndim == 2:
            classes = array.argmax(axis=1).tolist()
            found["prediction"] = [labels[one] if len(labels) == array.shape[1] else str(one) for one in classes]
            found["confidence"] = to_distribution(array.astype(np.float64)).max(axis=1)
        elif array.ndim == 1:
            found[name] = array.astype(np.float64)
        elif array.ndim == 2 and array.shape[1] <= MAX_WIDTH:
            found |= {f"{name}[{index}]": array[:, index].astype(np.float64) for index in range(array.shape[1])}
    return found


def to_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return rows with equal shapes as a number array; other rows, such as texts, as objects."""
    # NumPy parses texts as numbers.
    if not any(isinstance(value, str | bytes) for value in values):
        with contextlib.suppress(TypeError, ValueError):
            return np.asarray(values, np.float64)
    return fill_objects(list(values))


def _measure(values: Rows, function: Callable[[Any], float]) -> NDArray[np.float64]:
    """Return a number a row; NaN where a value is missing or of another type."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype != object:
        return values.astype(np.float64)
    numbers = np.full(len(values), np.nan)
    for index, value in enumerate(values):
        try:
            numbers[index] = function(value)
        except (TypeError, ValueError, AttributeError):
            continue  # another type than the training's: counted as missing
    return numbers


def _to_number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("a text, which float() would parse")
    return float(value)


def _average(row: Any) -> float:
    return float(np.mean(row)) if len(row) else 0.0


def _to_category(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace") or None
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool | int | float | np.number | np.bool_):
        number = float(value)
        return None if np.isnan(number) else f"{number:g}"
    return None


def _get_item(value: Any, index: int) -> Any:
    try:
        return value[index]
    except (TypeError, IndexError, KeyError):
        return None


def _count_unknown(tokenizer: Tokenize, text: bytes) -> float:
    unknown, total = tokenizer.count_unknown(fill_objects([text]))
    return unknown / total if total else np.nan


def _measure_image(value: Any) -> tuple[float, float]:
    """Return an image's mean brightness and size in values; of a file 0 to 1, and in pixels."""
    if not isinstance(value, bytes):
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            return np.nan, np.nan
        return (float(array.mean()), float(array.size)) if array.ndim else (np.nan, np.nan)
    with require_extra("pillow", "train"):
        from PIL import Image, UnidentifiedImageError
    try:
        with Image.open(io.BytesIO(value)) as image:
            size = image.width * image.height
            # A JPEG is decoded at a part of its size.
            image.draft("L", (256, 256))
            return float(np.asarray(image.convert("L")).mean()) / 255, float(size)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return np.nan, np.nan
