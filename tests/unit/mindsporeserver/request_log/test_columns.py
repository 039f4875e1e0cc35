"""Bodies without the columns that are left out, and with hashed values."""

from __future__ import annotations

import hashlib
import hmac
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.rows import RowInput, RowLayout
from mindsporeserver.models.served_model import TensorModel
from mindsporeserver.protocols.rows import RowReader
from mindsporeserver.request_log.columns import ColumnFilter

KEY = "pepper"


def digest(text: str) -> str:
    return hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


class Model(TensorModel):
    """A model with names only."""

    def __init__(self, inputs: tuple[str, ...], outputs: tuple[str, ...], columns: tuple[str, ...] = ()) -> None:
        self.name = "m"
        self.readers = dict.fromkeys(inputs)  # type: ignore[arg-type]
        self.output_names = outputs
        layout = RowLayout(tuple(RowInput(column, "float32", (1,), (column,)) for column in columns))
        self.rows = RowReader(layout, finite=True) if columns else None

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def expire(self) -> None: ...
    def describe(self) -> dict[str, Any]:
        return {}

    def admit(self) -> Any: ...
    async def infer(self, inputs: Any, *, deadline: float | None = None) -> Any: ...


ONE = Model(("x",), ("y",))
TWO = Model(("x", "café"), ("y", "z"))
TABLE = Model(("numbers", "city"), ("price",), ("age", "city"))


def tensor(name: str, shape: list[int], data: Any, datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def hashed(name: str, *values: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(values)], "datatype": "BYTES", "data": [digest(value) for value in values]}


@pytest.mark.parametrize(
    ("model", "omit", "hash", "body", "expected"),
    [
        # V1: rows of the only input have no name.
        (ONE, ["x"], [], {"instances": [[1, 2]]}, {"instances": []}),
        (ONE, [], ["x"], {"inputs": [[1, 2], [3]]}, {"instances": [digest("[1, 2]"), digest("3")]}),
        (ONE, [], ["x"], {"instances": [{"b64": "AA=="}]}, {"instances": [digest('{"b64": "AA=="}')]}),
        (ONE, ["y"], [], {"instances": [[1]]}, {"instances": [[1]]}),
        (ONE, ["y"], [], {"predictions": [[1]]}, {"predictions": []}),
        (TWO, ["z"], ["y"], {"predictions": [{"y": 1.0, "z": 2}]}, {"predictions": [{"y": digest("1")}]}),
        (TWO, ["z"], [], {"predictions": {"y": [1], "z": 2}}, {"predictions": {"y": [1]}}),
        # Names are compared in NFC.
        (TWO, ["café"], [], {"instances": [{"x": 1, "cafe\u0301": 2}]}, {"instances": [{"x": 1}]}),
        # Further fields of a client, and packed columns, are left out.
        (
            TABLE,
            ["age"],
            [],
            {"instances": [{"age": 1, "city": "Oslo", "name": "Ada"}]},
            {"instances": [{"city": "Oslo"}]},
        ),
        (
            TABLE,
            [],
            ["city"],
            {"instances": [{"city": None}, {"city": "Oslo"}]},
            {"instances": [{"city": None}, {"city": digest("Oslo")}]},
        ),
        (TABLE, ["age"], [], {"inputs": [tensor("numbers", [1, 1], [41])]}, {"inputs": []}),
        # V2: flat, nested, binary, without rows.
        (
            ONE,
            [],
            ["x"],
            {"inputs": [tensor("x", [2, 2], [1, 2, 3, 4])]},
            {"inputs": [hashed("x", "[1, 2]", "[3, 4]")]},
        ),
        (
            ONE,
            [],
            ["x"],
            {"inputs": [tensor("x", [2, 2], [[1, 2], [3, 4]])]},
            {"inputs": [hashed("x", "[1, 2]", "[3, 4]")]},
        ),
        (ONE, [], ["x"], {"inputs": [tensor("x", [2, 1], [1.0, 2])]}, {"inputs": [hashed("x", "1", "2")]}),
        (ONE, [], ["x"], {"inputs": [tensor("x", [2, 1], np.float32([1, 2]))]}, {"inputs": [hashed("x", "1", "2")]}),
        (ONE, [], ["x"], {"inputs": [tensor("x", [0, 2], [])]}, {"inputs": [hashed("x")]}),
        (
            *(ONE, [], ["y"], {"model_name": "m", "id": "i", "outputs": [tensor("y", [1], ["a"], "BYTES")]}),
            {"model_name": "m", "id": "i", "outputs": [hashed("y", "a")]},
        ),
    ],
)
def test_changed_body(model: Model, omit: list[str], hash: list[str], body: Any, expected: Any) -> None:
    assert ColumnFilter(omit, hash, KEY).change(body, model) == expected


def test_nan_stays_missing() -> None:
    changed = ColumnFilter([], ["x"], KEY).change({"inputs": [tensor("x", [2], np.float32([np.nan, 1]))]}, ONE)
    assert changed["inputs"][0]["data"] == [None, digest("1")]


@pytest.mark.parametrize(
    ("model", "omit", "expected"),
    [
        (TWO, ["salary"], "model m: logger.omit: must be one of café, x, y, z, got 'salary'"),
        (TABLE, ["numbers"], "model m: logger.omit: must be one of age, city, price, got 'numbers'"),
        (SimpleNamespace(name="m"), ["x"], "model m: logger.omit: must be none for a language model, got 'x'"),
    ],
)
def test_model_without_the_column_is_refused(model: Any, omit: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        ColumnFilter(omit, [], KEY).check(model)
    assert caught.value.message == expected


def test_known_columns_are_accepted() -> None:
    ColumnFilter(["cafe\u0301"], ["z"], KEY).check(TWO)
