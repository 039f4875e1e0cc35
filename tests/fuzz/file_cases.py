"""Pictures as bytes for a model with a transform: cut, damaged, lying about their size, or no pictures at all."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.cases import Case
from tests.fuzz.mutation import TEXTS, dump, mutate_bytes, mutate_tree
from tests.fuzz.targets import Target
from tests.support.serving.serving_client import INFER, messages

MODEL = "transformed"
_KINDS = [
    ("PNG", "L", {}), ("PNG", "RGB", {}), ("PNG", "RGBA", {}), ("PNG", "P", {}), ("PNG", "1", {}), ("PNG", "I;16", {}),
    ("PNG", "LA", {}), ("PNG", "L", {"optimize": True}), ("JPEG", "L", {}), ("JPEG", "RGB", {}), ("JPEG", "CMYK", {}),
    ("JPEG", "RGB", {"progressive": True}), ("GIF", "P", {}), ("BMP", "RGB", {}), ("TIFF", "RGB", {}),
    ("WEBP", "RGB", {}), ("PPM", "RGB", {}), ("ICO", "RGBA", {}),
]  # fmt: skip
_SIZES = [(8, 8), (8, 8), (1, 1), (1, 300), (300, 1), (64, 64), (7, 9)]
_SIDES = [0, 1, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1]


def make_file_case(random: Random, targets: Sequence[Target]) -> Case:
    """Make a request with pictures in any protocol; `targets` are not used."""
    files = [_make_file(random) for _ in range(random.choice([1, 1, 1, 2, 3]))]
    form = random.random()
    if form < 0.35:
        return _make_v1(random, files)
    if form < 0.6:
        texts: list[Any] = [
            file.decode("latin-1") if random.random() < 0.5 else {"b64": _encode(file)} for file in files
        ]
        value: Any = {"inputs": [{"name": "image", "shape": [len(files)], "datatype": "BYTES", "data": texts}]}
        if random.random() < 0.2:
            value = mutate_tree(random, value)
        return Case("files", f"/v2/models/{MODEL}/infer", dump(value), "POST", _JSON)
    lengths = [len(file) if random.random() < 0.9 else random.choice([0, 1, 2**31, 2**32 - 1]) for file in files]
    content = b"".join(struct.pack("<I", length) + file for length, file in zip(lengths, files, strict=True))
    if random.random() < 0.1:
        content = mutate_bytes(random, content)
    count = len(files) if random.random() < 0.9 else random.choice([0, 2, 5, 2**40])
    if form < 0.8:
        tensor = {"name": "image", "shape": [count], "datatype": "BYTES"}
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(content)}}]}).encode()
        headers = (("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", str(len(head))))
        return Case("files", f"/v2/models/{MODEL}/infer", head + content, "POST", headers)
    message = messages.ModelInferRequest(model_name=MODEL)
    tensor_message = message.inputs.add(name="image", datatype="BYTES", shape=[min(count, 2**62)])
    if form < 0.9:
        message.raw_input_contents.append(content)
    else:
        tensor_message.contents.bytes_contents.extend(files)
    return Case("grpc", INFER, message.SerializeToString())


_JSON = (("Content-Type", "application/json"),)


def _make_v1(random: Random, files: Sequence[bytes]) -> Case:
    rows: list[Any] = [{"b64": _encode(file)} for file in files]
    choice = random.random()
    if choice < 0.1:
        rows = [{"image": row} for row in rows]
    elif choice < 0.2:
        rows.append(
            random.choice([*TEXTS, 1, None, {"b64": "!"}, {"b64": "A"}, {"b64": 1}, [], {"b64": "AAAA", "x": 1}])
        )
    elif choice < 0.25:
        rows = [row["b64"] for row in rows]
    value: Any = {"instances": rows}
    if random.random() < 0.1:
        value = mutate_tree(random, value)
    return Case("files", f"/v1/models/{MODEL}:predict", dump(value), "POST", _JSON)


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _make_file(random: Random) -> bytes:
    content = _draw(random.randrange(len(_KINDS)), random.choice(_SIZES))
    choice = random.random()
    if choice < 0.2:
        return content
    if choice < 0.6:
        return mutate_bytes(random, content)
    if choice < 0.8:
        return _make_png(random)
    if choice < 0.9:
        return _lie_in_jpeg(random, _draw(9, (8, 8)))
    return random.choice([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", random.randbytes(200), b"GIF89a", b"%PDF-1.4"])


@cache
def _draw(kind: int, size: tuple[int, int]) -> bytes:
    from PIL import Image

    name, mode, options = _KINDS[kind]
    buffer = io.BytesIO()
    pixels = (np.arange(size[0] * size[1]) % 251).astype(np.uint8).reshape(size)
    image = (
        Image.fromarray(pixels).convert("I").convert("I;16")
        if mode == "I;16"
        else Image.fromarray(pixels).convert(mode)
    )
    image.save(buffer, name, **options)
    return buffer.getvalue()


def _make_png(random: Random) -> bytes:
    """A PNG whose checksums are right, and little else."""
    width, height = (random.choice([8, 8, 8, *_SIDES]) for _ in range(2))
    depth, color = random.choice([1, 2, 4, 8, 16, 3, 0]), random.choice([0, 2, 3, 4, 6, 5, 255])
    interlace = random.choice([0, 0, 1, 7])
    pixels = zlib.compress(b"\x00" * random.choice([0, 9, 72, 200, 100_000]))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)),
        (b"IDAT", pixels if random.random() < 0.8 else mutate_bytes(random, pixels)),
        (b"IEND", b""),
    ]
    if random.random() < 0.4:
        extra = random.choice(
            [
                (b"tEXt", b"a\x00" + b"x" * 1000),
                (b"zTXt", b"a\x00\x00" + zlib.compress(b"x" * 2_000_000)),
                (b"iCCP", b"a\x00\x00" + zlib.compress(b"x" * 2_000_000)),
                (b"PLTE", b"\x00" * random.choice([3, 768, 769, 5000])),
                (b"tRNS", b"\x00" * 300),
                (b"acTL", struct.pack(">II", 2**31 - 1, 0)),
                (b"eXIf", b"II*\x00\xff\xff\xff\xff"),
                (b"IHDR", b""),
                (b"gAMA", b""),
                (b"cHRM", b"\x00"),
                (b"pHYs", b""),
            ]
        )
        chunks.insert(random.randrange(len(chunks) + 1), extra)
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        content += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return content


def _lie_in_jpeg(random: Random, content: bytes) -> bytes:
    place = content.find(b"\xff\xc0")
    if place < 0:
        return content
    sides = struct.pack(">HH", *(random.choice([0, 1, 8, 4000, 65535]) for _ in range(2)))
    return content[: place + 5] + sides + content[place + 9 :]
