"""Generated waves of unequal lengths, for a network over lists; no file is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects
from kfp_mindspore.data.sources.lists import get_limit, read_lists
from kfp_mindspore.formats.shards import import_pyarrow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "waves"
_WHERE = f"{NAME} (generated)"
_LABELS = ("sawtooth", "sine", "square")
_COUNT = 2400
_LENGTHS = (12, 40)
_NOISE = 0.15


def read_waves(request: SourceRequest) -> Source:
    """Return 2,400 noisy waves of unequal lengths.

    The field `values` has lists with 12 to 40 numbers: a sine, square or sawtooth wave with a random frequency, phase
    and height. `label` has its shape.

    Raises:
        UserError: A field is missing, or `values` is not padded.
        MissingExtraError: pyarrow is not installed.
    """
    import numpy as np

    pyarrow = import_pyarrow()
    generator = np.random.default_rng(0)
    labels = [_LABELS[index % len(_LABELS)] for index in range(_COUNT)]
    waves = [_make_wave(label, generator) for label in labels]
    limit = get_limit(request, "values", exact="values" in request.exact)
    columns = {
        "values": read_lists(f"{_WHERE}: values", pyarrow.chunked_array([waves]), limit),
        "label": to_objects([label.encode() for label in labels]),
    }
    select_fields(_WHERE, request, list(columns))
    return Source("generated", _WHERE, columns, target=("label",), task="classification", is_table=True)


def _make_wave(label: str, generator: np.random.Generator) -> NDArray[np.float32]:
    """Return a wave with shape (L,)."""
    import numpy as np

    length = int(generator.integers(_LENGTHS[0], _LENGTHS[1] + 1))
    turns = np.arange(length) / generator.uniform(6, 12) + generator.uniform()
    if label == "sawtooth":
        wave = 2 * (turns % 1) - 1
    else:
        wave = np.sin(2 * np.pi * turns)
        wave = np.sign(wave) if label == "square" else wave
    noise = _NOISE * generator.standard_normal(length)
    return (generator.uniform(0.5, 2) * (wave + noise)).astype(np.float32)
