"""Sample order in an epoch, independent of the world size, and each worker's share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def get_part(count: int, index: int, parts: int) -> slice:
    """Return part `index` when `count` items are divided into `parts` parts, whose sizes differ by at most one."""
    return slice(index * count // parts, (index + 1) * count // parts)


@dataclass(frozen=True)
class EpochSampler:
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


@dataclass(frozen=True)
class BlockSampler(EpochSampler):
    """Batches in an order whose reader holds few of the samples at a time.

    The order permutes all blocks, then the rows within each window (consecutive blocks). Both
    follow from (seed, epoch), so a position means the same for any world size.

    Args:
        blocks: Samples in each block, in stored order.
        window: Blocks whose rows are permuted together.
    """

    blocks: Sequence[int] = field(default=(), kw_only=True)
    window: int = field(default=1, kw_only=True)

    def read(self, epoch: int, position: int = 0) -> Iterator[NDArray[Any]]:
        """Yield each batch's sample indices in an epoch (from 0) from a position on."""
        import numpy as np

        pending = np.empty(0, np.int64)
        for rows in self._read_windows(epoch, position):
            pending = np.concatenate([pending, rows])
            while len(pending) >= self.batch_size:
                yield pending[: self.batch_size]
                pending = pending[self.batch_size :]
        if len(pending) and not self.drop_last:
            yield pending

    def _read_windows(self, epoch: int, position: int) -> Iterator[NDArray[Any]]:
        """Yield each window's sample indices in order, without those before the position."""
        import numpy as np

        sizes = np.array(self.blocks, np.int64)
        starts = np.cumsum(sizes) - sizes
        order = np.arange(len(sizes))
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(order)
        done = 0
        for first in range(0, len(order), self.window):
            chosen = order[first : first + self.window]
            done += (count := int(sizes[chosen].sum()))
            if done <= position:
                continue
            rows = np.concatenate([np.arange(starts[block], starts[block] + sizes[block]) for block in chosen])
            if self.shuffle:
                rows = np.random.default_rng((self.seed, epoch, first + 1)).permutation(rows)
            yield rows[max(0, position - (done - count)) :]
