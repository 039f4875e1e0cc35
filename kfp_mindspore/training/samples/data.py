"""Batch sources: NumPy arrays (fast), a dataset directory, or a mindspore.dataset object."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.data.samples import build_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.shards import WINDOW_BLOCKS
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.samples.columns import (
    TARGET_NAMES,
    WEIGHT_NAMES,
    Columns,
    infer_task,
    open_data,
    order_inputs,
    read_parameters,
    resolve_columns,
)
from kfp_mindspore.training.workers.sampler import BlockSampler, EpochSampler, get_part

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EVALUATION_BATCH = 256
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Layout:
    """Meaning of the tensors in a batch, in order: inputs, targets, then each sample's weight.

    Args:
        inputs: The network's input names.
        targets: The loss's target names.
        weighted: Whether the last tensor is the weight.
        tokens: Tokens in a text sample; 0 for other data.
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    weighted: bool = False
    tokens: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """All tensor names."""
        return (*self.inputs, *self.targets, *(["weight"] if self.weighted else []))


@dataclass(frozen=True)
class Batch:
    """This worker's share of a batch.

    Args:
        tensors: The tensors; without a sample if the batch has fewer samples than there are workers.
        samples: Samples in the batch, over all workers.
    """

    tensors: tuple[Any, ...]
    samples: int


