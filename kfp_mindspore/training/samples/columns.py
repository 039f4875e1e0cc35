"""Sample columns: the forms in which data are given, and their order as network arguments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.samples import Samples, read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.settings import DATASET_VARIABLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET_NAMES = ("labels", "label", "target", "targets")
WEIGHT_NAMES = ("weight", "weights", "sample_weight")
_NARROWER = {"float64": "float32", "int64": "int32", "uint32": "int32", "uint64": "int32"}


@dataclass(frozen=True)
class Columns:
    """Equal-length arrays by name.

    Args:
        inputs: Arrays for the network's parameters, in `construct` order.
        targets: Arrays for the loss, in parameter order; empty for a network that needs none.
        weight: Factor for each sample's loss, float32 with shape (N,), or None.
    """

    inputs: Mapping[str, NDArray[Any]]
    targets: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    weight: NDArray[Any] | None = None

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """All arrays in the training step's argument order."""
        weights = [] if self.weight is None else [self.weight]
        return [*self.inputs.values(), *self.targets.values(), *weights]

    @property
    def samples(self) -> int:
        """Sample count."""
        return len(self.arrays[0])


@dataclass(frozen=True)
class Parameters:
    """A network's `construct` parameters.

    Args:
        names: Names in order.
        required: How many have no default.
        is_open: Whether it accepts any number (`*inputs`).
    """

    names: tuple[str, ...]
    required: int
    is_open: bool


