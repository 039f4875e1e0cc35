"""Sample order in an epoch, independent of the world size, and each worker's share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def get_part(count: int, index: int, parts: int) -> slice:
    """Return part `index` when `count` items are divided into `parts` parts, whose sizes differ by at most one."""
    return slice(index * count // parts, (index + 1) * count // parts)


@dataclass(frozen=True)
class Sampler:
    """Batches from the permutation that (seed, epoch) determine over all samples.

    A position counts the epoch's samples that all workers together have done. A batch is defined by its position and
    size alone, so that a run may continue at any position with another world size.

    Args:
        samples: Sample count.
        batch_size: Samples in a batch, over all workers.
        seed: Permutation seed.
        shuffle: Whether to permute the samples.
        drop_last: Whether samples that do not fill the last batch are skipped in the epoch.
    """

    samples: int
    batch_size: int
    seed: int
    shuffle: bool = True
    drop_last: bool = True

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return self.samples // self.batch_size if self.drop_last else -(-self.samples // self.batch_size)

    def is_finished(self, position: int) -> bool:
        """Return whether the epoch has no batch at a position."""
        return position + (self.batch_size if self.drop_last else 1) > self.samples

    def read(self, epoch: int, position: int = 0) -> Iterator[NDArray[Any]]:
        """Yield each batch's sample indices in an epoch (from 0) from a position on."""
        import numpy as np

        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        else:
            order = np.arange(self.samples)
        while not self.is_finished(position):
            yield order[position : position + self.batch_size]
            position += self.batch_size
