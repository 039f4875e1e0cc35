"""A dataset directory's samples as training, export and evaluation use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import ROLES, Dataset
from kfp_mindspore.formats.rows import RowLayout, is_stacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUP = "group"
"""Column of role `id` with the query of each sample of a ranking."""


@dataclass(frozen=True)
class Samples:
    """Samples in a split.

    Args:
        inputs: The network's inputs by name, contiguous arrays with shape (N, …), after the declared preprocessing.
        target: Encoded targets with shape (N, …); None without a target column.
        weight: Sample weights with shape (N,); None without a weight column.
        ids: Columns with role `id` by name.
        raw: Feature columns as stored, by name: what a request to the server has.
    """

    inputs: dict[str, NDArray[Any]]
    target: NDArray[Any] | None
    weight: NDArray[Any] | None
    ids: dict[str, NDArray[Any]]
    raw: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.raw.values())))


def read_samples(
    dataset: Dataset | Path | str,
    split: str,
    *,
    count: int | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    layout: RowLayout | None = None,
) -> Samples:
    """Read a split and apply the dataset's preprocessing, or a model's.

    Args:
        dataset: A dataset or its directory.
        split: Split name.
        count: Only so many samples from the first on; None for all.
        preprocessing: Declaration that replaces the dataset's, such as a checkpoint's or a bundle's; None to keep the
            dataset's, empty for none.
        layout: A model's columns: the dataset's columns are selected and ordered by these names, since another file may
            have them in another order; None to keep the dataset's.

    Raises:
        UserError: There is no such dataset or split, it is damaged, or the preprocessing does not fit its columns.
    """
    if count is not None and count < 1:
        raise UserError(f"count: must be at least 1, got {count}")
    if not isinstance(dataset, Dataset):
        dataset = Dataset.open(dataset)
    return build_samples(dataset, dataset.read_columns(split, count), preprocessing=preprocessing, layout=layout)


def build_samples(
    dataset: Dataset,
    arrays: Mapping[str, NDArray[Any]],
    *,
    preprocessing: Mapping[str, Any] | None = None,
    layout: RowLayout | None = None,
) -> Samples:
    """Return the samples for a dataset's columns as stored; it takes the arguments that `read_samples` takes.

    Raises:
        UserError: The preprocessing does not fit the columns.
    """
    import numpy as np

    by_role = {role: {column.name: arrays[column.name] for column in dataset.list_columns(role)} for role in ROLES}
    raw = by_role["feature"]
    if layout is not None:
        raw = arrange_columns(dataset, raw, layout)
    declaration = dataset.preprocessing if preprocessing is None else preprocessing
    inputs = raw
    if declaration:
        from kfp_mindspore.data.preprocessing import apply_declaration

        inputs = apply_declaration(declaration, raw, str(dataset.path))
    return Samples(
        inputs={name: np.ascontiguousarray(array) for name, array in inputs.items()},
        target=next(iter(by_role["target"].values()), None),
        weight=next(iter(by_role["weight"].values()), None),
        ids=by_role["id"],
        raw=raw,
    )


def arrange_columns(dataset: Dataset, raw: Mapping[str, NDArray[Any]], layout: RowLayout) -> dict[str, NDArray[Any]]:
    """Return the inputs by a layout for a dataset's feature columns; other datasets' as they are.

    Raises:
        UserError: A column is missing, or its values do not fit the layout.
    """
    from kfp_mindspore.transform.base import TransformInputError
    from kfp_mindspore.transform.rows import RowPacker, unpack_columns

    parts = [
        (column.name, column.fields or (column.name,), is_stacked(column)) for column in dataset.list_columns("feature")
    ]
    columns, packer = unpack_columns(parts, raw), RowPacker(layout, finite=False)
    if not packer.accepts(columns):
        return dict(raw)
    try:
        return packer.pack_columns(columns)
    except TransformInputError as error:
        raise UserError(f"{dataset.path}: {error.message}") from None
