"""Ways to spoil what was right: values that no schema expects, trees and texts with a place changed."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

# What json.dumps cannot write stands between these marks and loses its quotes.
_OPEN, _CLOSE = "\ue000", "\ue001"


def literal(text: str) -> str:
    """Return a value that `dump` writes as this text."""
    return f"{_OPEN}{text}{_CLOSE}"


def dump(value: Any, **options: Any) -> bytes:
    """Write JSON, literals as they are and lone surrogates as they come."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return text.replace(f'"{_OPEN}', "").replace(f'{_CLOSE}"', "").encode("utf-8", "surrogatepass")


def nest(depth: int, inner: Any = 1) -> str:
    """Return a list in a list in a list, `depth` times."""
    return literal("[" * depth + json.dumps(inner) + "]" * depth)


NUMBERS = [
    0, 1, -1, 2, 7, 64, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1,
    2**63, -(2**63) - 1, 2**64, 2**64 - 1, 10**30, -(10**30), 0.5, -0.0, 1e-45, 5e-324, 3.4e38, 3.5e38, -3.5e38, 6e4,
    7e4, 1e308, -1e308, 1.0, 1.5, 1e22, literal("1e400"), literal("-1e400"), literal("NaN"), literal("Infinity"),
    literal("-Infinity"), literal("1" * 400), literal("-" + "9" * 5000), literal("0." + "3" * 2000),
    literal("1e-400"), literal("1E+2"), literal("nan"), literal("inf"), literal("0x10"), literal("01"), literal("1."),
    literal(".5"), literal("+1"), literal("-"), literal("1_000"),
]  # fmt: skip
TEXTS = [
    "", "a", "1", "1.0", "NaN", "Infinity", "null", "true", "image", "output", "digits", "FP32", "fp32", "FP16",
    "INT32", "BYTES", "BOOL", "UINT64", "FLOAT", "\x00", "a\x00b", "\n", "\r\nX-Injected: 1", "\x1b[31mred", "\x7f",
    "\u2028", "\u202e", "é", "图像", "🙂" * 3, "\ud800", "\udfff\ud800", "../../etc/passwd", "%s%n", "{}", "{0}",
    "__class__", "x" * 300, "x" * 70000, "'; DROP TABLE", "aGk=", literal('"\\ud800"'), literal('"\\u0000"'),
    literal('"\\x41"'), literal("'a'"),
]  # fmt: skip
OTHERS = [
    None, True, False, [], {}, [[]], [[], []], [{}], {"": None}, {"a": 1}, [None], [True], ["a"], [1, "a"],
    [1, None], [[1], [1, 2]], [1, [2]], {"b64": "aGk="}, {"b64": "!"}, {"data": [1], "shape": [1]}, [[[[0]]]],
    literal("undefined"), literal("[1,]"), literal("[,1]"), literal('{"a":1,}'), literal('{"a":1,"a":2}'),
    literal("{1:2}"), literal("/* */ 1"), literal("None"), literal("True"),
]  # fmt: skip


def pick_value(random: Random) -> Any:
    """Return a value that is seldom right."""
    kind = random.random()
    if kind < 0.4:
        return random.choice(NUMBERS)
    if kind < 0.65:
        return random.choice(TEXTS)
    if kind < 0.92:
        return copy.deepcopy(random.choice(OTHERS))
    if kind < 0.96:
        return nest(
            random.choice([2, 5, 10, 33, 65, 100, 300, 1000, 1024, 1025, 5000]), random.choice([0, 1.5, None, "a"])
        )
    if kind < 0.98:
        return [random.choice(NUMBERS) for _ in range(random.choice([1, 2, 63, 64, 65, 300]))]
    return {random.choice(TEXTS): random.choice(NUMBERS) for _ in range(random.randrange(1, 5))}


def mutate_tree(random: Random, tree: Any) -> Any:
    """Return the tree with one place changed; the tree itself may be changed too."""
    if not isinstance(tree, dict | list) or not tree or random.random() < 0.03:
        return pick_value(random)
    parent, place, node = None, None, tree
    # Few steps on average: what is near the root decides more than one number of sixty-four.
    while isinstance(node, dict | list) and node and (parent is None or random.random() < 0.7):
        parent, place = node, random.choice(list(node)) if isinstance(node, dict) else random.randrange(len(node))
        node = parent[place]
    assert parent is not None
    action = random.random()
    if action < 0.5:
        parent[place] = pick_value(random)
    elif action < 0.65:
        del parent[place]
    elif action < 0.72:
        parent[place] = [node]
    elif action < 0.76:
        parent[place] = {random.choice(TEXTS): node}
    elif action < 0.82 and isinstance(node, list) and node:
        parent[place] = node[0]
    elif action < 0.88 and isinstance(node, list):
        parent[place] = node * random.choice([0, 2, 3, 20])
    elif isinstance(parent, dict):
        if random.random() < 0.5:
            parent[random.choice(TEXTS)] = pick_value(random)
        else:
            parent[random.choice(TEXTS)] = parent.pop(place)
    elif random.random() < 0.5:
        parent.insert(int(place), pick_value(random))
    else:
        parent.append(node)
    return tree


def mutate_bytes(random: Random, content: bytes) -> bytes:
    """Return the bytes with one to four places changed, or cut, doubled, encoded otherwise or replaced."""
    data = bytearray(content)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        start = random.randrange(len(data) + 1)
        stop = min(len(data), start + random.choice([1, 1, 2, 8, 64]))
        action = random.randrange(10)
        if action == 0:
            for index in range(start, stop):
                data[index] ^= 1 << random.randrange(8)
        elif action == 1:
            del data[start:stop]
        elif action == 2:
            del data[start:]
        elif action == 3:
            data[start:start] = random.randbytes(stop - start)
        elif action == 4:
            data[start:stop] = data[start:stop] * random.choice([2, 3, 50])
        elif action == 5:
            data[start:start] = random.choice(_INSERTS)
        elif action == 6:
            data[:] = random.choice(_WHOLES)
        elif action == 7:
            data[:0] = random.choice([b"\xef\xbb\xbf", b"\xff\xfe", b" \n\t", b"\x00", b")]}',\n"])
        elif action == 8:
            data += random.choice([b"\x00", b"}", b"]", b" ", b"\n\n", b"{}", b"x", b"\xff", b"," * 1000])
        elif len(data) < 100_000:
            encoding = random.choice(["utf-16", "utf-32", "utf-16-le", "utf-7"])
            data[:] = bytes(data).decode("latin-1").encode(encoding)
    return bytes(data)


_INSERTS = [
    b'"', b"'", b"\\", b"\x00", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b",", b":", b"[", b"]",
    b"{", b"}", b"null", b"NaN", b"-", b"e", b".", b"\\u", b"\\ud800", b"//", b"\r\n", b"9" * 400, b"[" * 3000,
]  # fmt: skip
_WHOLES = [
    b"", b" ", b"\n", b"\x00", b"null", b"true", b"0", b'""', b"[]", b"{}", b"[[[", b"{" * 500, b"[" * 100_000,
    b'{"a":' * 20_000, b"\xff\xff\xff\xff", b"\xef\xbb\xbf", b"\xef\xbb\xbf{}", b"\x80\x04N.", b"\x93NUMPY\x01\x00",
    b"<xml/>", b"a=b&c=d", b"--boundary\r\n\r\n", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"%PDF", b"1e999", b"-",
]  # fmt: skip
