"""Packed weights: the file network.packed.npz of a checkpoint, which is widened to float32 once, when it is read.

`header` is JSON: form and shape by parameter name. A parameter's further arrays are named `<number>.<part>` by its
place in the header: `values`, or `codes` with `scale`, one number for each index of the first axis.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import CorruptBundleError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

PACKED_FILE = "network.packed.npz"
SEARCHED_BITS = {"slb4": 4, "slb2": 2, "slb1": 1}


def build_levels(bits: int) -> NDArray[Any]:
    """Return the values of codes: 2^bits numbers from -1 to 1 with equal distances, float32."""
    import numpy as np

    return np.linspace(-1, 1, 2**bits, dtype=np.float32)


def pack(array: NDArray[Any], form: str, searched: tuple[NDArray[Any], NDArray[Any]] | None = None) -> dict[str, Any]:
    """Return a parameter's packed parts by name, with its form.

    Vectors, such as biases and statistics, keep float32, except in the form float16; so do integers.

    Args:
        array: The parameter.
        form: `float32`, `float16`, `int8`, `slb4`, `slb2` or `slb1`; a searched form without codes is int8.
        searched: Codes with the parameter's shape, and a scale for each index of the first axis.
    """
    import numpy as np

    if array.dtype.kind != "f" or form == "float32":
        return {"form": "float32", "values": array}
    if form == "float16":
        fits = bool((np.abs(array) < np.finfo(np.float16).max).all())
        return {"form": "float16", "values": array.astype(np.float16)} if fits else {"form": "float32", "values": array}
    if form in SEARCHED_BITS and searched is not None:
        codes, scale = searched
        return {"form": form, "codes": _pack_bits(codes, SEARCHED_BITS[form]), "scale": scale.astype(np.float32)}
    if array.ndim < 2:
        return {"form": "float32", "values": array}
    rows = array.reshape(len(array), -1)
    scale = np.maximum(np.abs(rows).max(1), 1e-12).astype(np.float32) / 127
    codes = np.clip(np.rint(rows / scale[:, None]), -127, 127).astype(np.int8)
    return {"form": "int8", "codes": codes, "scale": scale}


def widen(parts: Mapping[str, Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a parameter in float32 from `pack`'s parts; integers as they are."""
    import numpy as np

    form = parts["form"]
    if form in ("float32", "float16"):
        values: NDArray[Any] = parts["values"]
        return values.astype(np.float32) if form == "float16" else values
    if form == "int8":
        codes = parts["codes"].astype(np.float32)
    else:
        bits = SEARCHED_BITS[form]
        codes = build_levels(bits)[_unpack_bits(parts["codes"], bits, math.prod(shape))]
    rows: NDArray[Any] = codes.reshape(shape[0], -1) * parts["scale"][:, None]
    return rows.reshape(shape).astype(np.float32)


def count_bytes(parts: Mapping[str, Any]) -> int:
    """Return the stored bytes of `pack`'s parts."""
    return sum(value.nbytes for name, value in parts.items() if name != "form")


def write_packed(file: Path, packed: Mapping[str, Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write parameters.

    Args:
        file: The file to write.
        packed: `pack`'s parts by parameter name.
        shapes: Their shapes.
    """
    import numpy as np

    header = {name: {"form": parts["form"], "shape": list(shapes[name])} for name, parts in packed.items()}
    arrays = {
        f"{number}.{part}": value
        for number, parts in enumerate(packed.values())
        for part, value in parts.items()
        if part != "form"
    }
    np.savez(file, header=np.array(json.dumps(header)), **arrays)


def read_packed(file: Path) -> dict[str, NDArray[Any]]:
    """Read and widen parameters.

    Raises:
        CorruptBundleError: It is no such file, or incomplete.
    """
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as stored:
            header = json.loads(str(stored["header"]))
            values = {}
            for number, (name, entry) in enumerate(header.items()):
                parts = {
                    part: stored[key] for part in ("values", "codes", "scale") if (key := f"{number}.{part}") in stored
                }
                values[name] = widen({"form": entry["form"], **parts}, tuple(entry["shape"]))
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise CorruptBundleError(f"{file}: cannot be read as packed weights ({error})") from error
    return values


def _pack_bits(codes: NDArray[Any], bits: int) -> NDArray[Any]:
    import numpy as np

    flat = codes.reshape(-1, 1).astype(np.uint8)
    return np.packbits((flat >> np.arange(bits, dtype=np.uint8)) & 1)


def _unpack_bits(packed: NDArray[Any], bits: int, count: int) -> NDArray[Any]:
    import numpy as np

    found = np.unpackbits(packed, count=count * bits).reshape(count, bits).astype(np.int64)
    codes: NDArray[Any] = (found << np.arange(bits)).sum(1)
    return codes
