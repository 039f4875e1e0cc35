"""The columns by which a table's model accepts rows, and the inputs that they become; in a signature's metadata."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.dataset import Column, Dataset
from kfp_mindspore.formats.names import normalize_names
from kfp_mindspore.formats.tensors import BYTES, TensorSpec

EXTRA = ("ignore", "refuse")
_TABLES = ("CSV", "Parquet", "JSON lines")


@dataclass(frozen=True)
class RowInput:
    """An input and its columns.

    Args:
        name: Input name.
        dtype: NumPy name, or `bytes` for texts.
        shape: Shape without the row count; the first size is -1 for lists with unequal lengths.
        columns: Column names in order.
        stacked: Whether each column is one number in the input's last axis; else the only column is the input.
        fill: The number for a missing value, one for each number in a row; empty without a rule that fills.
        longest: Most values in a list; 0 without a limit.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    columns: tuple[str, ...]
    stacked: bool = False
    fill: tuple[float, ...] = ()
    longest: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", normalize_names(self.columns))

    @property
    def is_list(self) -> bool:
        """Whether a row is a list, whose length may differ from other rows'."""
        return self.shape[:1] == (-1,)


@dataclass(frozen=True)
class RowLayout:
    """Columns and inputs.

    Args:
        inputs: The inputs, with their columns in order.
        missing: The dataset's rule for missing values, such as `mean`.
        extra: Whether other columns are `ignore`d or `refuse`d.
        target: The dataset's target columns, which are ignored in requests.
        others: The dataset's other columns that are no feature, such as ids; ignored too.
    """

    inputs: tuple[RowInput, ...]
    missing: str | float = "refuse"
    extra: str = "ignore"
    target: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("target", "others"):
            object.__setattr__(self, name, normalize_names(getattr(self, name)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All feature columns, in input order."""
        return tuple(column for one in self.inputs for column in one.columns)

    @property
    def texts(self) -> frozenset[str]:
        """Columns that hold texts."""
        return frozenset(column for one in self.inputs if one.dtype == BYTES for column in one.columns)

    @property
    def lists(self) -> frozenset[str]:
        """Columns that hold lists with unequal lengths."""
        return frozenset(one.columns[0] for one in self.inputs if one.is_list)

    def describe_columns(self) -> list[dict[str, Any]]:
        """Return each column's name, dtype and place in its input."""
        return [
            {
                "column": column,
                "dtype": f"{one.dtype} list" if one.is_list else one.dtype,
                "input": f"{one.name}[{index}]" if one.stacked else one.name,
            }
            for one in self.inputs
            for index, column in enumerate(one.columns)
        ]

    def name_columns(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return specs with the columns of stacked inputs, for messages."""
        columns = {(one.name, one.shape): one.columns for one in self.inputs if one.stacked}
        return tuple(dataclasses.replace(spec, columns=columns.get((spec.name, spec.shape[1:]), ())) for spec in specs)

    def list_features(self, steps: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Return the features in each network input after declared steps, such as `age` or `city=Oslo`."""
        features = {one.name: list(one.columns) for one in self.inputs}
        for step in steps:
            column = step.get("column") or (next(iter(features)) if len(features) == 1 else "")
            if step["type"] == "OneHot" and column in features:
                features[column] = [f"{name}={value}" for name in features[column] for value in step["values"]]
            elif step["type"] == "Pad" and column in features:
                added = {step[kind]: [f"{kind} of {column}"] for kind in ("lengths", "mask") if step.get(kind)}
                features |= added
            elif step["type"] == "Rename" and column in features:
                features = {step["name"] if name == column else name: found for name, found in features.items()}
            elif step["type"] == "Concatenate" and set(step["columns"]) <= set(features):
                joined = [feature for name in step["columns"] for feature in features[name]]
                rest = {name: found for name, found in features.items() if name not in step["columns"]}
                features = {step["name"]: joined, **rest}
        return features

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as JSON types."""
        inputs = []
        for one in self.inputs:
            value: dict[str, Any] = {"name": one.name, "dtype": one.dtype, "shape": list(one.shape)}
            value |= {"columns": list(one.columns)} if one.stacked else {"column": one.columns[0]}
            value |= {"fill": list(one.fill)} if one.fill else {}
            inputs.append({**value, "longest": one.longest} if one.longest else value)
        others = {"target": list(self.target), "others": list(self.others)}
        return {"inputs": inputs, "missing": self.missing, "extra": self.extra, **others}


def parse_layout(value: Any, inputs: Sequence[TensorSpec] | None = None) -> RowLayout | None:
    """Read `RowLayout.to_dict`'s result.

    Args:
        value: The JSON object; empty for none.
        inputs: The model's request inputs, to compare with; None to compare nothing.

    Raises:
        ValidationError: A field is missing, has another type or does not fit the inputs.
    """
    if not value:
        return None
    try:
        layout = RowLayout(
            inputs=tuple(map(_parse_input, value["inputs"])),
            missing=value.get("missing", "refuse"),
            extra=str(value.get("extra", "ignore")),
            target=tuple(map(str, value.get("target", ()))),
            others=tuple(map(str, value.get("others", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValidationError([f"rows: must be an object of inputs and their columns ({error!r})"]) from None
    errors = []
    if layout.extra not in EXTRA:
        errors.append(f"rows.extra: must be {' or '.join(EXTRA)}, got {layout.extra!r}")
    if not layout.inputs or len(set(layout.columns)) < len(layout.columns):
        errors.append("rows.inputs: must be at least one, with different columns")
    for one in layout.inputs:
        if one.stacked and one.shape != (len(one.columns),):
            errors.append(f"rows.inputs.{one.name}: shape must be ({len(one.columns)},), got {one.shape}")
        if one.fill and len(one.fill) != math.prod(one.shape):
            errors.append(f"rows.inputs.{one.name}: fill must have {math.prod(one.shape)} numbers, got {len(one.fill)}")
    if inputs is not None and not fits(layout, inputs):
        errors.append(f"rows.inputs: must be {', '.join(spec.name for spec in inputs)}, with their dtypes and shapes")
    if errors:
        raise ValidationError(errors)
    return layout


def build_layout(
    dataset: Dataset,
    inputs: Sequence[TensorSpec],
    names: Mapping[str, str],
    *,
    steps: Sequence[Mapping[str, Any]] = (),
    extra: str = "ignore",
) -> RowLayout | None:
    """Return the layout of a table's feature columns as a model's inputs; None for other data, or other inputs.

    Lists of unequal lengths have one in any format: requests give them as they are.

    Args:
        dataset: The dataset that the model was trained with.
        inputs: The model's request inputs, first dimension -1.
        names: Input name by dataset column, where it differs.
        steps: The declared preprocessing steps before the model.
        extra: Whether other columns are `ignore`d or `refuse`d.
    """
    features = dataset.list_columns("feature")
    if dataset.report.get("format") not in _TABLES and not any(
        column.fields or column.shape[:1] == (-1,) for column in features
    ):
        return None
    fill = dataset.report.get("filled", {})
    limits = {
        step.get("column", ""): int(step["length"])
        for step in steps
        if step["type"] == "Pad" and not step.get("truncate")
    }
    layout = RowLayout(
        tuple(_describe_input(column, names.get(column.name, column.name), fill, limits) for column in features),
        missing=dataset.report.get("missing_rule", "refuse"),
        extra=extra,
        target=_list_fields(dataset, "target"),
        others=_list_fields(dataset, "weight") + _list_fields(dataset, "id"),
    )
    unique = len(set(layout.columns)) == len(layout.columns)
    return layout if unique and fits(layout, inputs) else None


def build_field_layout(dataset: Dataset, inputs: Sequence[TensorSpec], *, extra: str = "ignore") -> RowLayout | None:
    """Return the layout for a transform's request inputs, each a feature column or a field in a stacked one.

    Args:
        dataset: The dataset that the model was trained with.
        inputs: The transform's request inputs, first dimension -1; not all columns need to be among them.
        extra: Whether other columns are `ignore`d or `refuse`d.

    Returns:
        The layout; None for data that is no table, or when an input is no column.
    """
    if dataset.report.get("format") not in _TABLES:
        return None
    fill = dataset.report.get("filled", {})
    columns = {column.name: column for column in dataset.list_columns("feature")}
    places = {field: (column, index) for column in columns.values() for index, field in enumerate(column.fields)}
    found: list[RowInput] = []
    for spec in inputs:
        column = columns.get(spec.name)
        if column is not None and (column.dtype, column.shape) == (spec.dtype, spec.shape[1:]):
            found.append(_describe_input(column, spec.name, fill, {}))
        elif (
            spec.name in places
            and spec.shape[1:] == ()
            and (spec.dtype == BYTES) == (places[spec.name][0].dtype == BYTES)
        ):
            column, index = places[spec.name]
            values = tuple(fill.get(column.name, ()))[index : index + 1] if spec.dtype.startswith("float") else ()
            found.append(RowInput(spec.name, spec.dtype, (), (spec.name,), fill=values))
        else:
            return None
    layout = RowLayout(
        tuple(found),
        missing=dataset.report.get("missing_rule", "refuse"),
        extra=extra,
        target=_list_fields(dataset, "target"),
        others=_list_fields(dataset, "weight") + _list_fields(dataset, "id"),
    )
    return layout if len(set(layout.columns)) == len(layout.columns) else None


def fits(layout: RowLayout, inputs: Sequence[TensorSpec]) -> bool:
    """Return whether a layout's inputs are a model's request inputs."""
    expected = {spec.name: (spec.dtype, spec.shape[1:]) for spec in inputs}
    return {one.name: (one.dtype, one.shape) for one in layout.inputs} == expected


def is_stacked(column: Column) -> bool:
    """Return whether a dataset's column has a number for each of several fields."""
    return bool(column.fields) and column.dtype == "float32" and column.shape == (len(column.fields),)


def _describe_input(
    column: Column, name: str, fill: Mapping[str, Sequence[float]], limits: Mapping[str, int]
) -> RowInput:
    fields = column.fields or (column.name,)
    longest = limits.get(column.name, limits.get("", 0)) if column.shape[:1] == (-1,) else 0
    filled = tuple(fill.get(column.name, ()))
    return RowInput(name, column.dtype, column.shape, fields, is_stacked(column), filled, longest)


def _list_fields(dataset: Dataset, role: str) -> tuple[str, ...]:
    return tuple(name for column in dataset.list_columns(role) for name in column.fields or (column.name,))


def _parse_input(value: Mapping[str, Any]) -> RowInput:
    stacked = "columns" in value
    return RowInput(
        str(value["name"]),
        str(value["dtype"]),
        tuple(int(size) for size in value["shape"]),
        tuple(map(str, value["columns"])) if stacked else (str(value["column"]),),
        stacked,
        tuple(float(number) for number in value.get("fill", ())),
        int(value.get("longest", 0)),
    )
