"""Batches of a Ray dataset as MindSpore tensors, with `iter_torch_batches`' signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from mindspore import dtype as mstype
    from numpy.typing import NDArray


class _Batches:
    """Converted batches; each iteration reads the dataset again."""

    def __init__(self, batches: Iterable[Mapping[str, NDArray[Any]]], convert: Callable[[Any], Any]) -> None:
        self._batches = batches
        self._convert = convert

    def __iter__(self) -> Iterator[Any]:
        return map(self._convert, self._batches)


def iter_mindspore_batches(
    shard: Any,
    *,
    prefetch_batches: int = 1,
    batch_size: int | None = 256,
    dtypes: mstype.Type | Mapping[str, mstype.Type] | None = None,
    collate_fn: Callable[[dict[str, NDArray[Any]]], Any] | None = None,
    drop_last: bool = False,
    local_shuffle_buffer_size: int | None = None,
    local_shuffle_seed: int | None = None,
) -> Iterable[Any]:
    """Return an iterable over a dataset's batches as dicts with MindSpore tensors.

    It takes the arguments that Ray's `iter_torch_batches` takes, without `device` and `pin_memory`.

    Args:
        shard: A worker's share by `ray.train.get_dataset_shard`, or any Ray dataset or data iterator.
        prefetch_batches: Batches that are fetched ahead.
        batch_size: Rows in a batch; None for Ray's blocks as they are.
        dtypes: The tensors' dtype, one for all columns or by column; None for the columns' own.
        collate_fn: Returns a batch from a dict of NumPy arrays; not with `dtypes`.
        drop_last: Whether a last batch with fewer rows is left out.
        local_shuffle_buffer_size: Least rows in the local shuffle buffer; None not to shuffle.
        local_shuffle_seed: Seed for the local shuffle.

    Returns:
        An iterable that can be iterated once per epoch: dicts of tensors by column, or what `collate_fn` returns.

    Raises:
        UserError: `collate_fn` and `dtypes` are given together. While iterating: `dtypes` names another column, or a
            column holds texts or rows with different shapes.
    """
    if collate_fn is not None and dtypes is not None:
        raise UserError("dtypes: cannot be combined with collate_fn, which returns tensors with dtypes of its own")
    batches = shard.iter_batches(
        prefetch_batches=prefetch_batches,
        batch_size=batch_size,
        batch_format="numpy",
        drop_last=drop_last,
        local_shuffle_buffer_size=local_shuffle_buffer_size,
        local_shuffle_seed=local_shuffle_seed,
    )
    return _Batches(batches, collate_fn or (lambda batch: _to_tensors(batch, dtypes)))


def _to_tensors(batch: Mapping[str, NDArray[Any]], dtypes: Any) -> dict[str, Any]:
    from mindspore import Tensor

    by_column = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(batch, dtypes)
    if unknown := [name for name in by_column if name not in batch]:
        raise UserError(f"dtypes: no column {unknown[0]!r}, found {', '.join(batch)}")
    for name, array in batch.items():
        if array.dtype.kind not in "biuf":
            raise UserError(
                f"column {name!r}: must hold numbers with one shape, got {array.dtype}",
                hint="Convert the column by map_batches, leave it out by select_columns, or give collate_fn.",
            )
    return {name: Tensor(array, by_column.get(name)) for name, array in batch.items()}
