"""Rows of a table by column names, by V1, V2 in JSON and binary, and gRPC: right ones, then spoiled."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.binary_cases import lie
from tests.fuzz.cases import Case
from tests.fuzz.grpc_cases import spoil
from tests.fuzz.mutation import NUMBERS, TEXTS, dump, mutate_bytes, mutate_tree, pick_value
from tests.fuzz.targets import Target
from tests.support.models.visits import CITIES, LENGTH
from tests.support.serving.serving_client import _CONTENTS, DATATYPES, INFER, messages

NAME, OUTPUT = "visits", "output"
_DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_HEADERS = (("Content-Type", "application/json"),)
_NUMERIC = ["FP32", "FP64", "FP16", "INT8", "INT32", "INT64", "UINT8", "UINT64", "BOOL", "BYTES", "", None, 3]
_LISTS = [
    [], [0], [1] * LENGTH, [1] * (LENGTH + 1), [1] * 5000, [1.0], [1.5], [True], [None], ["1"], [[1]], [2**31],
    [-(2**31)], [2**31 - 1], [2**63], [2**64], [10**400], "[]", "[1, 2]", "[1", "1", "", "null", "[[1]]", "[true]",
    "[1e3]", "{}", {}, {"b64": "WzFd"}, {"b64": "x"}, 1, None, True,
]  # fmt: skip


def make_row_case(random: Random, _: Sequence[Target]) -> Case:
    """Make a request with a table's columns."""
    rows = [_make_row(random) for _ in range(random.choice([1, 1, 2, 3, 5]))]
    form = random.choice(["v1", "v1", "v2", "binary", "grpc"])
    if form in ("binary", "grpc"):
        make = _make_binary if form == "binary" else _make_grpc
        return make(random, _make_columns(random, rows))
    is_v1 = form == "v1"
    value = {"instances": rows} if is_v1 else {"inputs": _make_columns(random, rows)}
    choice = random.random()
    if choice < 0.4:
        for _index in range(random.choice([1, 1, 2])):
            random.choice(_ROW_SPOILERS if is_v1 else _COLUMN_SPOILERS)(random, value)
    if 0.3 < choice < 0.65:
        for _index in range(random.choice([1, 1, 2, 3])):
            value = mutate_tree(random, value)
    body = dump(value, separators=(",", ":"))
    if choice > 0.9:
        body = mutate_bytes(random, body)
    path = f"/v1/models/{NAME}:predict" if is_v1 else f"/v2/models/{NAME}/infer"
    return Case("rows", path, body, "POST", _HEADERS)


def _make_binary(random: Random, tensors: list[dict[str, Any]]) -> Case:
    value: Any = {"inputs": tensors}
    if random.random() < 0.4:
        random.choice(_COLUMN_SPOILERS)(random, value)
    tail = b""
    for tensor in tensors:
        if random.random() < 0.8 and (content := _encode(tensor)) is not None:
            tail += content
            del tensor["data"]
            tensor["parameters"] = {"binary_data_size": len(content)}
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        value, tail = lie(random, value, tail)
    head = dump(value)
    length = len(head) + (random.choice([-1, 1, 4, len(tail)]) if random.random() < 0.1 else 0)
    headers = (("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", str(length)))
    return Case("rows", f"/v2/models/{NAME}/infer", head + tail, "POST", headers)


def _make_grpc(random: Random, tensors: list[dict[str, Any]]) -> Case:
    if random.random() < 0.4:
        # Before the message, whose fields have types.
        _change_value(random, {"inputs": tensors})
    message, is_raw = messages.ModelInferRequest(model_name=NAME), random.random() < 0.5
    for tensor in tensors:
        made = message.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        content = _encode(tensor)
        if is_raw:
            message.raw_input_contents.append(content or b"")
        elif content is not None and tensor["datatype"] == "BYTES":
            made.contents.bytes_contents.extend(text.encode() for text in tensor["data"])
        elif content is not None:
            values = np.frombuffer(content, _DTYPES[tensor["datatype"]]).tolist()
            getattr(made.contents, _CONTENTS[tensor["datatype"]]).extend(values)
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        spoil(random, message, OUTPUT)
    body: bytes = message.SerializeToString()
    return Case("rows", INFER, mutate_bytes(random, body) if random.random() < 0.15 else body)


