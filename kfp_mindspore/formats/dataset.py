"""The dataset directory, version 3: named columns in splits, and a description with digests.

train.npz  validation.npz  test.npz     one array a column, see `formats/npz.py`; or .mindrecord files
train-00000.parquet …                   or shards, see `formats/shards.py`
dataset.json                            the fields of `Dataset`

Directories without shards are written as version 2, which lacks `shards` and `block_rows`, for earlier releases. A
version 1 directory (`features` and `labels` in each file) is opened as a version 2 dataset.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import files
from kfp_mindspore.canonical import digest_json, to_canonical_json
from kfp_mindspore.errors import NotFoundError, UserError, ValidationError
from kfp_mindspore.formats import mindrecord, npz
from kfp_mindspore.formats.column import Column as Column
from kfp_mindspore.formats.manifest import check_digest, naming_fields
from kfp_mindspore.formats.shards import ShardReader, SplitWriter, compute_block_rows, measure_row
from kfp_mindspore.formats.tensors import BYTES, get_dtype, get_row_type, is_ragged
from kfp_mindspore.outputs import OutputKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = Mapping[str, NDArray[Any]]

DESCRIPTION = "dataset.json"
# A dataset directory as an output.
OUTPUT = OutputKind(DESCRIPTION, listing="digests")
VERSION = 3
_UNSHARDED = 2
SPLITS = ("train", "validation", "test")
ROLES = ("feature", "target", "weight", "id")
STORAGES = ("npz", "mindrecord", "parquet")
UNKNOWN_RULES = ("ignore", "refuse")
TASKS = ("classification", "multi_label", "regression", "language_model", "ranking", "detection", "none")
# The description's keys that the content digest covers.
_CONTENT = ("task", "labels", "columns", "preprocessing")
# A version 1 file's array names, by role.
_FIRST_ARRAYS = {"feature": "features", "target": "labels"}


@dataclass(frozen=True)
class Dataset:
    """An opened dataset directory; `read_columns` returns a split.

    Args:
        path: The directory.
        name: Data name.
        task: One of `TASKS`.
        labels: Class names; a classification's target is an index into them.
        columns: The columns, features first in the network's input order.
        splits: Samples per split.
        seed: Split seed.
        preprocessing: Step declaration from feature columns to the network's inputs; {} for none.
        statistics: Minimum, maximum, mean and deviation in the training split, by column.
        report: The load's findings, such as counts for missing values and duplicates.
        storage: `npz`, `mindrecord` or `parquet`.
        digests: Each file's sha256, by file name.
        digest: The content's sha256, equal for equal columns in npz and mindrecord; in parquet also its files' digests.
        version: The directory's format version.
        shards: Rows by file name, for each split; {} for other storages than parquet.
        block_rows: Rows in a shard's blocks.
    """

    path: Path
    name: str
    task: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    splits: Mapping[str, int]
    seed: int
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    storage: str = "npz"
    digests: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""
    version: int = VERSION
    shards: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    block_rows: int = 1

    @classmethod
    def open(cls, path: Path | str) -> Dataset:
        """Read a directory's description; the splits' digests are checked when they are read.

        Raises:
            NotFoundError: There is no such directory, or it holds no dataset.json.
            UserError: The description is incomplete, or a split's file is missing; the message names it.
        """
        path = Path(path)
        if not path.is_dir():
            raise NotFoundError(
                f"{path}: no such dataset directory", hint="One is written by: kfp-mindspore dataset load SOURCE DIR"
            )
        if not (path / DESCRIPTION).is_file():
            raise NotFoundError(
                f"{path}: {DESCRIPTION} is missing, so this is no dataset directory",
                hint=f"Write one: kfp-mindspore dataset load {path} DIRECTORY, or load_dataset('{path}', DIRECTORY).",
            )
        dataset = _parse_description(path, files.read_json(path / DESCRIPTION))
        missing = [file for file in dataset.digests if not (path / file).is_file()]
        if missing:
            raise UserError(f"{path}: {', '.join(missing)} missing, named by {DESCRIPTION}")
        return dataset

    def list_columns(self, role: str) -> tuple[Column, ...]:
        """Return a role's columns."""
        return tuple(column for column in self.columns if column.role == role)

    def open_shards(self, split: str, columns: Sequence[Column] | None = None) -> ShardReader:
        """Return a split's reader, for storage parquet.

        Args:
            split: Such as `train`, `validation` or `test`.
            columns: The columns to read; default all.

        Raises:
            UserError: There is no such split.
            MissingExtraError: pyarrow is not installed.
        """
        self._check_split(split)
        return ShardReader(self.path, self.shards[split], columns or self.columns, self.block_rows, self.digests)

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise UserError(f"{self.path}: no split {split!r}, found {', '.join(self.splits)}")

    def read_columns(self, split: str, count: int | None = None) -> dict[str, NDArray[Any]]:
        """Read one split as it is stored, without preprocessing.

        Args:
            split: Such as `train`, `validation` or `test`.
            count: Only so many samples from the first on; None for all.

        Returns:
            Arrays with shape (N, *column.shape) by name; `bytes` columns as arrays of `bytes` objects.

        Raises:
            UserError: There is no such split, or its arrays have another shape or dtype than described.
            CorruptBundleError: A file has another digest than described.
        """
        self._check_split(split)
        wanted = self.splits[split] if count is None else min(count, self.splits[split])
        if self.storage == "parquet":
            return self._read_shards(split, wanted)
        file = self.path / _list_files(split, self.storage)[0]
        for name in _list_files(split, self.storage):
            check_digest(self.path / name, self.digests[name], hint="Load the dataset again.")
        if self.storage == "mindrecord":
            arrays = mindrecord.read_columns(file, {one.name: (one.dtype, one.shape) for one in self.columns})
        else:
            packed = npz.read_arrays(file)
            if self.version == 1:
                packed = {column.name: packed[_FIRST_ARRAYS[column.role]] for column in self.columns}
            arrays = npz.unpack_columns(file, [column.name for column in self.columns], packed)
        errors = _check_columns(self.columns, {split: arrays})
        if any(len(array) != self.splits[split] for array in arrays.values()):
            errors.append(f"{split}: must have {self.splits[split]} samples")
        if errors:
            raise ValidationError(errors, subject=str(file))
        return {name: array[:wanted] for name, array in arrays.items()}

    def _read_shards(self, split: str, count: int) -> dict[str, NDArray[Any]]:
        import numpy as np

        parts: list[dict[str, NDArray[Any]]] = []
        found = 0
        for part in self.open_shards(split).iterate() if count else ():
            parts.append({name: array[: count - found] for name, array in part.items()})
            found += len(next(iter(part.values())))
            if found >= count:
                break
        if not parts:
            return {column.name: _make_empty(column) for column in self.columns}
        return {column.name: np.concatenate([part[column.name] for part in parts]) for column in self.columns}


