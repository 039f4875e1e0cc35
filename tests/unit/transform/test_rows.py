"""Rows by column names: which inputs they become, and which are refused."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.rows import RowInput, RowLayout, parse_layout
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.base import TransformInputError
from kfp_mindspore.transform.rows import RowPacker

NUMBERS = RowInput("features_numbers", "float32", (2,), ("age", "income"), stacked=True)
FILLED = RowInput("features_numbers", "float32", (2,), ("age", "income"), stacked=True, fill=(40.0, 2.5))
CITY = RowInput("city", BYTES, (), ("city",))
LAYOUT = RowLayout((NUMBERS, CITY), target=("price",), others=("id",))
MEAN = RowLayout((FILLED, CITY), missing="mean", target=("price",))
STRICT = RowLayout((NUMBERS, CITY), extra="refuse", target=("price",))
EXACT = RowLayout((RowInput("count", "int32", (), ("n",)), RowInput("scan", "float32", (2,), ("scan",))))
ROW = {"age": 41, "income": 3.5, "city": "Oslo"}


def to_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize(
    ("layout", "row", "expected"),
    [
        (LAYOUT, ROW, {"features_numbers": [41, 3.5], "city": b"Oslo"}),
        (LAYOUT, dict(reversed(ROW.items())), {"features_numbers": [41, 3.5], "city": b"Oslo"}),
        (LAYOUT, {**ROW, "price": 1, "id": 2, "other": "x"}, {"features_numbers": [41, 3.5], "city": b"Oslo"}),
        (STRICT, {**ROW, "price": 1}, {"features_numbers": [41, 3.5], "city": b"Oslo"}),
        (LAYOUT, {**ROW, "age": True}, {"features_numbers": [1, 3.5], "city": b"Oslo"}),
        (LAYOUT, {**ROW, "city": {"b64": "T3Nsbw=="}}, {"features_numbers": [41, 3.5], "city": b"Oslo"}),
        (LAYOUT, {**ROW, "city": ""}, {"features_numbers": [41, 3.5], "city": b""}),
        (MEAN, {**ROW, "age": None}, {"features_numbers": [40, 3.5], "city": b"Oslo"}),
        (MEAN, {**ROW, "income": math.nan}, {"features_numbers": [41, 2.5], "city": b"Oslo"}),
        (MEAN, {"age": None, "income": None, "city": None}, {"features_numbers": [40, 2.5], "city": b""}),
        (EXACT, {"n": 3, "scan": [1, 2.5]}, {"count": 3, "scan": [1, 2.5]}),
        (EXACT, {"n": 3.0, "scan": [1, 2.5]}, {"count": 3, "scan": [1, 2.5]}),
    ],
)
def test_rows_and_columns_become_inputs(layout: RowLayout, row: dict[str, Any], expected: dict[str, Any]) -> None:
    packer = RowPacker(layout)
    rows = [row, row]
    for found in (packer.pack_rows(rows), packer.pack_columns(to_columns(rows))):
        assert list(found) == [one.name for one in layout.inputs]
        for one in layout.inputs:
            assert found[one.name].dtype == (object if one.dtype == BYTES else one.dtype)
            assert found[one.name].tolist() == [expected[one.name]] * 2


@pytest.mark.parametrize(
    ("layout", "row", "message"),
    [
        (LAYOUT, {"agee": 41, "income": 1, "city": "x"}, r"column 'age': missing, got 'agee', 'income', 'city'"),
        (LAYOUT, {**ROW, "age": "41"}, r"row 1: column 'age': must be a number, got the text '41'"),
        (LAYOUT, {**ROW, "age": [41]}, r"row 1: column 'age': must be a number, got a list \[41\]"),
        (LAYOUT, {**ROW, "city": 7}, r"row 1: column 'city': must be a text, got 7"),
        (LAYOUT, {**ROW, "city": {"b64": "%"}}, r"row 1: column 'city': b64 is not valid base64"),
        (LAYOUT, {**ROW, "income": None}, r"row 1: column 'income': the value is missing, .* missing=refuse fills no"),
        (LAYOUT, {**ROW, "city": None}, r"row 1: column 'city': the value is missing"),
        (LAYOUT, {**ROW, "income": 1e300}, r"row 1: column 'income': must be a finite number"),
        (LAYOUT, {**ROW, "income": 10**400}, r"column 'income': must be numbers of at most 64 bits"),
        (MEAN, {**ROW, "income": math.inf}, r"row 1: column 'income': must be a finite number"),
        (STRICT, {**ROW, "weight": 1}, r"column 'weight': unknown, expected 'age', 'income', 'city'"),
        (EXACT, {"n": 2.5, "scan": [1, 2]}, r"row 1: column 'n': must be an integer \(int32\), got 2.5"),
        (EXACT, {"n": 2**40, "scan": [1, 2]}, r"row 1: column 'n': must be an integer \(int32\), got 1099511627776"),
        (EXACT, {"n": None, "scan": [1, 2]}, r"row 1: column 'n': the value is missing"),
        (EXACT, {"n": 1, "scan": [1, "2"]}, r"column 'scan': must be lists of float32"),
        (EXACT, {"n": 1, "scan": [1]}, r"column 'scan': must be lists of float32 with equal lengths"),
        (EXACT, {"n": 1, "scan": 5}, r"row 1: column 'scan': must be a list, got 5"),
    ],
)
def test_wrong_row_is_refused_by_row_and_column(layout: RowLayout, row: dict[str, Any], message: str) -> None:
    good = {"n": 1, "scan": [1, 2]} if layout is EXACT else ROW
    with pytest.raises(TransformInputError, match=message):
        RowPacker(layout).pack_rows([good, row])
    if row.keys() >= good.keys():
        columns = {name: [good.get(name), value] for name, value in row.items()}
        with pytest.raises(TransformInputError, match=message):
            RowPacker(layout).pack_columns(columns)


def test_row_that_is_no_object_is_refused() -> None:
    with pytest.raises(TransformInputError, match=r"row 1: must be an object with the columns 'age', .* got list"):
        RowPacker(LAYOUT).pack_rows([ROW, [41, 3.5, "Oslo"]])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1, 2], np.int64), [1, 2]),
        (np.array([True, False]), [1, 0]),
        (np.array([1.5, np.nan]), [1.5, 40]),
        (np.array([1, None], object), [1, 40]),
    ],
)
def test_arrays_of_any_number_dtype_become_inputs(array: Any, expected: list[float]) -> None:
    columns = {"age": array, "income": array, "city": np.array(["a", "b"])}
    assert RowPacker(MEAN).pack_columns(columns)["features_numbers"][:, 0].tolist() == expected


@pytest.mark.parametrize("names", [[f"column {index}" for index in range(100_000)], ["ag" * 1_000_000]])
def test_message_for_many_or_long_names_is_short(names: list[str]) -> None:
    with pytest.raises(TransformInputError) as caught:
        RowPacker(LAYOUT).pack_rows([dict.fromkeys(names, 1)])
    assert len(caught.value.message) < 2000


numbers = st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(width=32, allow_nan=False))
table = st.lists(
    st.fixed_dictionaries(
        {"age": numbers, "income": numbers, "city": st.one_of(st.none(), st.text())},
        optional={"price": st.integers()},
    ),
    min_size=1,
)


@given(table)
def test_rows_equal_columns_and_unpacked_inputs(rows: list[dict[str, Any]]) -> None:
    packer = RowPacker(MEAN, finite=False)
    packed = packer.pack_rows(rows)
    columns = {name: [row[name] for row in rows] for name in MEAN.columns}
    for others in (packer.pack_columns(columns), packer.pack_columns(packer.unpack(packed))):
        for name, array in packed.items():
            np.testing.assert_array_equal(others[name], array)
    incomplete = [any(row[name] is None for name in MEAN.columns) for row in rows]
    assert packer.list_incomplete(columns).tolist() == incomplete


@pytest.mark.parametrize("layout", [LAYOUT, MEAN, STRICT, EXACT])
def test_layout_survives_json(layout: RowLayout) -> None:
    assert parse_layout(layout.to_dict()) == layout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": []}, "at least one"),
        ({"inputs": [{"name": "x"}]}, "must be an object of inputs"),
        ({"extra": "drop"}, "rows.extra: must be ignore or refuse, got 'drop'"),
        ({"inputs": [{"name": "x", "dtype": "float32", "shape": [3], "columns": ["a", "b"]}]}, r"shape must be \(2,\)"),
        (
            {"inputs": [{"name": "x", "dtype": "float32", "shape": [2], "columns": ["a", "b"], "fill": [1]}]},
            "fill must have 2 numbers, got 1",
        ),
    ],
)
def test_damaged_layout_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_layout({**LAYOUT.to_dict(), **change})


def test_features_are_listed_in_order() -> None:
    steps = [
        {"type": "Normalize", "column": "features_numbers"},
        {"type": "OneHot", "values": ["Bergen", "Oslo"], "column": "city"},
        {"type": "Concatenate", "columns": ["features_numbers", "city"], "name": "features"},
        {"type": "Rename", "name": "x", "column": "features"},
    ]
    assert LAYOUT.list_features(steps) == {"x": ["age", "income", "city=Bergen", "city=Oslo"]}


def test_layout_that_does_not_fit_inputs_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"rows\.inputs: must be image"):
        parse_layout(LAYOUT.to_dict(), [TensorSpec("image", "float32", (-1, 2))])


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("extra", ["ignore", "refuse"])
def test_column_names_are_compared_in_nfc(form: str, stored: str, extra: str) -> None:
    name = "größe"
    sent, trained = unicodedata.normalize(form, name), unicodedata.normalize(stored, name)
    packer = RowPacker(RowLayout((RowInput("x", "float32", (1,), (trained,), stacked=True),), extra=extra))
    assert packer.pack_rows([{sent: 1.5}])["x"].tolist() == [[1.5]]
    assert packer.transpose([{sent: 1.5}]) == {name: [1.5]}
    assert packer.pack_columns({sent: [1.5]})["x"].tolist() == [[1.5]]
    packer.check_columns([sent])
