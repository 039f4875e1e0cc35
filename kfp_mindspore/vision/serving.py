"""A dual encoder as the server runs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.compat.graph_executor import CompiledGraph
from kfp_mindspore.mindir.devices import require_cpu
from kfp_mindspore.vision.bundle import TextEncoder

_BATCH = 32


class DualRunner:
    """Computes embeddings of token IDs and of prepared images; graphs are compiled per batch size.

    Args:
        texts: The opened bundle's text tower.
    """

    lower_case = False

    def __init__(self, texts: TextEncoder) -> None:
        self.texts = texts
        self._images = CompiledGraph(mindspore.load(str(texts.bundle.mindir)))
        self.vocabulary_size, self.max_length, self.width = texts.vocabulary_size, texts.max_length, texts.width

    def fit_length(self, length: int) -> int:
        """Return the graph length for a sequence with `length` tokens: all texts are padded to one."""
        return self.max_length

    def fit_batch(self, count: int) -> int:
        """Return how many of `count` inputs the next call computes."""
        return min(count, _BATCH)

    def compute(self, sequences: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Compute texts and images.

        Args:
            sequences: At most 32 token ID arrays, each with 1 to `max_length`, or images (3, H, W).

        Returns:
            Embeddings, float32 with shape (n, width).
        """
        result = np.zeros((len(sequences), self.width), np.float32)
        images = [index for index, sequence in enumerate(sequences) if sequence.ndim == 3]
        texts = [index for index, sequence in enumerate(sequences) if sequence.ndim == 1]
        if texts:
            result[texts] = self.texts.compute([sequences[index] for index in texts])
        if images:
            # Few batch sizes: each is compiled once.
            rows = [sequences[index] for index in images]
            rows += rows[:1] * ((1 << (len(rows) - 1).bit_length()) - len(rows))
            result[images] = self._images.run([np.stack(rows)])[0][: len(images)]
        return result


def load(directory: Path) -> DualRunner:
    """Load a bundle's towers and compile their smallest graphs.

    Args:
        directory: The bundle.

    Raises:
        UserError: It is a bundle of another kind.
        CorruptBundleError: A file is not readable.
    """
    require_cpu("dual encoders")
    texts = TextEncoder.open(directory)
    runner = DualRunner(texts)
    (spec,) = texts.bundle.signature.inputs
    runner.compute([np.zeros(1, np.int32), np.zeros(spec.shape[1:], np.float32)])
    return runner
