"""A load's statistics and findings, and their text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.formats.dataset import SPLITS, Column, Dataset
from kfp_mindspore.formats.tensors import is_ragged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK_ROWS = 1 << 16
# A column with so many different numbers for each text is one of numbers with mistakes, rather than of codes.
_NUMBERS_PER_TEXT = 10
# float32 represents each integer up to here.
_EXACT = 1 << 24
# A model sees too little of a text with more unknown tokens.
_UNKNOWN_TOKENS = 0.05
_CUT_TEXTS = 0.05


def compute_statistics(columns: Sequence[Column], arrays: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Return minimum, maximum, mean and standard deviation (ddof 0) for numeric columns.

    Args:
        columns: The columns; byte columns are skipped.
        arrays: Their values in the training split.

    Returns:
        By column; for each field in a column with shape (F,), over all values in another column.
    """
    return {
        column.name: _describe(arrays[column.name], column.shape)
        for column in columns
        if arrays[column.name].dtype != object and arrays[column.name].size
    }


def describe_lists(
    columns: Sequence[Column], arrays: Mapping[str, NDArray[Any]], steps: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Return least, median and greatest length of lists with unequal lengths, and the share of lists that Pad cuts.

    Args:
        columns: The columns.
        arrays: Their values in the training split.
        steps: The declared preprocessing steps.
    """
    import numpy as np

    found = {}
    for column in columns:
        if column.shape[:1] != (-1,):
            continue
        lengths = np.array([len(row) for row in arrays[column.name]])
        limits = [
            step["length"] for step in steps if step["type"] == "Pad" and step.get("column", "") in ("", column.name)
        ]
        cut = round(float((lengths > limits[0]).mean()), 4) if limits else 0.0
        numbers = {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())}
        found[column.name] = {**numbers, "cut": cut}
    return found


def describe_boxes(classes: NDArray[Any]) -> dict[str, int]:
    """Return how many boxes there are, the most in a picture, and the pictures without one.

    Args:
        classes: The boxes' classes (N, M), below 0 for no box.
    """
    counts = (classes >= 0).sum(axis=1)
    return {"boxes": int(counts.sum()), "most": int(counts.max(initial=0)), "empty": int((counts == 0).sum())}


def list_constants(columns: Sequence[Column], statistics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the columns and fields with one value in the training split."""
    found = []
    for column in columns:
        if column.role != "feature" or column.name not in statistics:
            continue
        least, greatest = (statistics[column.name][key] for key in ("min", "max"))
        if not isinstance(least, list):
            found += [column.name] if least == greatest else []
            continue
        names = column.fields or [f"{column.name}[{index}]" for index in range(len(least))]
        found += [name for name, low, high in zip(names, least, greatest, strict=True) if low == high]
    return found


def list_rounded(
    columns: Sequence[Column], statistics: Mapping[str, Mapping[str, Any]], integers: Collection[str]
) -> list[str]:
    """Return the integer fields that float32 columns cannot represent exactly: beyond 2²⁴ in the training split."""
    found = []
    for column in columns:
        values = statistics.get(column.name)
        if column.dtype != "float32" or len(column.shape) != 1 or len(column.fields) != column.shape[0] or not values:
            continue
        limits = zip(column.fields, values["min"], values["max"], strict=True)
        found += [name for name, low, high in limits if name in integers and max(-low, high) >= _EXACT]
    return found


def count_duplicates(columns: Sequence[Column], splits: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, int]:
    """Return how many samples in each other split have a training sample's features."""
    import numpy as np

    features = [column.name for column in columns if column.role == "feature"]
    hashes = {split: _hash_rows([arrays[name] for name in features]) for split, arrays in splits.items()}
    train = hashes.pop("train")
    counts = {}
    for split, found in hashes.items():
        # Most training samples are excluded by the first bits, which is faster than sorting all hashes.
        bits = min(26, max(10, len(found).bit_length() + 3))
        marked = np.zeros(1 << bits, bool)
        marked[found >> np.uint64(64 - bits)] = True
        counts[split] = int(np.isin(found, train[marked[train >> np.uint64(64 - bits)]]).sum())
    return counts


def list_missing_classes(labels: Sequence[str], targets: Mapping[str, NDArray[Any]]) -> dict[str, list[str]]:
    """Return the classes without a sample by split, for splits that lack any."""
    import numpy as np

    found = {
        split: [
            label for label, count in zip(labels, np.bincount(array, minlength=len(labels)), strict=True) if not count
        ]
        for split, array in targets.items()
    }
    return {split: missing for split, missing in found.items() if missing}


def render_report(dataset: Dataset) -> str:
    """Return a dataset's description and findings as text lines."""
    report = dataset.report
    guessed = f" (guessed: {report['task_reason']})" if report.get("task_reason") else ""
    lines = [f"{dataset.name}: {dataset.task}{guessed}"]
    if dataset.labels:
        lines.append(render_labels(dataset.labels))
    limited = f", of {report['samples']:,} (limit {report['limit']:,})" if report.get("limit") else ""
    lines.append("samples: " + ", ".join(f"{count:,} {split}" for split, count in dataset.splits.items()) + limited)
    if moments := report.get("moments"):
        found = {split: moments["splits"][split] for split in SPLITS if split in moments["splits"]}
        spans = (f"{split} {first} to {last}" for split, (first, last) in found.items())
        lines.append(f"{moments['field']}: {', '.join(spans)}")
    for column in dataset.columns:
        fields = f" = {', '.join(column.fields[:8])}{', …' if len(column.fields) > 8 else ''}" if column.fields else ""
        lines.append(f"{column.role} {column.name}: {column.dtype} {list(column.shape)}{fields}")
    lines.append(f"preprocessing: {render_steps(dataset.preprocessing.get('pre', ()))}")
    if report.get("missing"):
        rule = f", rule {report['missing_rule']}"
        lines.append(
            "missing values: " + ", ".join(f"{name} {count}" for name, count in report["missing"].items()) + rule
        )
    if report.get("dropped"):
        lines.append(f"dropped: {report['dropped']} samples with missing values")
    lines += [f"left out: {name}, a time (name it to use it)" for name in report.get("left_out", [])]
    if report.get("indexes"):
        names = ", ".join(name.strip() or "a column without a name" for name in report["indexes"])
        lines.append(
            f"left out: {names}, row numbers as pandas writes them (to use them, name the column in the file's header, "
            "or in --features)"
        )
    lines += [
        f"warning: {name} has leading zeros and is read as numbers, such as {text}: --texts {name} keeps them"
        for name, text in report.get("leading_zeros", {}).items()
    ]
    if report.get("infinite"):
        counts = ", ".join(f"{name} {count}" for name, count in report["infinite"].items())
        lines.append(f"infinite numbers, counted as missing: {counts}")
    lines += [
        f"warning: the classes {' and '.join(map(repr, names))} look alike: --merge-labels blanks, or case, joins them"
        for names in report.get("alike_labels", [])
    ]
    lines += [
        f"joined with the class {name!r}: {', '.join(map(repr, others))}"
        for name, others in report.get("merged_labels", {}).items()
    ]
    lines += [f"converted: {name} from {change}" for name, change in report.get("conversions", {}).items()]
    lines += [
        f"warning: no sample of {', '.join(missing)} in {split}"
        for split, missing in report.get("missing_classes", {}).items()
    ]
    lines += [
        f"warning: {name} is read as texts: its values are {found}" for name, found in report.get("mixed", {}).items()
    ]
    lines += [
        ("warning: " if max(shares.values()) > _UNKNOWN_TOKENS else "")
        + f"unknown tokens in {name}: "
        + ", ".join(f"{share:.1%} of {split}" for split, share in shares.items())
        for name, shares in report.get("unknown_tokens", {}).items()
    ]
    lines += [
        ("warning: " if found["cut"] > _CUT_TEXTS else "")
        + f"texts in {name}: {found['cut']:.1%} have more than {found['length']} tokens and are cut; "
        + f"Tokenize's length {found['length_95']} would keep 95% whole"
        for name, found in report.get("texts", {}).items()
    ]
    lines += [
        f"lists in {name}: {found['min']:g} to {found['max']:g} values, median {found['median']:g}"
        + (f", {found['cut']:.1%} are cut" if found["cut"] else "")
        for name, found in report.get("lists", {}).items()
    ]
    lines += [
        f"boxes in {split}: {found['boxes']:,}, at most {found['most']} a picture, {found['empty']:,} pictures without"
        for split, found in report.get("boxes", {}).items()
    ]
    if report.get("constant"):
        lines.append(f"warning: constant in train: {', '.join(report['constant'])}")
    if report.get("rounded"):
        names = ", ".join(report["rounded"])
        lines.append(f"warning: integers above 2^24 are rounded to float32 in {names}: make it an input of its own")
    lines += [
        f"warning: samples of {split} with the features of a training sample: {count}"
        for split, count in report.get("duplicates", {}).items()
        if count
    ]
    return "\n".join(lines)


def list_mixed(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return the text columns that hold many numbers, each with what they hold and a row, from 1.

    They are numbers but for a few texts, or all of them are numbers as texts.
    """
    mixed = {}
    for name, array in arrays.items():
        if array.dtype != object or array.ndim != 1 or is_ragged(array):
            continue
        values = set(array.tolist()) - {b""}
        texts = {value for value in values if not is_number(value)}
        if len(values) <= _NUMBERS_PER_TEXT * max(1, len(texts)):
            continue
        index = next(index for index, value in enumerate(array) if value in (texts or values))
        found = f"{array[index].decode(errors='replace')!r:.60} in row {index + 1}"
        mixed[name] = f"numbers but for {found}" if texts else f"numbers as texts, such as {found}"
    return mixed


def is_number(text: bytes) -> bool:
    """Return whether a text is a number, with a decimal point or comma."""
    try:
        float(text.replace(b",", b"."))
    except ValueError:
        return False
    return True


def render_labels(labels: Sequence[str]) -> str:
    """Return the label count and the first ten labels, with quotes around labels without visible characters."""
    shown = [label if label.strip() and label.isprintable() else repr(label) for label in labels[:10]]
    return f"labels: {len(labels)} ({', '.join(shown)}{', …' if len(labels) > 10 else ''})"


def render_steps(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return declared steps' types and columns in order."""
    return ", ".join(map(_render_step, steps)) or "none"


def render_statistics(dataset: Dataset) -> list[str]:
    """Return a line for each field with its minimum, maximum, mean and deviation in the training split."""
    import numpy as np

    lines = []
    for column in dataset.columns:
        values = dataset.statistics.get(column.name)
        if values is None or column.role not in ("feature", "target", "weight"):
            continue
        names = [column.name]
        if isinstance(values["mean"], list):
            names = list(column.fields) or [f"{column.name}[{index}]" for index in range(column.shape[0])]
        for index, name in enumerate(names):
            figures = (f"{key} {np.atleast_1d(values[key])[index]:.6g}" for key in ("min", "max", "mean", "std"))
            lines.append(f"  {name}: {', '.join(figures)}")
    return ["statistics of train:", *lines] if lines else []


def _render_step(step: Mapping[str, Any]) -> str:
    details = [str(step["column"])] if "column" in step else []
    if "values" in step:
        details.append(f"{len(step['values'])} values")
    return str(step["type"]) + (f"({', '.join(details)})" if details else "")


def _describe(array: NDArray[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Compute in blocks: a float64 copy of all samples would double the memory."""
    import numpy as np

    rows = array if len(shape) == 1 else array.reshape(len(array), -1)
    axis = 0 if len(shape) == 1 else None
    least, greatest = rows.min(axis=axis), rows.max(axis=axis)
    # Shifted by a typical value, so that the squares do not cancel.
    shift = rows[:_BLOCK_ROWS].mean(axis=axis, dtype=np.float64)
    total, squares = np.zeros_like(shift), np.zeros_like(shift)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS].astype(np.float64) - shift
        total += block.sum(axis=axis)
        squares += (block**2).sum(axis=axis)
    count = len(rows) if axis == 0 else rows.size
    mean, std = shift + total / count, np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))
    return {key: value.tolist() for key, value in (("min", least), ("max", greatest), ("mean", mean), ("std", std))}


def _hash_rows(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Return a 64-bit hash per sample: its 32-bit words summed with random odd factors."""
    import numpy as np

    generator = np.random.default_rng(0)
    hashes = np.zeros(len(arrays[0]), np.uint64)
    for array in arrays:
        if array.dtype == object:
            values = [row.tobytes() for row in array] if is_ragged(array) else array.ravel().tolist()
            words = np.array([hash(value) & (2**64 - 1) for value in values], np.uint64)
            words = words.reshape(len(array), -1)
        else:
            rows = np.ascontiguousarray(array).reshape(len(array), -1)
            words = rows.view(f"u{min(rows.itemsize, 4)}")
        factors = generator.integers(0, 2**63, words.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
        for start in range(0, len(words), _BLOCK_ROWS):
            block = words[start : start + _BLOCK_ROWS].astype(np.uint64)
            hashes[start : start + _BLOCK_ROWS] += (block * factors).sum(axis=1, dtype=np.uint64)
    return hashes
