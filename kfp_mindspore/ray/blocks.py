"""Sample blocks as Ray Data's workers read them: fields, roles, hashes and splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from kfp_mindspore.data.columns import (
    Features,
    build_features,
    check_infinite,
    check_missing,
    drop_incomplete,
    fill_missing,
)
from kfp_mindspore.data.moments import MomentFormat, parse_moments
from kfp_mindspore.data.options import DatasetOptions
from kfp_mindspore.data.roles import Roles, resolve_roles
from kfp_mindspore.data.sources.base import TARGETS, Source, SourceRequest, is_index
from kfp_mindspore.data.sources.tables import read_batches
from kfp_mindspore.data.split import parse_mode, parse_names
from kfp_mindspore.formats.dataset import SPLITS
from kfp_mindspore.formats.names import normalize_name
from kfp_mindspore.formats.tensors import is_ragged
from kfp_mindspore.transform.images import DecodeImage, Resize

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Bounds:
    """What decides on a sample besides its own values; keys below a bound are inside.

    Args:
        limits: Bound for the kept samples by split; -1 for a source without its own splits.
        times: The validation split's first time, and the test split's.
        moments: The time format in texts; None for numbers.
        classes: Bounds of the test split, and of test and validation, by class.
    """

    limits: Mapping[int, np.uint64] = field(default_factory=dict)
    times: tuple[Any, Any] | None = None
    moments: MomentFormat | None = None
    classes: Mapping[Any, tuple[np.uint64, np.uint64]] | None = None


@dataclass(frozen=True)
class Block:
    """A block's samples that are kept.

    Args:
        source: Their fields.
        roles: The fields' roles.
        features: The feature columns.
        splits: Indexes into SPLITS.
        hashes: The hashes that split them.
        keys: Hashes that do not depend on the split.
    """

    source: Source
    roles: Roles
    features: Features
    splits: NDArray[np.int8]
    hashes: NDArray[np.uint64]
    keys: NDArray[np.uint64]


@dataclass(frozen=True)
class BlockReader:
    """How a worker reads a block: the fields, their roles and the samples' splits.

    Args:
        where: File and format, for messages.
        request: The needed fields.
        options: The load's options.
        is_images: Whether the blocks have image files and their paths.
        has_splits: Whether the paths of image files name the splits.
        bounds: What the passes before have found.
    """

    where: str
    request: SourceRequest
    options: DatasetOptions
    is_images: bool = False
    has_splits: bool = False
    bounds: Bounds = Bounds()

    def read(self, table: Any) -> Block | None:
        """Return a block's samples, or None when none is complete, or the limit keeps none of them."""
        options = self.options
        source, roles, hashes, given = self.read_fields(table)
        if not len(source):
            return None
        keys = mix_hashes(hashes)
        if options.limit and self.bounds.limits:
            groups = np.full(len(source), -1, np.int8) if given is None else given
            kept = np.ones(len(source), bool)
            for split, bound in self.bounds.limits.items():
                kept &= (groups != split) | (keys < bound)
            if not kept.any():
                return None
            source.columns = {name: array[kept] for name, array in source.columns.items()}
            hashes, keys, given = hashes[kept], keys[kept], None if given is None else given[kept]
        splits = self._split(source, roles, hashes) if given is None else given
        features = build_features(source, roles)
        if not isinstance(options.missing, str):
            fill_missing(features.columns, {"train": features.arrays}, options.missing)
        return Block(source, roles, features, splits, hashes, keys)

    def read_fields(self, table: Any) -> tuple[Source, Roles, NDArray[np.uint64], NDArray[np.int8] | None]:
        """Return a block's fields, their roles, each sample's hash, and its split where the source has splits.

        The hash is that of the group, else of the ids, else of features and target.
        """
        options = self.options
        kind, order = parse_mode(options.split) if options.split else ("random", "")
        source = self._read_source(table)
        roles = resolve_roles(
            source,
            target=list(options.target),
            weight=options.weight,
            ids=options.ids,
            order=order,
            features=options.features,
            inputs=options.inputs,
        )
        check_infinite(source, roles, options.infinite)
        missing = check_missing(source, roles, options.missing)
        if missing and options.missing == "drop":
            drop_incomplete(source, missing, is_block=True)
        fields = [roles.order] if kind == "group" else roles.ids or (*roles.target, *roles.list_features())
        hashes = np.zeros(len(source), np.uint64)
        for name in fields:
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + hash_rows(source.columns[name], options.seed)
        given = parse_names(source.columns[roles.order]) if kind == "column" else source.splits
        return source, roles, hashes, given

    def read_order(self, source: Source, roles: Roles) -> NDArray[Any]:
        """Return the samples' times as numbers."""
        values = source.columns[roles.order]
        if self.bounds.moments is None:
            return values
        return parse_moments(values, self.bounds.moments, f"{self.where}: {roles.order}")

    def _read_source(self, table: Any) -> Source:
        if not self.is_images:
            table = table.rename_columns(list(map(normalize_name, table.column_names)))
            exact = self.request.exact | {name for name in table.column_names if name.lower() in TARGETS}
            names = [
                name
                for name in table.column_names
                if name in exact or not is_index(name)
                if self.request.fields is None or name in self.request.fields | exact
            ]
            table = table.select(names)
            return read_batches("Ray", self.where, table.schema, table.to_batches(), self.request, exact)
        paths = [Path(path) for path in table.column("path").to_pylist()]
        contents = np.empty(len(paths), object)
        contents[:] = table.column("bytes").to_pylist()
        labels = np.empty(len(paths), object)
        labels[:] = [normalize_name(path.parent.name).encode() for path in paths]
        splits = None
        if self.has_splits:
            splits = np.array([SPLITS.index(path.parent.parent.name) for path in paths], np.int8)
        steps = (DecodeImage(column="image"), Resize((1, 1), column="image"))
        columns = {"image": contents, "label": labels}
        return Source("images", self.where, columns, ("label",), task="classification", splits=splits, steps=steps)

    def _split(self, source: Source, roles: Roles, hashes: NDArray[np.uint64]) -> NDArray[np.int8]:
        """Assign samples by their hashes, or by their times."""
        bounds = self.bounds
        if bounds.times is not None:
            times = self.read_order(source, roles)
            return np.where(times >= bounds.times[1], 2, np.where(times >= bounds.times[0], 1, 0)).astype(np.int8)
        test, both = list_bounds(self.options)
        lowest, low = np.full(len(source), test), np.full(len(source), both)
        if bounds.classes is not None:
            classes = source.columns[roles.target[0]]
            for value in set(classes.tolist()):
                lowest[classes == value], low[classes == value] = bounds.classes[value]
        return np.where(hashes < lowest, 2, np.where(hashes < low, 1, 0)).astype(np.int8)


def list_bounds(options: DatasetOptions) -> tuple[np.uint64, np.uint64]:
    """Return the hashes below which a sample is in the test split, and in test or validation."""
    both = options.test_fraction + options.validation_fraction
    return np.uint64(int(options.test_fraction * 2**53) << 11), np.uint64(int(both * 2**53) << 11)


def hash_rows(array: NDArray[Any], seed: int) -> NDArray[Any]:
    """Return a 64-bit hash a row that is the same in every process."""
    rows = array
    if array.ndim > 1 or is_ragged(array):
        rows = np.empty(len(array), object)
        rows[:] = [np.ascontiguousarray(row).tobytes() for row in array]
    found: NDArray[Any] = pd.util.hash_array(rows, hash_key=f"{seed % 10**16:016}", categorize=False)
    if rows.dtype != object:
        # pandas mixes numbers without the key.
        found = pd.util.hash_array((found ^ np.uint64(seed % 2**63)), categorize=False)
    return found


def mix_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return hashes that do not depend on those that split the samples."""
    found: NDArray[np.uint64] = pd.util.hash_array(hashes ^ np.uint64(0xD1B54A32D192ED03), categorize=False)
    return found