def write_dataset(
    output: Path | str,
    *,
    name: str,
    task: str,
    columns: Sequence[Column],
    splits: Mapping[str, Columns],
    labels: Sequence[str] = (),
    seed: int = 42,
    preprocessing: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Any] | None = None,
    report: Mapping[str, Any] | None = None,
    storage: str = "npz",
) -> Dataset:
    """Write a dataset directory; an existing one is replaced atomically.

    Args:
        output: The directory.
        name: Data name.
        task: One of `TASKS`.
        columns: The columns, features first; at most one target and one weight.
        splits: For each split an array with shape (N, *column.shape) a column; `bytes` columns as `bytes` objects.
        labels: Class names for a classification, or label names for a multi-label task.
        seed: Split seed.
        preprocessing: The preprocessing's declaration, see `kfp_mindspore.transform`.
        statistics: By column.
        report: The load's findings, JSON types.
        storage: `npz`, `mindrecord` for mindspore.dataset.MindDataset, or `parquet` for shards that `fit` streams.

    Returns:
        The dataset, opened.

    Raises:
        ValidationError: The arrays do not fit the columns, or the columns do not fit the task.
        MissingExtraError: MindSpore or pyarrow is needed for the storage and not installed.
    """
    errors = [*_check_task(task, columns, labels), *_check_columns(columns, splits)]
    if storage not in STORAGES:
        errors.append(f"storage: must be one of {', '.join(STORAGES)}, got {storage!r}")
    if not errors:
        errors = _check_targets(task, columns, labels, splits)
    if errors:
        raise ValidationError(errors, subject=f"dataset {name}")
    description = {
        "name": name,
        "task": task,
        "labels": list(labels),
        "columns": [asdict(column) for column in columns],
        "preprocessing": dict(preprocessing or {}),
        "seed": seed,
        "statistics": dict(statistics or {}),
        "report": dict(report or {}),
    }
    if storage == "parquet":
        rows = compute_block_rows(measure_row(splits["train"] if "train" in splits else next(iter(splits.values()))))
        return write_shards(Path(output), description, splits.keys(), columns, splits.items(), block_rows=rows)
    described = {key: description[key] for key in _CONTENT}
    digest = hashlib.sha256(to_canonical_json(described).encode())
    output = Path(output)
    with files.replace_directory(output, OUTPUT) as directory:
        for split, arrays in splits.items():
            ordered = {column.name: arrays[column.name] for column in columns}
            packed = npz.pack_columns(ordered)
            for key, array in packed.items():
                digest.update(f"\0{split}\0{key}\0{array.shape}\0".encode())
                digest.update(array.data.cast("B") if array.size else b"")
            file = directory / _list_files(split, storage)[0]
            if storage == "mindrecord":
                mindrecord.write_columns(file, ordered)
            else:
                npz.write_arrays(file, packed)
        names = [name for split in splits for name in _list_files(split, storage)]
        digests = {name: files.digest_file(directory / name) for name in names}
        description |= {
            "version": _UNSHARDED,
            "splits": {split: _count(arrays) for split, arrays in splits.items()},
            "storage": storage,
            "digests": digests,
            "digest": digest.hexdigest(),
        }
        files.write_json(directory / DESCRIPTION, description)
    return Dataset.open(output)