def _encode(tensor: dict[str, Any]) -> bytes | None:
    """Return a column's cells as raw bytes; None if its datatype does not have them."""
    try:
        if tensor["datatype"] == "BYTES":
            texts = [text.encode() for text in tensor["data"]]
            return b"".join(struct.pack("<I", len(text)) + text for text in texts)
        with np.errstate(all="ignore"):
            return np.array(tensor["data"], _DTYPES[tensor["datatype"]]).tobytes()
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _make_row(random: Random) -> dict[str, Any]:
    row = {
        "age": random.choice([random.randint(0, 99), random.random() * 99]),
        "income": random.choice([random.gauss(3, 1), 7, True]),
        "city": random.choice([*CITIES, "Rome", ""]),
        "tokens": [random.randint(-9, 9) for _ in range(random.randint(0, LENGTH))],
    }
    names = list(row)
    random.shuffle(names)
    return {name: row[name] for name in names}


def _make_columns(random: Random, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tensors, count = [], len(rows)
    for name in rows[0]:
        data = [row[name] for row in rows]
        shape, datatype = [count], "BYTES" if name == "city" else "FP64"
        if name == "tokens":
            datatype, lengths = "BYTES", set(map(len, data))
            if len(lengths) == 1 and min(lengths) and random.random() < 0.6:
                shape, datatype = [count, min(lengths)], random.choice(["INT32", "INT64"])
            else:
                data = list(map(json.dumps, data))
        elif random.random() < 0.3:
            shape = [count, 1]
        tensors.append({"name": name, "shape": shape, "datatype": datatype, "data": data})
    return tensors


def _change_cell(random: Random, value: Any) -> None:
    rows = value["instances"]
    row = random.choice(rows)
    name = random.choice(list(row) or ["age"])
    row[name] = random.choice(_LISTS if name == "tokens" else [*NUMBERS, *TEXTS, None, [], {"b64": "T3Nsbw=="}])


def _rename_cell(random: Random, value: Any) -> None:
    row = random.choice(value["instances"])
    if row:
        row[random.choice(["Age", "features_numbers", *TEXTS])] = row.pop(random.choice(list(row)))


def _add_cell(random: Random, value: Any) -> None:
    for row in value["instances"]:
        row[random.choice(["price", "visit", *TEXTS])] = pick_value(random)


def _repeat_rows(random: Random, value: Any) -> None:
    value["instances"] = value["instances"] * random.choice([0, 9, 65, 300])


def _keep_rows(spoil: Callable[[Random, Any], Any]) -> Callable[[Random, Any], None]:
    """Return a spoiler that needs rows: the one before may have left none."""

    def spoil_rows(random: Random, value: Any) -> None:
        if value["instances"] and all(isinstance(row, dict) and row for row in value["instances"]):
            spoil(random, value)

    return spoil_rows


_ROW_CHANGES: list[Callable[[Random, Any], Any]] = [
    _change_cell,
    _change_cell,
    _change_cell,
    _rename_cell,
    _add_cell,
    lambda random, value: value["instances"] and random.choice(value["instances"]).popitem(),
    lambda random, value: value["instances"].append(pick_value(random)),
    lambda random, value: value["instances"].insert(0, pick_value(random)),
    _repeat_rows,
]
_ROW_SPOILERS = [_keep_rows(spoil) for spoil in _ROW_CHANGES]


def _set(field: str, values: list[Any]) -> Callable[[Random, Any], None]:
    return lambda random, value: random.choice(value["inputs"]).__setitem__(field, random.choice(values))


def _change_value(random: Random, value: Any) -> None:
    tensor = random.choice(value["inputs"])
    if isinstance(tensor.get("data"), list) and tensor["data"]:
        place = random.randrange(len(tensor["data"]))
        tensor["data"][place] = random.choice([*_LISTS, *NUMBERS, *TEXTS])


_COLUMN_SPOILERS: list[Callable[[Random, Any], None]] = [
    _change_value,
    _change_value,
    _set("datatype", _NUMERIC),
    _set("shape", [[], [1], [0], [-1], [1, 1], [1, 2], [2, 1], [1, 1, 1], [2], [1, 0], [2**63], None, "1", [True]]),
    _set("name", ["age", "Age", "city", "features_numbers", *TEXTS]),
    lambda random, value: value["inputs"].append({"name": random.choice(TEXTS), "datatype": "FP32", "shape": [1]}),
    lambda random, value: value["inputs"].append(dict(random.choice(value["inputs"]))),
    lambda random, value: len(value["inputs"]) > 1 and value["inputs"].pop(),
]
