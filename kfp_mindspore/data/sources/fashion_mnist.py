"""Fashion-MNIST from Debian's package dataset-fashion-mnist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kfp_mindspore.data.sources.base import Source, SourceRequest
from kfp_mindspore.data.sources.idx import read_idx
from kfp_mindspore.errors import UserError

DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
# In the order at https://github.com/zalandoresearch/fashion-mnist#labels
LABELS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def read_set(request: SourceRequest) -> Source:
    """Read 60,000 training and 10,000 test images.

    The field `image` has pixels from 0 to 255, uint8 with shape (1, 28, 28), with a declared scaling to 0..1; `label`
    has ten classes.

    Raises:
        UserError: The package is not installed, or a field is missing.
    """
    if not DIRECTORY.is_dir():
        raise UserError(
            f"fashion_mnist: not found in {DIRECTORY}",
            hint="Install it: apt-get install dataset-fashion-mnist; or give a directory of its IDX files.",
        )
    return replace(read_idx(DIRECTORY, request), where="fashion_mnist (IDX)", labels=LABELS)
