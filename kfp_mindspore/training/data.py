"""Sources of batches: NumPy arrays (fast), a dataset directory, or a mindspore.dataset object."""

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
    read_columns,
    read_parameters,
)
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Layout:
    """Meaning of the tensors of a batch, in order: inputs, targets, then the weight of each sample.

    Args:
        inputs: Names of the network's inputs.
        targets: Names of the loss's targets.
        weighted: Whether the last tensor is the weight.
        tokens: Tokens of a sample of text; 0 for other data.
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    weighted: bool = False
    tokens: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return (*self.inputs, *self.targets, *(["weight"] if self.weighted else []))


class ArraySource:
    """Batches of arrays, shuffled by (seed, epoch), so that any epoch can be repeated.

    Samples that do not fill the last batch are left out of that epoch. Each worker reads its part of every batch.

    Args:
        columns: The arrays.
        config: Batch size, seed, shuffle, augmentation and class weights.
        worker: Rank and number of workers.
        raw: The data as given, for callbacks.
    """

    def __init__(self, columns: Columns, config: TrainingConfig, worker: WorkerInfo, raw: Any) -> None:
        batch_size = config.batch_size
        if batch_size > columns.samples:
            raise UserError(f"batch_size: must be 1 to {columns.samples}, the training samples, got {batch_size}")
        if batch_size % (worker.size * config.accumulate):
            parts = f"{worker.size} workers" if config.accumulate == 1 else f"accumulate = {config.accumulate}"
            parts += f" times {worker.size} workers" if config.accumulate > 1 and worker.size > 1 else ""
            raise UserError(
                f"batch_size: must be divisible by {parts}, got {batch_size}",
                hint="It counts the samples of one optimizer step over all workers.",
            )
        columns = _weight_classes(columns, config.class_weights)
        self.raw = raw
        self.batch_size = batch_size
        self.steps = columns.samples // batch_size
        self.layout = Layout(
            tuple(columns.inputs), tuple(columns.targets), columns.weight is not None, _count_tokens(columns)
        )
        self._columns = columns
        self._config = config
        self._worker = worker

    def read(self, epoch: int, start: int) -> Iterator[tuple[Any, ...]]:
        """Yield the tensors of each step of epoch `epoch` (from 0) from step `start` on."""
        import numpy as np
        from mindspore import Tensor

        config, arrays = self._config, self._columns.arrays
        samples = self._columns.samples
        if config.shuffle:
            order = np.random.default_rng((config.seed, epoch)).permutation(samples)
        else:
            order = np.arange(samples)
        part = self._worker.get_shard(self.batch_size)
        for step in range(start, self.steps):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size][part]
            batch = [array[chosen] for array in arrays]
            if config.augment is not None:
                generator = np.random.default_rng((config.seed, epoch, step, self._worker.rank))
                batch[: len(self.layout.inputs)] = self._augment(batch, generator)
            yield tuple(map(Tensor, batch))

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
    """Batches of a mindspore.dataset object in its order, which a resume does not restore.

    Args:
        dataset: A batched mindspore.dataset object, sharded by rank. Its columns are the network's inputs by name or
            in order, then the targets.
        network: The network.
        worker: Rank and number of workers.
        has_loss: Whether there is a loss function.
        field: Name of the argument, for messages.
    """

    def __init__(self, dataset: Any, network: Any, worker: WorkerInfo, *, has_loss: bool, field: str = "data") -> None:
        self.raw = dataset
        self.batch_size = int(dataset.get_batch_size()) * worker.size
        self.steps = int(dataset.get_dataset_size())
        if self.steps < 1:
            raise UserError(f"{field}: the dataset has no batch")
        names = list(dataset.get_col_names())
        self.layout = _arrange(names, network, has_loss, field)
        self._order = [names.index(name) for name in self.layout.names]

    def read(self, epoch: int, start: int) -> Iterator[tuple[Any, ...]]:
        """Yield the tensors of each step of epoch `epoch` (from 0) from step `start` on."""
        for step, batch in enumerate(self.raw.create_tuple_iterator(num_epochs=1, do_copy=False)):
            if step >= start:
                yield tuple(batch[index] for index in self._order)


Source = ArraySource | PipelineSource


@dataclass(frozen=True)
class Validation:
    """Batches to evaluate after an epoch.

    Args:
        raw: The user's data, for callbacks.
        steps: Number of batches.
        layout: Meaning of the tensors.
        read: Returns the tensors of each batch.
        tasks: Task by target; empty where it is not known.
        labels: Labels of a dataset's target.
    """

    raw: Any
    steps: int
    layout: Layout
    read: Callable[[], Iterable[tuple[Any, ...]]]
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] = ()


def resolve_train(data: Any, network: Any, config: TrainingConfig, worker: WorkerInfo, *, has_loss: bool) -> Source:
    """Return the source of batches for the argument `data` of `fit`.

    Raises:
        UserError: `data` has none of the forms that `fit` documents, or does not fit the network.
    """
    data = open_data(data, "data")
    if hasattr(data, "create_tuple_iterator"):
        for option, given in (("augment", config.augment), ("class_weights", config.class_weights)):
            if given is not None:
                raise UserError(f"{option}: works on arrays; give a mindspore.dataset object its own map operations")
        return PipelineSource(data, network, worker, has_loss=has_loss)
    columns = read_columns(data, "data", network, split="train", has_loss=has_loss)
    return ArraySource(columns, config, worker, data)


def resolve_validation(validation: Any, data: Any, network: Any, *, has_loss: bool) -> Validation | None:
    """Return the batches for the argument `validation`; None stands for the split of a dataset given for `data`."""
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

    columns = read_columns(validation, "validation", network, split="validation", has_loss=has_loss)
    layout = Layout(tuple(columns.inputs), tuple(columns.targets), columns.weight is not None)
    count = -(-columns.samples // _EVALUATION_BATCH)
    # At most two different sizes, so at most two compilations.
    parts = [np.array_split(array, count) for array in columns.arrays]
    batches = [tuple(map(Tensor, batch)) for batch in zip(*parts, strict=True)]
    known, labels = (validation.task, validation.labels) if isinstance(validation, Dataset) else ("", ())
    tasks = {name: known or infer_task(target) for name, target in columns.targets.items()}
    return Validation(validation, count, layout, lambda: batches, tasks, labels)


def _arrange(names: Sequence[str], network: Any, has_loss: bool, field: str) -> Layout:
    """Return the layout of a mindspore.dataset object's columns."""
    weights = [name for name in names if name in WEIGHT_NAMES]
    rest = [name for name in names if name not in weights]
    parameters = read_parameters(network)
    if not has_loss:
        return Layout(tuple(rest), (), bool(weights))
    inputs = [name for name in rest if name in parameters.names]
    if not inputs or len(inputs) < parameters.required:
        # By position: the last column is the target, unless another one has the name of a target.
        targets = [name for name in rest if name in TARGET_NAMES] or rest[-1:]
        inputs = [name for name in rest if name not in targets]
    else:
        targets = [name for name in rest if name not in inputs]
    named = len(inputs) == 1 or all(name in parameters.names for name in inputs)
    ordered = order_inputs(dict.fromkeys(inputs), parameters, field) if named else inputs
    return Layout(tuple(ordered), tuple(targets), bool(weights))


def _weight_classes(columns: Columns, weights: Sequence[float] | str | None) -> Columns:
    """Return columns whose weight has the factor of each sample's class."""
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
    """Return the tokens of a sample if inputs and targets are sequences of ids, such as a language model's."""
    first = next(iter(columns.inputs.values()))
    sequences = [array for array in (first, *columns.targets.values()) if array.ndim == 2 and array.dtype.kind in "iu"]
    return int(first.shape[1]) if len(sequences) == 1 + len(columns.targets) and columns.targets else 0
