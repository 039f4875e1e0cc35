"""A target's task, and its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.report import is_number, list_mixed
from kfp_mindspore.data.sources.base import TARGETS
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import TASKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Integers are classes when they are few and repeat.
_CLASSES, _SAMPLES_PER_CLASS = 20, 20
_NUMBERS = "Write them as numbers, with a decimal point and without quotes."
_ROWS = "Correct the rows; an empty cell is a missing value: --missing drop (missing='drop')."
_REGRESSION = "Numbers are predicted with task=regression, as in: kfp-mindspore init --template regression"
_CLASSIFICATION = "Texts are classes with task=classification, as in: kfp-mindspore init --template classification"


@dataclass(frozen=True)
class Target:
    """An encoded target.

    Args:
        task: One of `TASKS`.
        reason: Why the task was chosen; empty when it was given.
        array: The encoded values with shape (N, …); None for the task none.
        labels: Class or label names.
    """

    task: str
    reason: str
    array: NDArray[Any] | None
    labels: tuple[str, ...]


def encode_target(
    names: Sequence[str],
    arrays: Sequence[NDArray[Any]],
    labels: Sequence[str],
    task: str,
    source: str = "",
    fields: Sequence[str] = (),
) -> Target:
    """Encode a target for its task: class indexes, 0 or 1 for each label, or numbers.

    Args:
        names: Its fields.
        arrays: Their values, each with shape (N,), or one with shape (N, K).
        labels: Class names for integers from 0 on, or (); then the sorted values are the classes.
        task: A name in `TASKS`; empty to guess it.
        source: File and format, for messages.
        fields: All fields in the source, for messages.

    Raises:
        UserError: The values do not fit the task.
    """
    import numpy as np

    if task and task not in TASKS:
        raise UserError(f"task: must be one of {', '.join(TASKS)}, got {task!r}")
    if not arrays or task == "none":
        if task not in ("", "none"):
            found = f", no field is named {' or '.join(TARGETS)}: found {', '.join(fields[:20])}" * bool(fields)
            raise UserError(
                f"{source or 'task'}: {task} needs a target{found}", hint="Name its field: --target NAME, or target=…."
            )
        return Target("none", "" if task else "there is no target", None, ())
    where = f"{source}: " * bool(source) + f"target {', '.join(names)}"
    if len(arrays) > 1 and any(array.dtype == object for array in arrays):
        raise UserError(f"{where}: several fields must hold numbers")
    # Booleans and integers in several fields keep their type.
    array = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)
    reason = ""
    if not task and labels:
        task = "classification"
    elif not task:
        task, reason = _guess_task(array)
    if task == "classification":
        if array.ndim != 1:
            raise UserError(f"{where}: a classification has one class a sample, got shape {array.shape}")
        return Target(task, reason, *_encode_classes(where, array, labels))
    if array.dtype == object and task != "language_model":
        found, hint = _describe_texts(array)
        raise UserError(f"{where}: {task} needs numbers, got {found}", hint=hint)
    if task == "multi_label":
        if array.ndim != 2 or not np.isin(array, (0, 1)).all():
            raise UserError(f"{where}: multi_label needs 0 or 1 for each label, got shape {array.shape} {array.dtype}")
        many = tuple(names) if len(names) == array.shape[1] else tuple(map(str, range(array.shape[1])))
        return Target(task, reason, array.astype(np.float32), tuple(labels) or many)
    if task == "language_model":
        if array.dtype != object and (array.ndim != 2 or array.dtype.kind not in "iu"):
            raise UserError(f"{where}: language_model needs ids of shape (N, L), got {array.dtype} {array.shape}")
        return Target(task, reason, array if array.dtype == object else array.astype(np.int32), tuple(labels))
    return Target(task, reason, array.astype(np.float32), ())


def check_target(target: Target, array: NDArray[Any], where: str) -> None:
    """Refuse a target that no network can learn.

    Args:
        target: The encoded target.
        array: Its values in the source.
        where: File, format and field, for messages.

    Raises:
        UserError: There is one class, about one class for each sample, or a number that is not finite.
    """
    import numpy as np

    encoded = target.array
    if encoded is None:
        return
    if target.task == "regression" and not np.isfinite(encoded).all():
        index = int((~np.isfinite(encoded.reshape(len(encoded), -1)).all(axis=1)).argmax())
        raise UserError(
            f"{where}: must hold finite numbers, got {array[index]} in row {index + 1}",
            hint=_ROWS,
        )
    if target.task != "classification":
        return
    count = len(np.unique(encoded))
    if count == 1:
        raise UserError(
            f"{where}: a classification needs at least 2 classes, each of the {len(encoded)} samples has "
            f"{target.labels[encoded[0]]!r}",
            hint="Name another target, or add samples with other classes.",
        )
    # Small sets with a few samples a class may test the code.
    if count > _CLASSES and count > len(encoded) / 2:
        found, hint = _describe_texts(array) if array.dtype == object else ("integers", _REGRESSION)
        raise UserError(
            f"{where}: a classification needs several samples of each class, got {count} classes in {len(encoded)} "
            f"samples, {found}",
            hint=hint.replace(_CLASSIFICATION, "Name another target."),
        )


def _describe_texts(array: NDArray[Any]) -> tuple[str, str]:
    """Return what the texts of a target are, with the first row from 1, and the next step."""
    values = array.ravel().tolist()
    index = next((index for index, value in enumerate(values) if not is_number(value)), 0)
    if is_number(values[index]):
        return f"numbers as texts, such as {values[index].decode()!r:.60} in row {index + 1}", _NUMBERS
    if found := list_mixed({"": array}).get(""):
        return found, _ROWS
    return f"texts, such as {values[index].decode(errors='replace')!r:.60} in row {index + 1}", _CLASSIFICATION


def _guess_task(array: NDArray[Any]) -> tuple[str, str]:
    import numpy as np

    if array.ndim > 1:
        if np.isin(array, (0, 1)).all():
            return "multi_label", "the target has several values of 0 or 1"
        return "regression", "the target has several numbers"
    if array.dtype == object or array.dtype == bool:
        return "classification", "the target holds texts" if array.dtype == object else "the target holds booleans"
    if array.dtype.kind == "f":
        return "regression", "the target holds floating numbers"
    count = len(np.unique(array))
    if count <= _CLASSES or count <= len(array) // _SAMPLES_PER_CLASS:
        return "classification", f"the target has {count} different integers"
    return "regression", f"the target has {count} different integers"


def _encode_classes(where: str, array: NDArray[Any], labels: Sequence[str]) -> tuple[NDArray[Any], tuple[str, ...]]:
    import numpy as np

    if labels:
        if array.dtype.kind not in "iub" or not 0 <= int(array.min()) <= int(array.max()) < len(labels):
            raise UserError(f"{where}: must hold indexes of the {len(labels)} class names, 0 to {len(labels) - 1}")
        return array.astype(np.int32), tuple(labels)
    if array.dtype.kind == "f":
        if not (array == np.round(array)).all():
            index = int((array != np.round(array)).argmax())
            raise UserError(
                f"{where}: a classification needs integers or texts, got {array[index]:g} in row {index + 1}",
                hint=_REGRESSION,
            )
        array = array.astype(np.int64)
    values, indexes = np.unique(array, return_inverse=True)
    names = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values.tolist()]
    return indexes.astype(np.int32), tuple(names)
