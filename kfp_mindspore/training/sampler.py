"""The order of the samples of an epoch, independent of the number of workers, and each worker's part of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def get_part(count: int, index: int, parts: int) -> slice:
    """Return part `index` of `count` items in `parts` parts, whose sizes differ by at most one."""
    return slice(index * count // parts, (index + 1) * count // parts)


@dataclass(frozen=True)
class Sampler:
    """Batches of the permutation of all samples that (seed, epoch) determine.

    A position is the number of an epoch's samples that all workers together have done. A batch is defined by its
    position and size alone, so that a run may continue at any position with another number of workers.

    Args:
        samples: Number of samples.
        batch_size: Samples of a batch, over all workers.
        seed: Seed of the permutation.
        shuffle: Whether to permute the samples.
        drop_last: Whether samples that do not fill the last batch are left out of the epoch.
    """

    samples: int
    batch_size: int
    seed: int
    shuffle: bool = True
    drop_last: bool = True

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return self.samples // self.batch_size if self.drop_last else -(-self.samples // self.batch_size)

    def is_finished(self, position: int) -> bool:
        """Return whether the epoch has no batch at a position."""
        return position + (self.batch_size if self.drop_last else 1) > self.samples

    def read(self, epoch: int, position: int = 0) -> Iterator[NDArray[Any]]:
        """Yield the indices of the samples of each batch of an epoch (from 0) from a position on."""
        import numpy as np

        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        else:
            order = np.arange(self.samples)
        while not self.is_finished(position):
            yield order[position : position + self.batch_size]
            position += self.batch_size
