"""Batch sources: NumPy arrays (fast), a dataset directory, or a mindspore.dataset object."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training.columns import (
    TARGET_NAMES,
    WEIGHT_NAMES,
    Columns,
    infer_task,
    open_data,
    order_inputs,
    read_parameters,
    resolve_columns,
)
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.sampler import Sampler, get_part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EVALUATION_BATCH = 256


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


class ArraySource:
    """Batches from arrays, shuffled by (seed, epoch), so that any epoch can be repeated.

    Each worker reads its share of every batch; the parts differ by at most one sample.

    Args:
        columns: The arrays.
        config: Batch size, seed, shuffle, drop_last, augmentation and class weights.
        worker: Rank and world size.
        raw: The data as given, for callbacks.
    """

    def __init__(self, columns: Columns, config: TrainingConfig, worker: WorkerInfo, raw: Any) -> None:
        batch_size = config.batch_size
        if batch_size > columns.samples:
            raise UserError(f"batch_size: must be 1 to {columns.samples}, the training samples, got {batch_size}")
        if batch_size < worker.size:
            raise UserError(
                f"batch_size: must be at least {worker.size}, the number of workers, got {batch_size}",
                hint="It counts the samples of one optimizer step over all workers.",
            )
        columns = _weight_classes(columns, config.class_weights)
        self.raw = raw
        self.batch_size = batch_size
        self.samples = columns.samples
        self.sampler = Sampler(columns.samples, batch_size, config.seed, config.shuffle, config.drop_last)
        self.steps = self.sampler.steps
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
        import numpy as np
        from mindspore import Tensor

        config, arrays, rank = self._config, self._columns.arrays, self._worker.rank
        for indices in self.sampler.read(epoch, position):
            own = indices[get_part(len(indices), rank, self._worker.size)]
            batch = [array[own] for array in arrays]
            if config.augment is not None and len(own):
                generator = np.random.default_rng((config.seed, epoch, position // self.batch_size, rank))
                batch[: len(self.layout.inputs)] = self._augment(batch, generator)
            yield Batch(tuple(map(Tensor, batch)), len(indices))
            position += len(indices)

    def _augment(self, batch: Sequence[NDArray[Any]], generator: np.random.Generator) -> list[NDArray[Any]]:
        assert self._config.augment is not None
        names = self.layout.inputs
        if len(names) == 1:
            return [self._config.augment(batch[0], generator)]
        augmented = self._config.augment(dict(zip(names, batch, strict=False)), generator)
        if not isinstance(augmented, Mapping) or augmented.keys() != set(names):
            raise UserError(f"augment: must return a dict of {', '.join(names)}, got {type(augmented).__name__}")
        return [augmented[name] for name in names]


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
        import numpy as np

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


Source = ArraySource | PipelineSource


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
    columns = resolve_columns(data, "data", network, split="train", has_loss=has_loss)
    return ArraySource(columns, config, worker, data)


def resolve_validation(
    validation: Any, data: Any, network: Any, worker: WorkerInfo, *, has_loss: bool
) -> Validation | None:
    """Return the batches for the argument `validation`; None means the split in a dataset given for `data`.

    Each worker evaluates its share of every batch from arrays, and all batches from a mindspore.dataset object.
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
    import numpy as np
    from mindspore import Tensor

    columns = resolve_columns(validation, "validation", network, split="validation", has_loss=has_loss)
    layout = Layout(tuple(columns.inputs), tuple(columns.targets), columns.weight is not None)
    count = -(-columns.samples // _EVALUATION_BATCH)
    # At most two different batch sizes and two for a worker's shares, so at most three compilations.
    batches = []
    for index in range(count):
        batch = np.arange(columns.samples)[get_part(columns.samples, index, count)]
        own = batch[get_part(len(batch), worker.rank, worker.size)]
        chosen = own if len(own) else batch[:1]
        batches.append(Batch(tuple(Tensor(array[chosen]) for array in columns.arrays), len(batch)))
    known, labels = (validation.task, validation.labels) if isinstance(validation, Dataset) else ("", ())
    tasks = {name: known or infer_task(target) for name, target in columns.targets.items()}
    return Validation(validation, count, layout, lambda: batches, worker, tasks, labels)


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


def _weight_classes(columns: Columns, weights: Sequence[float] | str | None) -> Columns:
    """Return columns whose weight includes each sample's class factor."""
    import numpy as np

    if weights is None:
        return columns
    targets = list(columns.targets.values())
    if len(targets) != 1 or targets[0].ndim != 1 or targets[0].dtype.kind not in "iu":
        raise UserError("class_weights: need one target of integer labels, shape (N,)")
    labels = targets[0]
    if labels.min() < 0:
        raise UserError(f"class_weights: labels must be at least 0, got {labels.min()}")
    counts = np.bincount(labels)
    if isinstance(weights, str):
        factors = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    else:
        factors = np.asarray(weights, np.float64)
        if len(factors) < len(counts):
            raise UserError(f"class_weights: must be one per class ({len(counts)}), got {len(factors)}")
    factor = factors[labels].astype(np.float32)
    weight = factor if columns.weight is None else factor * columns.weight
    return Columns(columns.inputs, columns.targets, weight)


def _count_tokens(columns: Columns) -> int:
    """Return a sample's tokens if inputs and targets are id sequences, such as a language model's."""
    first = next(iter(columns.inputs.values()))
    sequences = [array for array in (first, *columns.targets.values()) if array.ndim == 2 and array.dtype.kind in "iu"]
    return int(first.shape[1]) if len(sequences) == 1 + len(columns.targets) and columns.targets else 0