def read_parameters(network: Any) -> Parameters:
    """Return a network's `construct` parameters."""
    found = list(inspect.signature(network.construct).parameters.values())
    fixed = [item for item in found if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    return Parameters(
        tuple(item.name for item in fixed),
        sum(item.default is item.empty for item in fixed),
        any(item.kind is item.VAR_POSITIONAL for item in found),
    )


def open_data(given: Any, field: str) -> Any:
    """Return the opened dataset for a directory, and data in any other form unchanged.

    Raises:
        UserError: Nothing is given for `data`, and KFP_MINDSPORE_DATASET_DIR is not set.
    """
    if given is None and field == "data":
        given = os.environ.get(DATASET_VARIABLE)
        if not given:
            raise UserError(f"data: not given, and {DATASET_VARIABLE} is not set")
    return Dataset.open(given) if isinstance(given, (str, Path)) else given


def resolve_columns(
    given: Any, field: str, network: Any, *, split: str, has_loss: bool, samples: Samples | None = None
) -> Columns:
    """Return the columns for the argument `data` or `validation`.

    Args:
        given: (inputs, targets) or (inputs, targets, weights), where inputs and targets are arrays, tuples or dicts of
            arrays; a dict with the inputs by name, `labels` or `target`, and `weight`; a pandas DataFrame with such
            columns; or a Dataset.
        field: Argument name, for messages.
        network: The network.
        split: A Dataset's split.
        has_loss: Whether there is a loss function; a network without takes the targets as inputs.
        samples: A Dataset's samples to use; default the whole split.

    Raises:
        UserError: It has another form, or does not fit the network.
    """
    parameters = read_parameters(network)
    if isinstance(given, Dataset):
        inputs, targets, weight = _name_samples(given, samples or read_samples(given, split))
    elif hasattr(given, "columns") and hasattr(given, "to_numpy"):
        inputs, targets, weight = _split_columns({str(name): given[name].to_numpy() for name in given.columns}, field)
        inputs = _stack_fields(inputs, parameters, field)
    elif isinstance(given, Mapping):
        inputs, targets, weight = _split_columns(given, field)
    elif isinstance(given, (tuple, list)) and len(given) in (2, 3):
        names = parameters.names
        inputs, targets = _name(given[0], names, "input"), _name(given[1], (), "target")
        weight = given[2] if len(given) == 3 else None
    else:
        raise UserError(
            f"{field}: must be (inputs, targets), a dict of arrays, a DataFrame, a Dataset, its directory or a "
            f"mindspore.dataset object, got {type(given).__name__}"
        )
    inputs = {name: _to_array(array, f"{field}.{name}") for name, array in inputs.items()}
    targets = {name: _to_array(array, f"{field}.{name}") for name, array in targets.items()}
    columns = Columns(
        order_inputs(inputs, parameters, field, extra=0 if has_loss else len(targets)),
        targets,
        None if weight is None else _to_weight(weight, field),
    )
    _check_lengths(columns, field)
    return columns


def order_inputs(inputs: Mapping[str, Any], parameters: Parameters, field: str, *, extra: int = 0) -> dict[str, Any]:
    """Return the inputs in the network's parameter order.

    One input needs no name; several are matched by name.

    Args:
        inputs: Inputs by name.
        parameters: `construct`'s parameters.
        field: Argument name, for messages.
        extra: Targets that are passed to the network too.

    Raises:
        UserError: Names or number differ from the network's.
    """
    names = parameters.names
    expected = f"the network's construct takes {', '.join(names) or 'no inputs'}"
    if len(inputs) > 1 and not parameters.is_open:
        missing = [name for name in names[: parameters.required - extra] if name not in inputs]
        unknown = [name for name in inputs if name not in names]
        if missing or unknown:
            raise UserError(f"{field}: has the inputs {', '.join(inputs)}, and {expected}; names must be equal")
        ordered = {name: inputs[name] for name in names if name in inputs}
        if list(ordered) != list(names[: len(ordered)]):
            raise UserError(f"{field}: {expected}; an input before a given one has no data")
        return ordered
    total = len(inputs) + extra
    if total < parameters.required or (total > len(names) and not parameters.is_open):
        raise UserError(f"{field}: has {total} input{'s' * (total != 1)}, and {expected}")
    return dict(inputs)


def infer_task(target: NDArray[Any]) -> str:
    """Return the task for a target given as an array, by dtype and shape."""
    import numpy as np

    if target.dtype.kind in "iu":
        return "classification" if target.ndim == 1 else "language_model"
    if target.ndim == 2 and np.isin(target, (0, 1)).all():
        return "multi_label"
    return "regression"


def _name_samples(
    dataset: Dataset, samples: Samples
) -> tuple[Mapping[str, Any], Mapping[str, Any], NDArray[Any] | None]:
    targets = {column.name: samples.target for column in dataset.list_columns("target")}
    return samples.inputs, targets, samples.weight


def _split_columns(given: Mapping[str, Any], field: str) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return inputs, targets and weight from columns by name."""
    found = dict(given)
    target = _pop_one(found, TARGET_NAMES, field)
    weight = _pop_one(found, WEIGHT_NAMES, field)
    if not found:
        raise UserError(f"{field}: has no input column, found {', '.join(given) or 'no columns'}")
    return found, {} if target is None else _name(target, (), "target"), weight


def _pop_one(columns: dict[str, Any], names: Sequence[str], field: str) -> Any:
    present = [name for name in names if name in columns]
    if len(present) > 1:
        raise UserError(f"{field}: has both {present[0]!r} and {present[1]!r}; expected one of {', '.join(names)}")
    return columns.pop(present[0]) if present else None


def _name(given: Any, names: Sequence[str], prefix: str) -> dict[str, Any]:
    """Return arrays by name; a tuple has the names given, otherwise numbered ones."""
    if isinstance(given, Mapping):
        return dict(given)
    if given is None:
        return {}
    arrays = given if isinstance(given, tuple) else (given,)
    numbered = [prefix if len(arrays) == 1 else f"{prefix}{index}" for index in range(len(arrays))]
    return dict(zip(names if len(names) >= len(arrays) else numbered, arrays, strict=False))


def _stack_fields(columns: dict[str, Any], parameters: Parameters, field: str) -> dict[str, Any]:
    """Return a DataFrame's columns by name if they are the network's inputs, otherwise stacked as the only input."""
    import numpy as np

    if parameters.is_open or set(columns) == set(parameters.names) or len(parameters.names) != 1:
        return columns
    for name, column in columns.items():
        if not np.issubdtype(column.dtype, np.number) and column.dtype != bool:
            raise UserError(
                f"{field}.{name}: must be numbers, got {column.dtype}",
                hint="load_dataset encodes categories and texts by preprocessing steps.",
            )
    return {parameters.names[0]: np.stack([column.astype(np.float32) for column in columns.values()], axis=1)}


def _to_array(given: Any, field: str) -> NDArray[Any]:
    """Return a contiguous array with a dtype that networks have: 64-bit numbers become 32-bit ones."""
    import numpy as np

    array = np.ascontiguousarray(given.asnumpy() if hasattr(given, "asnumpy") else given)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{field}: must be numbers, got {array.dtype}",
            hint="load_dataset encodes categories and texts by preprocessing steps.",
        )
    narrower = _NARROWER.get(array.dtype.name)
    if narrower is None:
        return array
    if array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(np.int32)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise UserError(f"{field}: must be within int32, got {array.min()} to {array.max()} ({array.dtype})")
    return array.astype(narrower)


def _to_weight(given: Any, field: str) -> NDArray[Any]:
    import numpy as np

    weight = _to_array(given, f"{field}.weight").astype(np.float32)
    if weight.ndim != 1 or not np.isfinite(weight).all() or (weight < 0).any():
        raise UserError(f"{field}.weight: must be finite numbers of at least 0, one per sample, got {weight.shape}")
    return weight


def _check_lengths(columns: Columns, field: str) -> None:
    named = {**columns.inputs, **columns.targets}
    if columns.weight is not None:
        named["weight"] = columns.weight
    scalars = [name for name, array in named.items() if array.ndim == 0]
    if scalars:
        raise UserError(f"{field}.{scalars[0]}: must have one row per sample, got a scalar")
    lengths = {name: len(array) for name, array in named.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"{field}: columns must be equally long, got "
            + ", ".join(f"{name} {length}" for name, length in lengths.items())
        )
    if not columns.samples:
        raise UserError(f"{field}: has no samples")
