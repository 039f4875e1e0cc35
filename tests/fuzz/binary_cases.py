"""V2 bodies with binary data whose headers, sizes and bytes lie about each other."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.cases import Case
from tests.fuzz.json_cases import IDS, pick_headers
from tests.fuzz.mutation import TEXTS, dump, literal, mutate_bytes, mutate_tree, pick_value
from tests.fuzz.targets import Target
from tests.support.serving.serving_client import DATATYPES

_LENGTHS = [
    "0", "1", "-1", "-0", "+5", " 12 ", "1e3", "0x20", "12.0", "", "x", "NaN", "many", "\uff19", "1_0", "4294967296",
    "9223372036854775807", "9223372036854775808", "1" * 200, "1" * 5000, "-99999999999999999999", "\u0663", "None",
    "00000000000000000000000000000107", "1,2",
]  # fmt: skip
_SIZES = [
    0, 1, 3, -1, -256, 255, 257, 512, 2**31, 2**32, 2**63, 2**70, -(2**63), 1.0, 256.0, 255.5, "256", "", True, None,
    [], {}, [256], literal("1e400"), literal("NaN"), literal("1e2"),
]  # fmt: skip
_FLOATS = [float("nan"), float("inf"), float("-inf"), 1e-45, 3.4e38, -3.4e38, 0.0, -0.0]


def make_binary_case(random: Random, targets: Sequence[Target]) -> Case:
    """Make a V2 request with binary data."""
    target = random.choice(targets)
    arrays = dict(random.choice(target.questions))
    if random.random() < 0.1:
        name = random.choice(list(arrays))
        arrays[name] = _spoil_array(random, arrays[name])
    tensors, chunks = [], []
    for name, array in arrays.items():
        tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name]}
        if random.random() < 0.12:
            tensor["data"] = array.ravel().tolist()
        if "data" not in tensor or random.random() < 0.2:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            chunks.append(array.tobytes())
        tensors.append(tensor)
    value: Any = {"inputs": tensors}
    if random.random() < 0.3:
        value["id"] = random.choice(IDS)
    if random.random() < 0.3:
        value["parameters"] = {"binary_data_output": random.choice([True, False, None, 1, "true", []])}
    if random.random() < 0.2:
        value["outputs"] = [
            {"name": spec.name, "parameters": {"binary_data": random.choice([True, False, 0, "x"])}}
            for spec in target.signature.outputs
        ]
    tail = b"".join(chunks)
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        value, tail = lie(random, value, tail)
    head = dump(value)
    if random.random() < 0.1:
        head = mutate_bytes(random, head)
    length = str(len(head))
    if random.random() < 0.25:
        length = random.choice(
            [str(len(head) + delta) for delta in (-1, 1, -9, 9, 4, len(tail), len(tail) + 1)] + _LENGTHS
        )
    headers = [
        (
            "Content-Type",
            random.choice(["application/octet-stream"] * 8 + ["application/json", "text/plain", "", "x/y"]),
        ),
        ("Inference-Header-Content-Length", length),
    ]
    if random.random() < 0.06:
        headers = random.choice([headers[:1], headers[1:], [], [*headers, headers[1]], [*headers, headers[0]]])
    if random.random() < 0.05:
        headers += [pair for pair in pick_headers(random) if pair[0] != "Content-Type"]
    return Case("binary", f"/v2/models/{target.name}/infer", head + tail, "POST", tuple(headers))


def lie(random: Random, value: Any, tail: bytes) -> tuple[Any, bytes]:
    """Return a header and data that contradict each other."""
    tensors = value.get("inputs") if isinstance(value, dict) else None
    tensor = random.choice(tensors) if isinstance(tensors, list) and tensors else None
    choice = random.randrange(12)
    if choice < 3 and isinstance(tensor, dict):
        tensor["parameters"] = {"binary_data_size": random.choice(_SIZES)}
    elif choice == 3 and isinstance(tensor, dict):
        tensor["shape"] = random.choice(
            [
                [],
                [0, 1, 8, 8],
                [-1, 1, 8, 8],
                [2, 1, 8, 8],
                [64],
                [2**62, 4, 8, 8],
                [2**40, 1, 8, 8],
                [1, 1, 8, -8],
                [-1],
            ]
        )
    elif choice == 4 and isinstance(tensor, dict):
        tensor["datatype"] = random.choice([*DATATYPES.values(), "BYTES", "BF16", "", None, 1])
    elif choice == 5 and isinstance(tensor, dict):
        tensor["name"] = random.choice(TEXTS)
    elif choice == 6 and isinstance(tensor, dict):
        assert isinstance(tensors, list)
        # The same bytes twice, or bytes that are not there.
        tensors.insert(random.randrange(len(tensors) + 1), dict(tensor))
    elif choice == 7:
        tail = random.choice(
            [tail[:-1], tail[1:], b"", tail + b"\x00", tail * 2, tail + b"{}", random.randbytes(300), tail[:4]]
        )
    elif choice == 8:
        tail = mutate_bytes(random, tail)
    elif choice == 9:
        # What BYTES tensors hold: lengths before texts.
        tail = struct.pack("<I", random.choice([3, 2**31, 2**32 - 1])) + b"abc"
        if isinstance(tensor, dict):
            tensor |= {"datatype": "BYTES", "parameters": {"binary_data_size": len(tail)}, "shape": [1]}
    elif choice == 10 and isinstance(tensor, dict):
        tensor["parameters"] = pick_value(random)
    else:
        value = mutate_tree(random, value)
    return value, tail


def _spoil_array(random: Random, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    choice = random.random()
    if choice < 0.4 and array.dtype.kind == "f":
        changed = array.copy()
        changed.flat[random.randrange(changed.size)] = random.choice(_FLOATS)
        return changed
    if choice < 0.7:
        with np.errstate(all="ignore"):
            return array.astype(random.choice([name for name in DATATYPES if name != array.dtype.name]))
    return np.concatenate([array] * random.choice([2, 9, 65, 100]))
