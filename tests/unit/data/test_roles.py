"""Roles of fields: which field becomes which input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data.columns import build_features
from kfp_mindspore.data.roles import Roles, resolve_roles
from kfp_mindspore.data.sources.base import Source
from kfp_mindspore.errors import UserError, ValidationError

COLUMNS = {
    "age": np.array([1, 2, 3]),
    "size": np.array([0.5, 1.5, 2.5]),
    "city": np.array([b"a", b"b", b"a"], object),
    "image": np.zeros((3, 4, 4)),
    "day": np.array([10, 11, 12]),
    "label": np.array([0, 1, 0]),
}


def make_source(**options: Any) -> Source:
    return Source("CSV", "t.csv (CSV)", dict(COLUMNS), target=("label",), times=("day",), **options)


def resolve(source: Source | None = None, **options: Any) -> Roles:
    given = {"target": (), "weight": "", "ids": (), "order": "", "features": None, "inputs": None, **options}
    return resolve_roles(source or make_source(is_table=True), **given)


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        # Numbers and texts of a table are stacked; an array is an input; a time is none.
        ({}, {"features": ("age", "size", "city"), "image": "image"}),
        ({"features": ["size", "age"]}, {"features": ("size", "age")}),
        ({"features": ["day"]}, {"features": ("day",)}),
        ({"features": ["image"]}, {"image": "image"}),
        ({"weight": "size"}, {"features": ("age", "city"), "image": "image"}),
        ({"ids": ["age", "city"]}, {"features": ("size",), "image": "image"}),
        ({"target": ["age"]}, {"features": ("size", "city", "label"), "image": "image"}),
        ({"inputs": {"x": "age", "y": ["size", "city"]}}, {"x": "age", "y": ("size", "city")}),
    ],
)
def test_fields_without_other_role_are_features(options: dict[str, Any], inputs: dict[str, Any]) -> None:
    assert resolve(**options).inputs == inputs


def test_text_outside_table_is_input_of_its_own() -> None:
    assert resolve(make_source(), features=["age", "city"]).inputs == {"features": ("age",), "city": "city"}


def test_fields_are_listed_once() -> None:
    """The split's field may have another role."""
    roles = resolve(ids=["age"], order="age", features=["size"])
    assert roles.list_fields() == ["label", "age", "size"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "label"}, "label: has two roles"),
        ({"ids": ["age", "age"]}, "age: has two roles"),
        ({"features": ["label"]}, "features: label: is the target, weight or id"),
        ({"features": ["size"], "weight": "size"}, "features: size: is the target, weight or id"),
        ({"inputs": {"x": ["size", "label"]}}, "features: label: is the target, weight or id"),
        ({"inputs": {"x": "age"}, "features": ["size"]}, "features: cannot be combined with inputs"),
    ],
)
def test_two_roles_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        resolve(**options)


@pytest.mark.parametrize("options", [{"features": []}, {"inputs": {}}])
def test_dataset_without_feature_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"t\.csv .*no feature is left: the fields are age, size"):
        resolve(**options)


def test_array_with_name_of_stacked_fields_is_refused() -> None:
    source = make_source(is_table=True)
    source.columns["features"] = np.zeros((3, 2))
    with pytest.raises(UserError, match="'features' has the name of the stacked fields age, size, city") as caught:
        resolve(source)
    assert "Name the inputs" in caught.value.hint


def test_columns_of_inputs() -> None:
    """Numbers are one float32 matrix in the order of their fields; a text keeps its column."""
    source = make_source(is_table=True)
    features = build_features(source, resolve(source, inputs={"x": ["size", "city", "age"], "label_day": "day"}))
    assert features.inputs == {"x": ("x_numbers", "city"), "label_day": ("label_day",)}
    found = {column.name: (column.dtype, column.shape, column.fields) for column in features.columns}
    assert found["x_numbers"] == ("float32", (2,), ("size", "age"))
    assert features.arrays["x_numbers"].tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]
    assert found["label_day"] == ("int32", (), ("day",))
    assert features.conversions["label_day"] == "int64 to int32"


def test_array_in_stacked_input_is_refused() -> None:
    source = make_source(is_table=True)
    with pytest.raises(UserError, match=r"input 'x': 'image' must have shape \(N,\) to be stacked, has \(3, 4, 4\)"):
        build_features(source, resolve(source, inputs={"x": ["age", "image"]}))
