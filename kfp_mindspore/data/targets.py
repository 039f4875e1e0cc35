"""A target's task, and its encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.report import is_number, list_mixed
from kfp_mindspore.data.sources.base import TARGETS
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import TASKS
from kfp_mindspore.formats.names import normalize_name

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
        merged: Class names that became another's, by that name.
    """

    task: str
    reason: str
    array: NDArray[Any] | None
    labels: tuple[str, ...]
    merged: Mapping[str, Sequence[str]] = field(default_factory=dict)


def encode_target(
    names: Sequence[str],
    arrays: Sequence[NDArray[Any]],
    labels: Sequence[str],
    task: str,
    source: str = "",
    fields: Sequence[str] = (),
    *,
    merge: str = "",
) -> Target:
    """Encode a target for its task: class indexes, 0 or 1 for each label, or numbers.

    Args:
        names: Its fields.
        arrays: Their values, each with shape (N,), or one with shape (N, K).
        labels: Class names for integers from 0 on, or (); then the sorted values are the classes.
        task: A name in `TASKS`; empty to guess it.
        source: File and format, for messages.
        fields: All fields in the source, for messages.
        merge: Which class names are joined, see `DatasetOptions.merge_labels`.

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
    if task == "detection":
        if array.ndim != 3 or array.shape[2] != 5 or not labels:
            raise UserError(
                f"{where}: a detection needs boxes, got shape {array.shape}",
                hint="Give a folder with COCO, YOLO or VOC annotations.",
            )
        return Target(task, reason, array.astype(np.float32), tuple(labels))
    if task == "classification":
        if array.ndim != 1:
            raise UserError(f"{where}: a classification has one class a sample, got shape {array.shape}")
        array, merged = merge_labels(array, merge) if merge and array.dtype == object else (array, {})
        return Target(task, reason, *_encode_classes(where, array, labels), merged)
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
    count = len(np.unique(array))
    if array.dtype.kind == "f":
        reason = "the target holds floating numbers"
        if count <= _CLASSES and count <= len(array) // 2 and (array == np.round(array)).all():
            reason += f", {count} different whole ones: if they are classes, give --task classification"
        return "regression", reason
    if count <= _CLASSES or count <= len(array) // _SAMPLES_PER_CLASS:
        return "classification", f"the target has {count} different integers"
    return "regression", f"the target has {count} different integers"


def merge_labels(array: NDArray[Any], rule: str) -> tuple[NDArray[Any], dict[str, list[str]]]:
    """Return class names without blanks around them in NFC, and by the rule `case` with one spelling each.

    Args:
        array: The names as `bytes` objects.
        rule: `blanks` or `case`.

    Returns:
        The names, and those that became another's by that name.
    """
    import numpy as np

    counts = Counter(array.tolist())
    groups: dict[str, list[bytes]] = {}
    for value, _ in counts.most_common():
        groups.setdefault(_get_key(value, rule), []).append(value)
    names = {
        value: normalize_name(values[0].decode(errors="replace").strip())
        for values in groups.values()
        for value in values
    }
    merged = np.empty(len(array), object)
    merged[:] = [names[value].encode() for value in array.tolist()]
    others = {
        names[values[0]]: sorted({found.decode(errors="replace") for found in values} - {names[values[0]]})
        for values in groups.values()
    }
    return merged, {name: values for name, values in others.items() if values}


def list_alike(labels: Sequence[str]) -> list[list[str]]:
    """Return the groups of class names that differ in blanks, case or Unicode form only."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(_get_key(label.encode(), "case"), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def _get_key(value: bytes, rule: str) -> str:
    text = normalize_name(value.decode(errors="replace").strip())
    return text.casefold() if rule == "case" else text


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