def write_shards(
    output: Path,
    description: Mapping[str, Any],
    splits: Iterable[str],
    columns: Sequence[Column],
    parts: Iterable[tuple[str, Columns]],
    *,
    block_rows: int,
) -> Dataset:
    """Write a dataset directory with Parquet shards from parts that need not fit in memory together.

    Args:
        output: The directory; an existing one is replaced atomically.
        description: The description's `name`, `seed`, `statistics` and `report`, and the keys of `_CONTENT`.
        splits: The splits' names.
        columns: The columns.
        parts: Rows as (split, arrays by column), in the order in which they are stored.
        block_rows: Rows in a block, by `compute_block_rows`.

    Returns:
        The dataset, opened.

    Raises:
        ValidationError: Arrays do not fit the columns.
    """
    open_sizes = [column.name for column in columns if -1 in column.shape[1:]]
    if open_sizes:
        raise ValidationError([f"column {open_sizes[0]}: storage parquet has lists with one free size only"])
    with files.replace_directory(output, OUTPUT) as directory:
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(SplitWriter(directory, split, columns, block_rows)) for split in splits
            }
            for split, arrays in parts:
                if errors := _check_columns(columns, {split: arrays}):
                    raise ValidationError(errors, subject=f"dataset {description['name']}")
                if _count(arrays):
                    writers[split].write(arrays)
        shards = {split: writer.shards for split, writer in writers.items()}
        digests = {file: files.digest_file(directory / file) for split in shards.values() for file in split}
        content = [{key: description[key] for key in _CONTENT}, shards, list(digests.values())]
        files.write_json(
            directory / DESCRIPTION,
            {
                "version": VERSION,
                **description,
                "splits": {split: sum(rows.values()) for split, rows in shards.items()},
                "storage": "parquet",
                "shards": shards,
                "block_rows": block_rows,
                "digests": digests,
                "digest": digest_json(content),
            },
        )
    return Dataset.open(output)


def copy_dataset(source: Dataset, output: Path | str) -> Dataset:
    """Copy a dataset directory after its digests were checked; an existing one is replaced atomically."""
    for file, digest in source.digests.items():
        check_digest(source.path / file, digest, hint="Load the dataset again.")
    output = Path(output)
    with files.replace_directory(output, OUTPUT) as directory:
        for file in (DESCRIPTION, *source.digests):
            shutil.copyfile(source.path / file, directory / file)
    return Dataset.open(output)


def _list_files(split: str, storage: str) -> tuple[str, ...]:
    file = f"{split}.{storage}"
    return (file, f"{file}.db") if storage == "mindrecord" else (file,)


def _get_rank(split: str) -> tuple[int, str]:
    return (SPLITS.index(split) if split in SPLITS else len(SPLITS)), split


def _make_empty(column: Column) -> NDArray[Any]:
    import numpy as np

    if column.dtype == BYTES or column.shape[:1] == (-1,):
        return np.empty((0, *(column.shape if column.dtype == BYTES else ())), object)
    return np.empty((0, *column.shape), column.dtype)


def _count(arrays: Columns) -> int:
    return len(next(iter(arrays.values())))


def _check_task(task: str, columns: Sequence[Column], labels: Sequence[str]) -> list[str]:
    errors = [] if task in TASKS else [f"task: must be one of {', '.join(TASKS)}, got {task!r}"]
    errors += [
        f"column {column.name}: role must be one of {', '.join(ROLES)}, got {column.role!r}"
        for column in columns
        if column.role not in ROLES
    ]
    names = [column.name for column in columns]
    errors += [f"column {name}: must be named once" for name in sorted({one for one in names if names.count(one) > 1})]
    if not any(column.role == "feature" for column in columns):
        errors.append("columns: need at least one of role 'feature'")
    errors += [
        f"columns: must have at most one of role {role!r}, got {', '.join(found)}"
        for role in ("target", "weight")
        if len(found := [column.name for column in columns if column.role == role]) > 1
    ]
    if task == "classification" and not labels:
        errors.append("labels: a classification needs its class names")
    return errors


