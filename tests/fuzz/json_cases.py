"""V1 and V2 bodies in JSON: right ones, then spoiled."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.mutation import NUMBERS, TEXTS, dump, literal, mutate_bytes, mutate_tree, nest, pick_value
from tests.fuzz.targets import Target
from tests.support.serving.serving_client import make_tensors

Pairs = tuple[tuple[str, str], ...]
_JSON: Pairs = (("Content-Type", "application/json"),)
_SHAPES = [
    [], [0], [1], [-1], [1, 1, 8, 8], [0, 1, 8, 8], [-1, 1, 8, 8], [1, -1, 8, 8], [1, 1, 64], [64], [1, 64], [8, 8],
    [1, 1, 1, 8, 8], [2, 1, 8, 8], [2**31, 1, 8, 8], [2**62, 4, 8, 8], [2**63, 1, 8, 8], [2**64, 1, 8, 8],
    [10**30, 1, 8, 8], [-(2**63), 1, 8, 8], [4294967296, 4294967296], [1.0, 1, 8, 8], [1.5, 1, 8, 8], [True, 1, 8, 8],
    [None], ["1", 1, 8, 8], [[1, 1, 8, 8]], [1] * 40, [1] * 5000, [2, 1, 4, 8], [1, 1, 8, 16], [1, 8, 8, 1],
    [-1, -1, 8, 8], [-8, -1, 8, 8], [0] * 33, [2] * 70, [1, 0, 8, 8], [3], [1, 3], [2, 3], [2**32 + 1, 1, 8, 8],
]  # fmt: skip
_DATATYPES = [
    "FP32", "FP64", "FP16", "BF16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL",
    "BYTES", "STRING", "fp32", "FLOAT", "float32", "", " FP32", "FP32\x00", "COMPLEX64", "INT4", "DATE32", None, 32,
    ["FP32"], {"name": "FP32"},
]  # fmt: skip
IDS = [
    "42", "", " ", "é", "图", "x" * 2000, "x" * 100_000, "\x00", "a\nb", "a\r\nSet-Cookie: x=1", "\x1b[2J", "\ud800",
    42, -1, 1.5, True, None, [], {}, ["a"], literal("1e400"), '"', "\\", "%0d%0a", "\u2028", "{0}", "%s",
]  # fmt: skip


def make_v1(random: Random, targets: Sequence[Target]) -> Case:
    """Make a V1 request."""
    target = random.choice(targets)
    columns = {name: array.tolist() for name, array in random.choice(target.questions).items()}
    named = len(columns) > 1 or random.random() < 0.4
    rows: list[Any] = next(iter(columns.values()))
    if named:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    value: Any = {"instances": rows}
    choice = random.random()
    if choice < 0.2:
        value = random.choice(_V1_SPOILERS)(random, value)
    if 0.1 < choice < 0.6:
        for _ in range(random.choice([1, 1, 2, 3])):
            value = mutate_tree(random, value)
    body, headers = _finish(random, value, choice)
    if random.random() < 0.05:
        body, headers = _make_cloud_event(random, value, body)
    path = f"/v1/models/{target.name}:predict"
    return Case("v1", path, body, "POST", headers)


def make_v2(random: Random, targets: Sequence[Target]) -> Case:
    """Make a V2 request in JSON."""
    target = random.choice(targets)
    value = make_v2_value(random, target)
    choice = random.random()
    if choice < 0.35:
        for _ in range(random.choice([1, 1, 2])):
            random.choice(_V2_SPOILERS)(random, value)
    if 0.2 < choice < 0.65:
        for _ in range(random.choice([1, 1, 2, 3])):
            value = mutate_tree(random, value)
    body, headers = _finish(random, value, choice)
    return Case("v2", f"/v2/models/{target.name}/infer", body, "POST", headers)


def make_v2_value(random: Random, target: Target) -> Any:
    """Return a right V2 request, with things that are allowed in some places."""
    value: Any = {"inputs": make_tensors(random.choice(target.questions), nested=random.random() < 0.3)}
    if random.random() < 0.5:
        value["id"] = random.choice(IDS)
    if random.random() < 0.25:
        value["outputs"] = [{"name": spec.name} for spec in target.signature.outputs if random.random() < 0.7]
        for output in value["outputs"]:
            if random.random() < 0.4:
                output["parameters"] = {"binary_data": random.choice([True, False, 1, "true", None, []])}
            if random.random() < 0.1:
                output["parameters"] = {"classification": random.choice([1, -1, 10**9, "2"])}
    if random.random() < 0.2:
        value["parameters"] = random.choice(
            [
                {},
                {"binary_data_output": random.choice([True, False, 0, "x", None])},
                {"a": 1},
                {"a": {"b": []}},
                None,
                [],
            ]
        )
    if random.random() < 0.1:
        random.choice(value["inputs"])["parameters"] = random.choice(
            [{}, None, {"binary_data_size": random.choice([0, 256, -1, 2**70, "4", None])}, {"content_type": "np"}, [1]]
        )
    return value


def pick_headers(random: Random) -> Pairs:
    """Return headers of a JSON request, mostly the usual ones."""
    if random.random() < 0.8:
        return _JSON
    headers = list(random.choice(_CONTENT_TYPES))
    for _ in range(random.randrange(3)):
        headers.append(random.choice(_EXTRA_HEADERS))
    return tuple(headers)


def _finish(random: Random, value: Any, choice: float) -> tuple[bytes, Pairs]:
    body = dump(value, separators=(",", ":")) if random.random() < 0.7 else dump(value, indent=1)
    if choice > 0.6:
        body = mutate_bytes(random, body) if choice < 0.9 else body
    headers = pick_headers(random)
    if random.random() < 0.02:
        headers = (*headers, ("Content-Encoding", random.choice(["gzip", "deflate", "br", "identity", "x"])))
        body = gzip.compress(body, mtime=0) if random.random() < 0.7 else body
    return body, headers


def _make_cloud_event(random: Random, value: Any, body: bytes) -> tuple[bytes, Pairs]:
    attributes = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}
    for name in list(attributes):
        if random.random() < 0.15:
            attributes[name] = random.choice(["", "2.0", "é", "x" * 5000, "1"])
        elif random.random() < 0.1:
            del attributes[name]
    if random.random() < 0.5:
        pairs = [(f"ce-{name}", text) for name, text in attributes.items()]
        kind = random.choice(
            ["application/json", "application/cloudevents+json", "text/plain", "application/avro-json"]
        )
        return body, (("Content-Type", kind), *pairs)
    event: dict[str, Any] = {**attributes, random.choice(["data", "data_base64", "datum"]): value}
    if random.random() < 0.5:
        event["datacontenttype"] = random.choice(["application/json", "text/xml", 1])
    return dump(event), (("Content-Type", random.choice(["application/cloudevents+json", "application/json"])),)


def _each_row(change: Callable[[Random, Any], Any]) -> Callable[[Random, Any], Any]:
    def apply(random: Random, value: Any) -> Any:
        rows = value["instances"]
        chosen = range(len(rows)) if random.random() < 0.5 else [random.randrange(len(rows))]
        for index in chosen:
            row = rows[index]
            if isinstance(row, dict):
                name = random.choice(list(row))
                row[name] = change(random, row[name])
            else:
                rows[index] = change(random, row)
        return value

    return apply


def _map_leaves(function: Callable[[Any], Any]) -> Callable[[Random, Any], Any]:
    def change(_: Random, value: Any) -> Any:
        return [change(_, item) for item in value] if isinstance(value, list) else function(value)

    return change


def _repeat_rows(random: Random, value: Any) -> Any:
    value["instances"] = value["instances"] * random.choice([0, 9, 17, 65, 130, 1500])
    return value


def _mix_rows(random: Random, value: Any) -> Any:
    rows = value["instances"]
    other = next(iter(rows[0].values())) if isinstance(rows[0], dict) else {"image": rows[0]}
    rows.insert(random.randrange(len(rows) + 1), other)
    return value


def _put_long_text(random: Random, value: Any) -> Any:
    # An array of texts has the size of its longest, for each of them.
    value["instances"] = ["x" * 20_000] + [random.choice(["a", 1, None])] * 2_000
    return value


def _rename(random: Random, value: Any) -> Any:
    value[random.choice(["instance", "inputs", "Instances", "signature_name", *TEXTS])] = value["instances"]
    if random.random() < 0.7:
        del value["instances"]
    return value


_V1_SPOILERS: list[Callable[[Random, Any], Any]] = [
    _repeat_rows,
    _mix_rows,
    _rename,
    _put_long_text,
    _each_row(_map_leaves(str)),
    _each_row(_map_leaves(bool)),
    _each_row(_map_leaves(lambda leaf: round(float(leaf)))),
    _each_row(_map_leaves(lambda leaf: [leaf])),
    _each_row(_map_leaves(lambda leaf: None)),
    _each_row(lambda random, row: [_map_leaves(lambda leaf: random.choice(NUMBERS))(random, row)]),
    _each_row(lambda random, row: _map_leaves(lambda leaf: random.choice(NUMBERS))(random, row)),
    _each_row(lambda random, row: {"b64": "AAAA"}),
    _each_row(lambda random, row: json.dumps(row)),
    _each_row(lambda random, row: row[:-1] if isinstance(row, list) else pick_value(random)),
    _each_row(lambda random, row: nest(random.choice([3, 4, 5, 32, 33, 64, 2000]))),
    lambda random, value: {"inputs": value["instances"]},
    lambda random, value: {"instances": {"image": value["instances"]}},
    lambda random, value: value["instances"],
    lambda random, value: [value],
    lambda random, value: {"instances": [value["instances"]]},
    lambda random, value: json.dumps(value),
    lambda random, value: {**value, "instances": value["instances"][0]},
    lambda random, value: {**value, random.choice(TEXTS): pick_value(random)},
]


def _pick_tensor(random: Random, value: Any) -> Any:
    # An earlier spoiler may have taken all of them.
    return random.choice(value["inputs"]) if value["inputs"] else {}


def _set_tensor(field: str, values: list[Any]) -> Callable[[Random, Any], None]:
    def spoil(random: Random, value: Any) -> None:
        _pick_tensor(random, value)[field] = random.choice(values)

    return spoil


def _double_input(random: Random, value: Any) -> None:
    value["inputs"].append(dict(_pick_tensor(random, value)))


def _drop_field(random: Random, value: Any) -> None:
    tensor = _pick_tensor(random, value)
    if tensor:
        del tensor[random.choice(list(tensor))]


def _ask_for(random: Random, value: Any) -> None:
    names = ["output", "output_0", "output_1", *TEXTS]
    value["outputs"] = [{"name": random.choice(names)} for _ in range(random.choice([1, 1, 2, 3, 200]))]


def _swap(random: Random, value: Any) -> None:
    tensor = _pick_tensor(random, value)
    first, second = random.choice([("data", "shape"), ("name", "datatype"), ("shape", "datatype")])
    tensor[first], tensor[second] = tensor.get(second), tensor.get(first)


def _change_data(random: Random, value: Any) -> None:
    tensor = _pick_tensor(random, value)
    data = tensor.get("data")
    if isinstance(data, list) and data:
        change: Callable[[Any], Any] = random.choice(
            [str, bool, lambda leaf: [leaf], lambda leaf: random.choice(NUMBERS)]
        )
        tensor["data"] = random.choice(
            [
                data[:-1],
                [*data, 1],
                data * 2,
                [data],
                data * 20,
                _map_leaves(change)(random, data),
                "".join(map(str, data)),
            ]
        )


_V2_SPOILERS: list[Callable[[Random, Any], None]] = [
    _set_tensor("shape", _SHAPES),
    _set_tensor("datatype", _DATATYPES),
    _set_tensor("name", TEXTS),
    _double_input,
    _drop_field,
    _ask_for,
    _swap,
    _change_data,
    lambda random, value: value.update(id=random.choice(IDS)),
    lambda random, value: value.update(inputs=value["inputs"] * random.choice([0, 2, 2, 30])),
    lambda random, value: value.update(model_name=random.choice(TEXTS)),
    lambda random, value: value.update(parameters=pick_value(random)),
    lambda random, value: value["inputs"].reverse(),
]
_CONTENT_TYPES: list[Pairs] = [
    (),
    *(
        (("Content-Type", text),)
        for text in (
            "application/json; charset=utf-8", "application/json; charset=latin-1", "APPLICATION/JSON", "text/plain",
            "text/json", "application/octet-stream", "application/x-www-form-urlencoded", "multipart/form-data",
            "multipart/form-data; boundary=x", "application/cloudevents+json", "application/xml", "", "x" * 3000, ";",
            "application/json, text/plain", "application/cloudevents-batch+json", "application/problem+json",
        )
    ),
]  # fmt: skip
_EXTRA_HEADERS = [
    ("Inference-Header-Content-Length", "0"), ("Inference-Header-Content-Length", "10"),
    ("Inference-Header-Content-Length", "-1"), ("Inference-Header-Content-Length", "x"), ("Accept", "text/html"),
    ("Accept", "application/octet-stream"), ("Accept-Encoding", "gzip, br"), ("X-Request-Id", "a" * 1000),
    ("X-Request-Id", "\x1b[31m"), ("X-Request-Id", "é"), ("traceparent", "00-zz-zz-01"), ("traceparent", "x" * 500),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("baggage", "a=b;c"), ("Expect", "x"),
    ("X-HTTP-Method-Override", "DELETE"), ("Range", "bytes=0-1"), ("If-None-Match", "*"), ("Authorization", "Basic é"),
    ("Cookie", "a=b; " * 200), ("Origin", "null"), ("X-Forwarded-For", "::1"), ("ce-specversion", "1.0"), ("ce-id", ""),
    ("Connection", "keep-alive, x"), ("Keep-Alive", "x"), ("TE", "trailers"), ("Upgrade-Insecure-Requests", "1"),
    ("X", "\t"), ("Content-Type", "application/json"), ("tracestate", "\udcff"), ("Content-Language", "\udcc3\udca9"),
]  # fmt: skip
