"""IDX files (.gz), the MNIST and Fashion-MNIST format."""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import SPLITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Big-endian types by the header's third byte; the format: https://yann.lecun.com/exdb/mnist/
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PREFIXES = {"train": "train", "t10k": "test", "test": "test", "validation": "validation"}
_PIXEL_SCALE = 255


def is_idx(path: Path) -> bool:
    """Return whether a file has an IDX file's name, such as train-images-idx3-ubyte.gz."""
    return re.search(r"[-.]idx\d", path.name) is not None


def read_idx(path: Path, request: SourceRequest) -> Source:
    """Read a directory with train-images…, train-labels…, t10k-images… and t10k-labels…, or one image file.

    An image file's labels are in the file with the same name and `labels` instead of `images`. Pixels are the field
    `image`, uint8 with shape (1, H, W), with a declared scaling to 0..1.

    Raises:
        UserError: A file is missing or damaged.
    """
    import numpy as np

    from kfp_mindspore.transform.values import Normalize

    where = f"{path.name} (IDX)"
    images = (
        [path] if path.is_file() else sorted(file for file in path.iterdir() if is_idx(file) and "images" in file.name)
    )
    if not images:
        raise UserError(
            f"{where}: no file of images found", hint="Expected are names such as train-images-idx3-ubyte.gz."
        )
    pixels, labels, splits = [], [], []
    for file in images:
        pixels.append(_read(file))
        labels.append(_read_labels(file))
        split = _PREFIXES.get(re.split(r"[-_.]", file.name)[0])
        if split is None and len(images) > 1:
            raise UserError(f"{file.name}: must begin with one of {', '.join(_PREFIXES)}")
        splits.append(np.full(len(pixels[-1]), SPLITS.index(split or "train"), np.int8))
        if len(labels[-1]) != len(pixels[-1]):
            raise UserError(f"{file.name}: {len(pixels[-1])} images, {len(labels[-1])} labels")
    image = np.concatenate(pixels)
    # Images have a channel axis, (N, C, H, W).
    columns = {"image": image[:, None] if image.ndim == 3 else image, "label": np.concatenate(labels)}
    select_fields(where, request, list(columns))
    steps = (Normalize(0, _PIXEL_SCALE, column="image"),) if image.dtype == np.uint8 else ()
    given = np.concatenate(splits) if len(images) > 1 else None
    return Source("IDX", where, columns, target=("label",), splits=given, steps=steps)


def _read_labels(images: Path) -> NDArray[Any]:
    pattern = re.escape(images.name).replace("images", "labels").replace("idx3", r"idx\d").replace("idx4", r"idx\d")
    found = [file for file in images.parent.iterdir() if re.fullmatch(pattern, file.name)]
    if not found:
        raise UserError(f"{images}: no file of labels beside it, such as train-labels-idx1-ubyte.gz")
    return _read(found[0])


def _read(file: Path) -> NDArray[Any]:
    import numpy as np

    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        zeros, kind, axes = struct.unpack(">HBB", content[:4])
        shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
        dtype = np.dtype(_TYPES[kind])
        if zeros or len(content) != 4 + 4 * axes + math.prod(shape) * dtype.itemsize:
            raise ValueError(f"shape {shape} does not fit {len(content)} bytes")
    except (OSError, EOFError, struct.error, zlib.error, KeyError, ValueError) as error:
        raise UserError(f"{file}: not an IDX file ({error})") from None
    array = np.frombuffer(content, dtype, offset=4 + 4 * axes).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)