def _check_columns(columns: Sequence[Column], splits: Mapping[str, Columns]) -> list[str]:
    errors = []
    for split, arrays in splits.items():
        for column in columns:
            if column.name not in arrays:
                errors.append(f"{split}: no array {column.name!r}, found {', '.join(arrays) or 'none'}")
                continue
            array = arrays[column.name]
            dtype, shape = get_row_type(array) if is_ragged(array) else (get_dtype(array), array.shape)
            if not len(array) and array.dtype == object:
                continue
            if dtype != column.dtype:
                errors.append(f"{split}: {column.name}: dtype must be {column.dtype}, got {dtype}")
            if shape[1:] != column.shape:
                expected = "(N, " + ", ".join(map(str, column.shape)) + ")"
                errors.append(f"{split}: {column.name}: shape must be {expected}, got {array.shape}")
        counts = {name: len(array) for name, array in arrays.items() if array.ndim}
        if len(set(counts.values())) > 1:
            errors.append(f"{split}: columns must have as many samples, got {counts}")
    return errors


def _check_targets(
    task: str, columns: Sequence[Column], labels: Sequence[str], splits: Mapping[str, Columns]
) -> list[str]:
    if task != "classification":
        return []
    errors = []
    for column in columns:
        if column.role != "target":
            continue
        for split, arrays in splits.items():
            array = arrays[column.name]
            if array.dtype.name != "int32" or array.ndim != 1:
                errors.append(f"{split}: {column.name}: must be int32 of shape (N,), got {array.dtype} {array.shape}")
            elif len(array) and not 0 <= int(array.min()) <= int(array.max()) < len(labels):
                found = f"{array.min()} to {array.max()}"
                errors.append(f"{split}: {column.name}: must be 0 to {len(labels) - 1}, got {found}")
    return errors


def _parse_description(path: Path, raw: Any) -> Dataset:
    file = path / DESCRIPTION
    with naming_fields(file, "a dataset's description"):
        version = int(raw.get("version", 1))
        if version > VERSION:
            raise UserError(f"{file}: version must be at most {VERSION}, got {version}", hint="Update the package.")
        if version == 1:
            raw = _convert_first(raw)
        dataset = Dataset(
            path=path,
            name=str(raw["name"]),
            task=str(raw["task"]),
            labels=tuple(str(label) for label in raw["labels"]),
            columns=tuple(Column.from_dict(column) for column in raw["columns"]),
            splits={str(split): int(raw["splits"][split]) for split in sorted(raw["splits"], key=_get_rank)},
            seed=int(raw["seed"]),
            preprocessing=dict(raw["preprocessing"]),
            statistics=dict(raw["statistics"]),
            report=dict(raw["report"]),
            storage=str(raw["storage"]),
            digests={str(name): str(digest) for name, digest in raw["digests"].items()},
            digest=str(raw["digest"]),
            version=version,
            shards={
                str(split): {str(file): int(rows) for file, rows in found.items()}
                for split, found in raw.get("shards", {}).items()
            },
            block_rows=int(raw.get("block_rows", 1)),
        )
    if dataset.storage not in STORAGES:
        raise UserError(f"{file}: storage: must be one of {', '.join(STORAGES)}, got {dataset.storage!r}")
    if dataset.storage == "parquet":
        names = [file for split in dataset.splits for file in dataset.shards.get(split, {})]
        _check_shards(file, dataset)
    else:
        names = [name for split in dataset.splits for name in _list_files(split, dataset.storage)]
    if undigested := [name for name in names if name not in dataset.digests]:
        raise UserError(f"{file}: digests: no entry for {undigested[0]}")
    return dataset


def _check_shards(file: Path, dataset: Dataset) -> None:
    if dataset.block_rows < 1:
        raise UserError(f"{file}: block_rows: must be at least 1, got {dataset.block_rows}")
    for split, rows in dataset.splits.items():
        if (found := sum(dataset.shards.get(split, {}).values())) != rows:
            raise UserError(f"{file}: shards: {split}: must have {rows} rows together, got {found}")


def _convert_first(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a version 1 description in version 2's form; its content digest is computed from the file digests."""
    features = raw["features"]
    return {
        **{key: raw[key] for key in ("name", "labels", "splits", "seed", "digests")},
        "task": "classification",
        "columns": [
            {**features, "role": "feature", "fields": []},
            {"name": "label", "dtype": "int32", "shape": [], "role": "target", "fields": []},
        ],
        "preprocessing": {},
        "statistics": {},
        "report": {},
        "storage": "npz",
        "digest": digest_json(raw["digests"]),
    }
