"""Sources of batches: NumPy arrays (fast), a dataset directory, or a mindspore.dataset object."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.samples import read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.settings import DATASET_VARIABLE
from kfp_mindspore.training.distributed import WorkerInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Augment = Callable[[NDArray[np.float32], np.random.Generator], NDArray[np.float32]]

_EVALUATION_BATCH = 256


class ArraySource:
    """Batches of two arrays, shuffled by (seed, epoch), so that any epoch can be repeated.

    Samples that do not fill the last batch are left out of that epoch. Each worker reads its part of every batch.

    Args:
        features: Shape (N, …), float32.
        labels: Shape (N, …).
        batch_size: Samples per step, over all workers.
        seed: Seed of the shuffle and of `augment`.
        worker: Rank and number of workers.
        augment: Called with a worker's part of a batch's features and a generator seeded by (seed, epoch, step,
            rank); returns the features to train on, of the same shape and dtype.
        shuffle: Whether to shuffle.
    """

    def __init__(
        self,
        features: NDArray[Any],
        labels: NDArray[Any],
        *,
        batch_size: int,
        seed: int,
        worker: WorkerInfo,
        augment: Augment | None = None,
        shuffle: bool = True,
    ) -> None:
        if len(features) != len(labels):
            raise UserError(f"train: features and labels must be as many, got {len(features)} and {len(labels)}")
        if not 1 <= batch_size <= len(features):
            raise UserError(f"batch_size: must be 1 to {len(features)}, the training samples, got {batch_size}")
        if batch_size % worker.size:
            raise UserError(
                f"batch_size: must be divisible by the {worker.size} workers, got {batch_size}",
                hint="It counts the samples of one step over all workers.",
            )
        self.raw = (features, labels)
        self.batch_size = batch_size
        self.steps = len(features) // batch_size
        self._seed = seed
        self._worker = worker
        self._augment = augment
        self._shuffle = shuffle

    def read(self, epoch: int, start: int) -> Iterator[tuple[Any, ...]]:
        """Yield the tensors of each step of epoch `epoch` (from 0) from step `start` on."""
        import numpy as np
        from mindspore import Tensor

        features, labels = self.raw
        if self._shuffle:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(features))
        else:
            order = np.arange(len(features))
        part = self._worker.get_shard(self.batch_size)
        for step in range(start, self.steps):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size][part]
            batch = features[chosen]
            if self._augment is not None:
                batch = self._augment(batch, np.random.default_rng((self._seed, epoch, step, self._worker.rank)))
            yield Tensor(batch), Tensor(labels[chosen])


class PipelineSource:
    """Batches of a mindspore.dataset object in its order, which a resume does not restore.

    Args:
        dataset: A batched mindspore.dataset object with two columns, sharded by rank.
        worker: Rank and number of workers.
    """

    def __init__(self, dataset: Any, *, worker: WorkerInfo) -> None:
        self.raw = dataset
        self.batch_size = int(dataset.get_batch_size()) * worker.size
        self.steps = int(dataset.get_dataset_size())
        if self.steps < 1:
            raise UserError("train: the dataset has no batch")

    def read(self, epoch: int, start: int) -> Iterator[tuple[Any, ...]]:
        """Yield the tensors of each step of epoch `epoch` (from 0) from step `start` on."""
        for step, batch in enumerate(self.raw.create_tuple_iterator(num_epochs=1, do_copy=False)):
            if step >= start:
                yield tuple(batch)


Source = ArraySource | PipelineSource


@dataclass(frozen=True)
class Validation:
    """Batches to evaluate after an epoch.

    Args:
        raw: The user's data, for callbacks.
        steps: Number of batches.
        read: Returns the tensors of each batch.
    """

    raw: Any
    steps: int
    read: Callable[[], Iterable[tuple[Any, ...]]]


def resolve_train(
    train: Any, *, batch_size: int, seed: int, worker: WorkerInfo, augment: Augment | None, shuffle: bool
) -> Source:
    """Return the source of batches for the argument `train`.

    Args:
        train: (features, labels), {"features": …, "labels": …}, a Dataset or its directory (its split `train`), a
            batched mindspore.dataset object, or None for the directory in KFP_MINDSPORE_DATASET_DIR.
        batch_size: Samples per step, over all workers.
        seed: Seed of the shuffle and of `augment`.
        worker: Rank and number of workers.
        augment: NumPy transform of a batch's features.
        shuffle: Whether to shuffle arrays.

    Raises:
        UserError: `train` is none of these.
    """
    train = _open_directory(train, "train")
    if hasattr(train, "create_tuple_iterator"):
        if augment is not None:
            raise UserError("augment: works on arrays; give a mindspore.dataset object its own map operations")
        return PipelineSource(train, worker=worker)
    features, labels = _to_arrays(train, "train")
    return ArraySource(
        features, labels, batch_size=batch_size, seed=seed, worker=worker, augment=augment, shuffle=shuffle
    )


def resolve_validation(validation: Any, train: Any) -> Validation | None:
    """Return the batches for the argument `validation`; None stands for the split of a dataset given for `train`."""
    if validation is None:
        train = _open_directory(train, "train")
        if not isinstance(train, Dataset) or "validation" not in train.splits:
            return None
        validation = train
    validation = _open_directory(validation, "validation")
    if hasattr(validation, "create_tuple_iterator"):
        return Validation(
            validation,
            int(validation.get_dataset_size()),
            lambda: map(tuple, validation.create_tuple_iterator(num_epochs=1, do_copy=False)),
        )
    import numpy as np
    from mindspore import Tensor

    arrays = _to_arrays(validation, "validation")
    count = -(-len(arrays[0]) // _EVALUATION_BATCH)
    if not count:
        raise UserError("validation: has no samples")
    features, labels = (np.array_split(array, count) for array in arrays)
    # At most two different sizes, so at most two compilations.
    batches = [(Tensor(x), Tensor(y)) for x, y in zip(features, labels, strict=True)]
    return Validation(arrays, count, lambda: batches)


def _open_directory(given: Any, field: str) -> Any:
    if given is None and field == "train":
        given = os.environ.get(DATASET_VARIABLE)
        if not given:
            raise UserError(f"train: not given, and {DATASET_VARIABLE} is not set")
    return Dataset.open(given) if isinstance(given, (str, Path)) else given


def _to_arrays(given: Any, field: str) -> tuple[NDArray[Any], NDArray[Any]]:
    import numpy as np

    if isinstance(given, Dataset):
        samples = read_samples(given, field)
        if len(samples.inputs) != 1 or samples.target is None:
            raise UserError(f"{given.path}: needs one input and a target, has inputs {', '.join(samples.inputs)}")
        return next(iter(samples.inputs.values())), samples.target
    if isinstance(given, dict) and given.keys() >= {"features", "labels"}:
        given = (given["features"], given["labels"])
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise UserError(
            f"{field}: must be (features, labels), a dict of both, a Dataset, its directory or a mindspore.dataset "
            f"object, got {type(given).__name__}"
        )
    features, labels = (np.ascontiguousarray(array) for array in given)
    if features.dtype == np.float64:
        features = features.astype(np.float32)
    if labels.dtype == np.int64:
        labels = labels.astype(np.int32)
    return features, labels
