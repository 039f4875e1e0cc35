"""Rows of JSON, JSON lines, CSV, NPZ and NPY files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data.rows import read_rows
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.tensors import BYTES, TensorSpec

ONE = (TensorSpec("x", "float32", (-1, 2, 2)),)
TWO = (TensorSpec("age", "float32", (-1,)), TensorSpec("job", BYTES, (-1,)))
IDS = (TensorSpec("ids", "int32", (-1, -1)),)

ROW = [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("name", "content", "specs", "expected"),
    [
        ("a.json", [ROW], ONE, {"x": [ROW]}),
        ("a.json", {"instances": [ROW, ROW]}, ONE, {"x": [ROW, ROW]}),
        ("a.json", {"inputs": {"x": [ROW]}}, ONE, {"x": [ROW]}),
        ("a.json", {"x": [ROW]}, ONE, {"x": [ROW]}),
        ("a.json", {"inputs": [ROW]}, (TensorSpec("inputs", "float32", (-1, 2, 2)),), {"inputs": [ROW]}),
        ("a.jsonl", "[[1, 2], [3, 4]]\n\n[[1, 2], [3, 4]]\n", ONE, {"x": [ROW, ROW]}),
        ("a.csv", "a,b,c,d\n1,2,3,4\n", ONE, {"x": [ROW]}),
        ("a.csv", "0,1,2,3\n1,2,3,4\n", ONE, {"x": [ROW]}),
        ("a.csv", '\ufeffid,age,job\n7,42,"baker, cook"\n', TWO, {"age": [42], "job": [b"baker, cook"]}),
        (
            "a.jsonl",
            '{"age": 1, "job": "a"}\n{"age": 2, "job": {"b64": "YmM="}}',
            TWO,
            {"age": [1, 2], "job": [b"a", b"bc"]},
        ),
        ("a.json", {"instances": [{"age": 1.5, "job": "\u00e9"}]}, TWO, {"age": [1.5], "job": ["\u00e9".encode()]}),
        ("a.json", [[1, 2, 3]], IDS, {"ids": [[1, 2, 3]]}),
        ("a.npz", {"x": np.array([ROW])}, ONE, {"x": [ROW]}),
        ("a.npz", {"other": np.array([ROW])}, ONE, {"x": [ROW]}),
        ("a.npy", np.array([[1.0, 2.0, 3.0, 4.0]]), ONE, {"x": [ROW]}),
    ],
)
def test_rows_have_dtypes_of_inputs(
    tmp_path: Path, name: str, content: Any, specs: tuple[TensorSpec, ...], expected: dict[str, Any]
) -> None:
    write(tmp_path / name, content)
    arrays = read_rows(tmp_path / name, specs).inputs
    assert {key: array.tolist() for key, array in arrays.items()} == expected
    assert [array.dtype.name.replace("object", BYTES) for array in arrays.values()] == [spec.dtype for spec in specs]


@pytest.mark.parametrize(
    ("name", "content", "specs", "message"),
    [
        ("a.txt", "", ONE, "must end in .json, .jsonl, .csv, .npz, .npy, got '.txt'"),
        ("a.json", "[1,", ONE, "cannot be read as .json: "),
        ("a.json", "3", ONE, "expected a list or an object, got int"),
        ("a.json", [], ONE, "has no rows"),
        ("a.json", [[1], ["a"]], IDS, "row 2: column 'ids': must be a list of integers, holds the text 'a'"),
        ("a.json", [[1.5]], IDS, "row 1: column 'ids': must be a list of integers, holds 1.5"),
        ("a.json", [["a"]], ONE, "x: cannot be converted to float32"),
        ("a.json", {"y": [ROW]}, ONE, "the model has the inputs x, got y"),
        ("a.json", [[1, 2]], TWO, "rows must be objects with age, job"),
        ("a.jsonl", '{"age": 1, "job": "a"}\n{"age": 2}', TWO, "row 1: job is missing, got age"),
        ("a.json", {"age": [1], "job": [{"b64": "!"}]}, TWO, "job: not valid base 64"),
        ("a.json", {"age": [1], "job": [3]}, TWO, "job: must be a text or"),
        ("a.csv", "a,b\n1,2\n", ONE, "expected the columns x, or 4 columns, got 2: a, b"),
        ("a.csv", "a,b,c,d\n1,2,3\n", ONE, "line 2: has 3 values, the header 4"),
        (
            "a.csv",
            "1,2,3,4\n",
            ONE,
            "its only line is the header, 1, 2, 3, 4: expected a header and a line for each row",
        ),
        (
            "a.csv",
            "1,2,3,4.5\n5,6,7,8\n",
            ONE,
            "line 1 has numbers only, 1, 2, 3, 4.5: expected a header above the rows",
        ),
        ("a.csv", "age\n1\n", TWO, "expected the columns age, job, got 1: age"),
        ("a.npz", "no archive", ONE, "cannot be read as .npz"),
        ("a.npz", {"x": np.array([object()])}, ONE, "cannot be read as .npz"),
    ],
)
def test_mistake_names_file_and_what_was_expected(
    tmp_path: Path, name: str, content: Any, specs: tuple[TensorSpec, ...], message: str
) -> None:
    write(tmp_path / name, content)
    with pytest.raises(UserError) as caught:
        read_rows(tmp_path / name, specs)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert message in str(caught.value)


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        read_rows(tmp_path / "a.csv", ONE)


def write(path: Path, content: Any) -> None:
    if isinstance(content, dict) and path.suffix == ".npz":
        np.savez(path, **content)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