class _SampledSource(abc.ABC):
    """Batches in a sampler's order by (seed, epoch), so that any epoch can be repeated.

    Each worker reads a share of every batch; the parts differ by at most one sample.

    Args:
        columns: Some or all samples, for the layout.
        sampler: The order.
        config: Batch size, seed and augmentation.
        worker: Rank and world size.
        raw: The data as given, for callbacks.
    """

    def __init__(
        self, columns: Columns, sampler: EpochSampler, config: TrainingConfig, worker: WorkerInfo, raw: Any
    ) -> None:
        self.raw = raw
        self.batch_size = config.batch_size
        self.samples = sampler.samples
        self.sampler = sampler
        self.steps = sampler.steps
        self.layout = Layout(
            tuple(columns.inputs), tuple(columns.targets), columns.weight is not None, _count_tokens(columns)
        )
        self._columns = columns
        self._config = config
        self._worker = worker

    def is_finished(self, position: int) -> bool:
        """Return whether an epoch has no batch at a position, counted in samples done."""
        return self.sampler.is_finished(position)

    def sample_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the first sample's inputs by name, each with shape (1, …)."""
        return {name: array[:1] for name, array in self._columns.inputs.items()}

    def read(self, epoch: int, position: int) -> Iterator[Batch]:
        """Yield the batches of epoch `epoch` (from 0) from a position on, counted in samples done."""
        from mindspore import Tensor

        config, rank = self._config, self._worker.rank
        for indices in self.sampler.read(epoch, position):
            own = indices[get_part(len(indices), rank, self._worker.size)]
            batch = self._read_columns(own).arrays
            if config.augment is not None and len(own):
                generator = np.random.default_rng((config.seed, epoch, position // self.batch_size, rank))
                augmented = self._augment(batch, generator)
                batch[: len(augmented)] = augmented
            yield Batch(tuple(map(Tensor, batch)), len(indices))
            position += len(indices)

    @abc.abstractmethod
    def _read_columns(self, indices: NDArray[Any]) -> Columns:
        """Return the samples at indices, which may be none."""

    def _augment(self, batch: Sequence[NDArray[Any]], generator: np.random.Generator) -> list[NDArray[Any]]:
        augment = self._config.augment
        assert augment is not None
        names = self.layout.inputs
        if takes_target(augment):
            return list(augment(*batch[: len(self.layout.names)][:2], generator))
        if len(names) == 1:
            return [augment(batch[0], generator)]
        augmented = augment(dict(zip(names, batch, strict=False)), generator)
        if not isinstance(augmented, Mapping) or augmented.keys() != set(names):
            raise UserError(f"augment: must return a dict of {', '.join(names)}, got {type(augmented).__name__}")
        return [augmented[name] for name in names]


class ArraySource(_SampledSource):
    """Batches from arrays.

    Args:
        columns: The arrays.
        config: Batch size, seed, shuffle, drop_last, augmentation and class weights.
        worker: Rank and world size.
        raw: The data as given, for callbacks.
    """

    def __init__(self, columns: Columns, config: TrainingConfig, worker: WorkerInfo, raw: Any) -> None:
        _check_batch_size(columns.samples, config, worker)
        columns = _weight_classes(columns, config.class_weights)
        super().__init__(
            columns,
            EpochSampler(columns.samples, config.batch_size, config.seed, config.shuffle, config.drop_last),
            config,
            worker,
            raw,
        )

    def _read_columns(self, indices: NDArray[Any]) -> Columns:
        columns = self._columns
        return Columns(
            {name: array[indices] for name, array in columns.inputs.items()},
            {name: array[indices] for name, array in columns.targets.items()},
            None if columns.weight is None else columns.weight[indices],
        )


class ShardSource(_SampledSource):
    """Batches from a dataset's Parquet shards, which need not fit in memory.

    Each worker reads every block and preprocesses a share of the batches, in a thread that is one batch ahead.

    Args:
        dataset: A dataset with storage parquet.
        network: The network.
        config: Batch size, seed, shuffle, drop_last, augmentation and class weights.
        worker: Rank and world size.
        has_loss: Whether there is a loss function.
    """

    def __init__(
        self, dataset: Dataset, network: Any, config: TrainingConfig, worker: WorkerInfo, *, has_loss: bool
    ) -> None:
        self._reader = dataset.open_shards("train")
        self._resolve = functools.partial(resolve_columns, dataset, "data", network, split="train", has_loss=has_loss)
        self._dataset = dataset
        self._factors: NDArray[Any] | None = None
        samples = dataset.splits["train"]
        _check_batch_size(samples, config, worker)
        if config.class_weights is not None:
            target = dataset.list_columns("target")
            labels = [part[target[0].name] for part in dataset.open_shards("train", target).iterate()] if target else []
            self._factors = _compute_class_factors(labels, config.class_weights)
        sampler = BlockSampler(
            samples,
            config.batch_size,
            config.seed,
            config.shuffle,
            config.drop_last,
            blocks=self._reader.block_sizes,
            window=WINDOW_BLOCKS,
        )
        super().__init__(self._take(np.zeros(1, np.int64)), sampler, config, worker, dataset)

    def read(self, epoch: int, position: int) -> Iterator[Batch]:
        """Yield the batches of epoch `epoch` (from 0) from a position on, counted in samples done."""
        batches = super().read(epoch, position)
        with ThreadPoolExecutor(1, "shards") as pool:
            following = pool.submit(next, batches, None)
            while (batch := following.result()) is not None:
                following = pool.submit(next, batches, None)
                yield batch

    def _read_columns(self, indices: NDArray[Any]) -> Columns:
        # A worker without samples in the batch: preprocessing needs a row.
        columns = self._take(indices if len(indices) else np.zeros(1, np.int64))
        if len(indices):
            return columns
        return Columns(
            {name: array[:0] for name, array in columns.inputs.items()},
            {name: array[:0] for name, array in columns.targets.items()},
            None if columns.weight is None else columns.weight[:0],
        )

    def _take(self, indices: NDArray[Any]) -> Columns:
        columns: Columns = self._resolve(samples=build_samples(self._dataset, self._reader.take(indices)))
        return columns if self._factors is None else _apply_class_factors(columns, self._factors)


class PipelineSource:
    """Batches from a mindspore.dataset object in its order, which a resume does not restore.

    Args:
        dataset: A batched mindspore.dataset object, sharded by rank. Its columns are the network's inputs by name or
            in order, then the targets.
        network: The network.
        worker: Rank and world size.
        has_loss: Whether there is a loss function.
        field: Argument name, for messages.
    """

    def __init__(self, dataset: Any, network: Any, worker: WorkerInfo, *, has_loss: bool, field: str = "data") -> None:
        self.raw = dataset
        self.batch_size = int(dataset.get_batch_size()) * worker.size
        self.steps = int(dataset.get_dataset_size())
        self.samples = self.steps * self.batch_size
        self._size = worker.size
        if self.steps < 1:
            raise UserError(f"{field}: the dataset has no batch")
        names = list(dataset.get_col_names())
        self.layout = _arrange(names, network, has_loss, field)
        self._order = [names.index(name) for name in self.layout.names]

    def is_finished(self, position: int) -> bool:
        """Return whether an epoch has no batch at a position, counted in samples done."""
        return position > self.samples - self.batch_size

    def sample_inputs(self) -> dict[str, NDArray[Any]]:
        """Return zeros in a sample's shapes, by input name: reading a batch would change the order of the next ones."""
        shapes, types = self.raw.output_shapes(), self.raw.output_types()
        return {
            name: np.zeros((1, *shapes[index][1:]), types[index])
            for name, index in zip(self.layout.inputs, self._order, strict=False)
        }

    def read(self, epoch: int, position: int) -> Iterator[Batch]:
        """Yield the batches of epoch `epoch` (from 0) from a position on, counted in samples done."""
        for step, batch in enumerate(self.raw.create_tuple_iterator(num_epochs=1, do_copy=False)):
            if step * self.batch_size >= position:
                yield Batch(tuple(batch[index] for index in self._order), len(batch[0]) * self._size)


Source = ArraySource | ShardSource | PipelineSource


@dataclass(frozen=True)
class Validation:
    """Batches to evaluate after an epoch.

    Args:
        raw: The user's data, for callbacks.
        steps: Batch count.
        layout: The tensors' meaning.
        read: Returns the batches. A worker without samples in a batch gets the batch's first sample, which is not
            counted.
        worker: Rank and world size of the workers that share each batch; rank 0 of 1 if every worker has all samples.
        tasks: Task by target; empty where it is not known.
        labels: A dataset's target labels.
    """

    raw: Any
    steps: int
    layout: Layout
    read: Callable[[], Iterable[Batch]]
    worker: WorkerInfo = dataclasses.field(default_factory=WorkerInfo)
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] = ()


def resolve_train(data: Any, network: Any, config: TrainingConfig, worker: WorkerInfo, *, has_loss: bool) -> Source:
    """Return the batch source for `fit`'s argument `data`.

    Raises:
        UserError: `data` has a form that `fit` does not document, or does not fit the network.
    """
    data = open_data(data, "data")
    if hasattr(data, "create_tuple_iterator"):
        for option, given in (("augment", config.augment), ("class_weights", config.class_weights)):
            if given is not None:
                raise UserError(f"{option}: works on arrays; give a mindspore.dataset object its own map operations")
        return PipelineSource(data, network, worker, has_loss=has_loss)
    if isinstance(data, Dataset) and data.storage == "parquet":
        return ShardSource(data, network, config, worker, has_loss=has_loss)
    columns = resolve_columns(data, "data", network, split="train", has_loss=has_loss)
    return ArraySource(columns, config, worker, data)


def resolve_validation(
    validation: Any, data: Any, network: Any, worker: WorkerInfo, *, has_loss: bool
) -> Validation | None:
    """Return the batches for the argument `validation`; None means the split in a dataset given for `data`.

    Each worker evaluates a share of every batch from arrays, and all batches from a mindspore.dataset object.
    """
    if validation is None:
        data = open_data(data, "data")
        if not isinstance(data, Dataset) or not data.splits.get("validation"):
            return None
        validation = data
    validation = open_data(validation, "validation")
    if hasattr(validation, "create_tuple_iterator"):
        source = PipelineSource(validation, network, WorkerInfo(), has_loss=has_loss, field="validation")
        return Validation(validation, source.steps, source.layout, lambda: source.read(0, 0))
    from mindspore import Tensor

    resolve = functools.partial(
        resolve_columns, validation, "validation", network, split="validation", has_loss=has_loss
    )
    is_sharded = isinstance(validation, Dataset) and validation.storage == "parquet"
    reader = validation.open_shards("validation") if is_sharded else None

    def take(indices: NDArray[Any]) -> list[NDArray[Any]]:
        if reader is None:
            return [array[indices] for array in columns.arrays]
        found: Columns = resolve(samples=build_samples(validation, reader.take(indices)))
        return found.arrays

    if reader is None:
        columns, samples = (found := resolve()), found.samples
    else:
        samples = validation.splits["validation"]
        columns = resolve(samples=build_samples(validation, reader.take(np.zeros(1, np.int64))))
    layout = Layout(tuple(columns.inputs), tuple(columns.targets), columns.weight is not None)
    count = -(-samples // _EVALUATION_BATCH)

    def read() -> Iterator[Batch]:
        # At most two different batch sizes and two for a worker's shares, so at most three compilations.
        for index in range(count):
            batch = np.arange(samples)[get_part(samples, index, count)]
            own = batch[get_part(len(batch), worker.rank, worker.size)]
            yield Batch(tuple(map(Tensor, take(own if len(own) else batch[:1]))), len(batch))

    # Arrays stay in memory as tensors; shards are read in each evaluation.
    batches = list(read()) if reader is None else None
    known, labels = (validation.task, validation.labels) if isinstance(validation, Dataset) else ("", ())
    tasks = {name: known or infer_task(target) for name, target in columns.targets.items()}
    return Validation(validation, count, layout, read if batches is None else lambda: batches, worker, tasks, labels)


def _arrange(names: Sequence[str], network: Any, has_loss: bool, field: str) -> Layout:
    """Return the layout for a mindspore.dataset object's columns."""
    weights = [name for name in names if name in WEIGHT_NAMES]
    rest = [name for name in names if name not in weights]
    parameters = read_parameters(network)
    if not has_loss:
        return Layout(tuple(rest), (), bool(weights))
    inputs = [name for name in rest if name in parameters.names]
    if not inputs or len(inputs) < parameters.required:
        # By position: the last column is the target, unless another one has a target's name.
        targets = [name for name in rest if name in TARGET_NAMES] or rest[-1:]
        inputs = [name for name in rest if name not in targets]
    else:
        targets = [name for name in rest if name not in inputs]
    named = len(inputs) == 1 or all(name in parameters.names for name in inputs)
    ordered = order_inputs(dict.fromkeys(inputs), parameters, field) if named else inputs
    return Layout(tuple(ordered), tuple(targets), bool(weights))


def takes_target(augment: Callable[..., Any]) -> bool:
    """Return whether an augmentation changes the target too: it has three parameters without a default."""
    parameters = inspect.signature(augment).parameters.values()
    return sum(item.default is item.empty and item.kind in _POSITIONAL for item in parameters) == 3


def _check_batch_size(samples: int, config: TrainingConfig, worker: WorkerInfo) -> None:
    if config.batch_size > samples:
        raise UserError(f"batch_size: must be 1 to {samples}, the training samples, got {config.batch_size}")
    if config.batch_size < worker.size:
        raise UserError(
            f"batch_size: must be at least {worker.size}, the number of workers, got {config.batch_size}",
            hint="It counts the samples of one optimizer step over all workers.",
        )


def _weight_classes(columns: Columns, weights: Sequence[float] | str | None) -> Columns:
    """Return columns whose weight includes each sample's class factor."""
    if weights is None:
        return columns
    targets = list(columns.targets.values())
    return _apply_class_factors(columns, _compute_class_factors(targets if len(targets) == 1 else [], weights))


def _compute_class_factors(parts: Sequence[NDArray[Any]], weights: Sequence[float] | str) -> NDArray[Any]:
    """Return each class's factor.

    Args:
        parts: The labels: the only target, or its parts.
        weights: The option `class_weights`.
    """
    if len({part.ndim for part in parts}) != 1 or parts[0].ndim != 1 or parts[0].dtype.kind not in "iu":
        raise UserError("class_weights: need one target of integer labels, shape (N,)")
    labels = np.concatenate(parts)
    if labels.min() < 0:
        raise UserError(f"class_weights: labels must be at least 0, got {labels.min()}")
    counts = np.bincount(labels)
    if isinstance(weights, str):
        return np.asarray(len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1)))
    factors = np.asarray(weights, np.float64)
    if len(factors) < len(counts):
        raise UserError(f"class_weights: must be one per class ({len(counts)}), got {len(factors)}")
    return factors


def _apply_class_factors(columns: Columns, factors: NDArray[Any]) -> Columns:
    (labels,) = columns.targets.values()
    factor = factors[labels].astype(np.float32)
    weight = factor if columns.weight is None else factor * columns.weight
    return Columns(columns.inputs, columns.targets, weight)


def _count_tokens(columns: Columns) -> int:
    """Return a sample's tokens if inputs and targets are id sequences, such as a language model's."""
    first = next(iter(columns.inputs.values()))
    sequences = [array for array in (first, *columns.targets.values()) if array.ndim == 2 and array.dtype.kind in "iu"]
    return int(first.shape[1]) if len(sequences) == 1 + len(columns.targets) and columns.targets else 0
