"""Data larger than memory to a dataset directory with Parquet shards, by Ray Data in two passes.

The first pass assigns each sample to a split by a hash and collects statistics of the training split; the second one
converts the samples, and this process writes them as they arrive.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import ray
from ray.data import DataContext

from kfp_mindspore import events
from kfp_mindspore.data.columns import Features, build_features, check_missing, drop_incomplete, fill_missing
from kfp_mindspore.data.fetch import fetch_source
from kfp_mindspore.data.options import DatasetOptions
from kfp_mindspore.data.preprocessing import build_given, fit_preprocessing, get_max_pixels
from kfp_mindspore.data.roles import Roles, list_exact_fields, list_named_fields, resolve_roles
from kfp_mindspore.data.sources.base import TARGETS, Source, SourceRequest
from kfp_mindspore.data.sources.formats import recognise_format
from kfp_mindspore.data.sources.images import list_images
from kfp_mindspore.data.sources.tables import read_batches
from kfp_mindspore.data.split import parse_mode, parse_names
from kfp_mindspore.data.targets import check_target, encode_target
from kfp_mindspore.errors import KfpMindSporeError, UserError, ValidationError
from kfp_mindspore.formats.dataset import SPLITS, Column, Dataset, write_shards
from kfp_mindspore.formats.shards import compute_block_rows, decode_column, encode_columns, measure_row
from kfp_mindspore.formats.tensors import BYTES, is_ragged
from kfp_mindspore.transform.categories import OneHot, Vocabulary
from kfp_mindspore.transform.images import DecodeImage, Resize, check_image
from kfp_mindspore.transform.lists import Pad
from kfp_mindspore.transform.pipeline import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

FORMATS = ("parquet", "csv", "jsonl", "images")
_BLOCK_BYTES = 16 << 20
_SAMPLE_ROWS = 1000
# More different texts are no categories; they need a Tokenize step with values.
_MAX_VALUES = 10_000
_CLASSES = 20


@dataclass
class _Moments:
    """Count, mean, squared deviations, least and greatest value by field; parts are merged by Chan's formulas."""

    count: float
    mean: NDArray[Any]
    squares: NDArray[Any]
    least: NDArray[Any]
    greatest: NDArray[Any]

    @classmethod
    def measure(cls, array: NDArray[Any]) -> _Moments:
        rows = array.astype(np.float64) if array.ndim == 2 else array.reshape(-1, 1).astype(np.float64)
        mean = rows.mean(axis=0)
        return cls(len(rows), mean, ((rows - mean) ** 2).sum(axis=0), rows.min(axis=0), rows.max(axis=0))

    def merge(self, other: _Moments) -> _Moments:
        count = self.count + other.count
        delta = other.mean - self.mean
        squares = self.squares + other.squares + delta**2 * self.count * other.count / count
        least, greatest = np.minimum(self.least, other.least), np.maximum(self.greatest, other.greatest)
        return _Moments(count, self.mean + delta * other.count / count, squares, least, greatest)

    def describe(self, column: Column) -> dict[str, Any]:
        found = {
            "min": self.least,
            "max": self.greatest,
            "mean": self.mean,
            "std": np.sqrt(self.squares / self.count),
        }
        return {key: value.tolist() if len(column.shape) == 1 else float(value[0]) for key, value in found.items()}


@dataclass
class _Findings:
    """What the first pass finds, in one block or in all."""

    counts: Counter[str] = field(default_factory=Counter)
    moments: dict[str, _Moments] = field(default_factory=dict)
    values: dict[str, set[Any]] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    dropped: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    modes: set[str] = field(default_factory=set)

    def merge(self, other: _Findings) -> None:
        self.counts += other.counts
        self.dropped += other.dropped
        self.sizes += other.sizes
        self.modes |= other.modes
        for name, moments in other.moments.items():
            self.moments[name] = self.moments[name].merge(moments) if name in self.moments else moments
        for name, values in other.values.items():
            known_values = self.values.setdefault(name, set())
            known_values.update(values)
            if len(known_values) > _MAX_VALUES and isinstance(next(iter(known_values)), bytes):
                raise UserError(f"{name}: has more than {_MAX_VALUES} different values, which are no categories")
        for name, column in other.columns.items():
            known = self.columns.setdefault(name, column)
            if column != known:
                # An integer column may fit int32 in one block only.
                dtype = (
                    np.promote_types(known.dtype, column.dtype).name if BYTES not in (known.dtype, column.dtype) else ""
                )
                if not dtype or known.shape != column.shape:
                    raise UserError(
                        f"{name}: must have one type and shape, got {known.dtype} {known.shape} and "
                        f"{column.dtype} {column.shape}"
                    )
                self.columns[name] = dataclasses.replace(known, dtype=dtype)


@dataclass(frozen=True)
class _Reader:
    """How a worker reads a block: the fields, their roles and the samples' splits.

    Args:
        where: File and format, for messages.
        request: The needed fields.
        options: The load's options.
        is_images: Whether the blocks have image files and their paths.
        has_splits: Whether the paths of image files name the splits.
    """

    where: str
    request: SourceRequest
    options: DatasetOptions
    is_images: bool = False
    has_splits: bool = False

    def read(self, table: Any) -> tuple[Source, Roles, Features, NDArray[Any]]:
        """Return a block's fields, roles and feature columns, and each sample's index into SPLITS."""
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
        missing = check_missing(source, roles, options.missing)
        if missing and options.missing == "drop":
            drop_incomplete(source, missing)
        splits = self._split(source, roles, kind)
        features = build_features(source, roles)
        if not isinstance(options.missing, str):
            fill_missing(features.columns, {"train": features.arrays}, options.missing)
        return source, roles, features, splits

    def _read_source(self, table: Any) -> Source:
        if not self.is_images:
            exact = self.request.exact | {name for name in table.column_names if name.lower() in TARGETS}
            names = [
                name
                for name in table.column_names
                if self.request.fields is None or name in self.request.fields | exact
            ]
            table = table.select(names)
            return read_batches("Ray", self.where, table.schema, table.to_batches(), self.request, exact)
        paths = [Path(path) for path in table.column("path").to_pylist()]
        contents = np.empty(len(paths), object)
        contents[:] = table.column("bytes").to_pylist()
        labels = np.empty(len(paths), object)
        labels[:] = [path.parent.name.encode() for path in paths]
        splits = None
        if self.has_splits:
            splits = np.array([SPLITS.index(path.parent.parent.name) for path in paths], np.int8)
        steps = (DecodeImage(column="image"), Resize((1, 1), column="image"))
        columns = {"image": contents, "label": labels}
        return Source("images", self.where, columns, ("label",), task="classification", splits=splits, steps=steps)

    def _split(self, source: Source, roles: Roles, kind: str) -> NDArray[Any]:
        """Assign samples by a hash of their group, else of their ids, else of features and target."""
        given = parse_names(source.columns[roles.order]) if kind == "column" else source.splits
        if given is not None:
            return given
        fields = [roles.order] if kind == "group" else roles.ids or (*roles.target, *roles.list_features())
        hashes = np.zeros(len(source), np.uint64)
        for name in fields:
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + _hash(source.columns[name], self.options.seed)
        share = (hashes >> np.uint64(11)).astype(np.float64) / 2**53
        test, validation = self.options.test_fraction, self.options.validation_fraction
        return np.where(share < test, 2, np.where(share < test + validation, 1, 0)).astype(np.int8)


def load_dataset(source: str, output_dir: Path | str, options: DatasetOptions | None = None, **changes: Any) -> Dataset:
    """Write a dataset directory with Parquet shards from data that need not fit in memory.

    Ray is started on this machine unless it is initialised or RAY_ADDRESS is set; its nodes must see the files.

    Args:
        source: A path or fsspec URI (s3, gs, http), which is downloaded first: Parquet, CSV or JSON lines, a file or a
            directory with such files, or a folder with an image folder for each class.
        output_dir: The dataset directory; an existing one is replaced atomically.
        options: The options of `kfp_mindspore.data.load_dataset`. `split` is `random` (by a hash of the ids, or of all
            features and the target, so that equal samples are in one split), `group:FIELD` or `column:FIELD`, `missing`
            `refuse`, `drop` or a number, and `task` `classification`, `regression` or `none`. Steps in `preprocessing`
            must have their values already, apart from those for categories.
        changes: Fields of `DatasetOptions` that differ from `options`.

    Returns:
        The dataset, opened.

    Raises:
        NotFoundError: There is no such source.
        UserError: The source does not fit the options.
    """
    options = dataclasses.replace(options or DatasetOptions(), **changes)
    options.check()
    _check_options(options)
    order = parse_mode(options.split)[1] if options.split else ""
    exact = list_exact_fields(list(options.target), options.weight, options.ids, order, options.inputs)
    request = SourceRequest(
        list_named_fields(exact, options.features, options.inputs),
        exact=exact,
        max_pixels=get_max_pixels(options.preprocessing),
    )
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    context = DataContext.get_current()
    before = (context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars)
    with fetch_source(source) as path, events.span("dataset.load"):
        # Equal data give equal shards, whichever worker is the first; a block has several copies while it is read.
        context.target_max_block_size, context.execution_options.preserve_order = _BLOCK_BYTES, True
        context.enable_progress_bars = False
        try:
            return _load(path, Path(output_dir), source, options, request)
        finally:
            context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars = (
                before
            )


def _load(path: Path, output: Path, name: str, options: DatasetOptions, request: SourceRequest) -> Dataset:
    kind = options.format or recognise_format(path)
    if kind not in FORMATS:
        raise UserError(
            f"{path}: engine ray reads {', '.join(FORMATS)}, got {kind}", hint="Load it with engine memory."
        )
    has_splits = kind == "images" and {one.name for one in path.iterdir() if one.is_dir()} <= set(SPLITS)
    reader = _Reader(f"{path.name} ({kind})", request, options, kind == "images", has_splits)
    read = _open(path, kind, options.seed)
    findings = _Findings()
    sample: Arrays | None = None
    first: tuple[Source, Features] | None = None
    inspected = read().map_batches(_Inspect(reader), batch_size=None, batch_format="pyarrow")
    for row in inspected.iter_rows():
        part, block = pickle.loads(row["found"])
        if isinstance(part, KfpMindSporeError):
            raise part
        findings.merge(part)
        if first is None and block is not None:
            first, sample = block[:2], block[2]
    if first is None or sample is None:
        raise UserError(f"{reader.where}: no sample is in the split train")
    source, features = first
    task, labels, values = _resolve_target(source, findings, options, features, reader.where)
    if reader.is_images:
        size = options.image_size or findings.sizes.most_common(1)[0][0]
        mode = "L" if findings.modes <= {"1", "L"} else "RGB"
        source.steps = (DecodeImage(mode, column="image"), Resize((size[0], size[-1]), column="image"))
    columns = [findings.columns[column.name] for column in features.columns]
    others = [column for column in findings.columns.values() if column.role != "feature"]
    dtype = "int32" if task == "classification" else "float32"
    others = [dataclasses.replace(one, dtype=dtype) if one.role == "target" else one for one in others]
    if task == "none":
        others = [column for column in others if column.role != "target"]
    everything = [*columns, *others]
    statistics = {
        column.name: findings.moments[column.name].describe(column)
        for column in everything
        if column.name in findings.moments and len(column.shape) < 2
    }
    # Each category twice: texts that all differ would be refused as categories.
    fitted = {name: _repeat(findings.values[name]) if name in findings.values else sample[name] for name in sample}
    typed = Features(tuple(columns), fitted, features.inputs, {})
    declaration = fit_preprocessing(options.preprocessing, source, typed, fitted, statistics, None)
    description = {
        "name": Path(name.rstrip("/")).stem,
        "task": task,
        "labels": list(labels),
        "columns": [dataclasses.asdict(column) for column in everything],
        "preprocessing": declaration,
        "seed": options.seed,
        "statistics": statistics,
        "report": {"engine": "ray", "missing_rule": options.missing, "dropped": findings.dropped},
    }
    converted = read().map_batches(
        _Convert(reader, tuple(everything), task, values), batch_size=None, batch_format="pyarrow"
    )
    rows = compute_block_rows(measure_row({column.name: sample[column.name] for column in columns}))
    return write_shards(output, description, SPLITS, everything, _receive(converted, everything), block_rows=rows)


def _receive(converted: Any, columns: list[Column]) -> Iterator[tuple[str, Arrays]]:
    """Yield the converted blocks' rows by split."""
    for table in converted.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
        splits = table.column("split").to_numpy()
        for index, split in enumerate(SPLITS):
            if (chosen := splits == index).any():
                part = table.filter(chosen).combine_chunks()
                yield split, {column.name: decode_column(part.column(column.name), column) for column in columns}


@dataclass(frozen=True)
class _Inspect:
    """The first pass over a block."""

    reader: _Reader

    def __call__(self, table: Any) -> Any:
        import pyarrow

        found: tuple[_Findings | KfpMindSporeError, Any]
        try:
            found = self._inspect(table) if len(table) else (_Findings(), None)
        except KfpMindSporeError as error:
            # Ray's own error would have it as text only.
            found = (error, None)
        return pyarrow.table({"found": [pickle.dumps(found)]})

    def _inspect(self, table: Any) -> tuple[_Findings, Any]:
        count = len(table)
        source, roles, features, splits = self.reader.read(table)
        is_train = splits == 0
        found = _Findings(Counter(SPLITS[index] for index in splits.tolist()), dropped=count - len(source))
        arrays, columns = _arrange(source, roles, features)
        for column in columns:
            train = arrays[column.name][is_train]
            found.columns[column.name] = column
            if not len(train) or is_ragged(train):
                continue
            is_class = column.role == "target" and arrays[column.name].dtype.kind != "f"
            is_text = column.role == "feature" and column.dtype == BYTES and not column.shape
            if is_class or (is_text and not self.reader.is_images):
                found.values[column.name] = set(_list_values(arrays[column.name] if column.role == "target" else train))
            if column.dtype not in (BYTES, "bool") and len(column.shape) < 2:
                found.moments[column.name] = _Moments.measure(train)
        if self.reader.is_images:
            headers = [check_image(content, self.reader.request.max_pixels) for content in source.columns["image"]]
            found.sizes.update(header[:2] for header in headers)
            found.modes = {mode for *_, mode in headers}
        block = None
        if is_train.any():
            sample = {name: array[is_train][:_SAMPLE_ROWS] for name, array in features.arrays.items()}
            small = dataclasses.replace(source, columns={}, splits=None)
            block = (small, dataclasses.replace(features, arrays={}), sample)
        return found, block


@dataclass(frozen=True)
class _Convert:
    """The second pass over a block."""

    reader: _Reader
    columns: tuple[Column, ...]
    task: str
    values: tuple[Any, ...]

    def __call__(self, table: Any) -> Any:
        import pyarrow

        source, roles, features, splits = self.reader.read(table)
        arrays, _ = _arrange(source, roles, features)
        for column in self.columns:
            array = arrays[column.name]
            if column.role == "target" and self.task == "classification":
                array = np.searchsorted(np.array(self.values, array.dtype), array)
            elif column.role == "target":
                target = encode_target(roles.target, [array], (), self.task, self.reader.where)
                check_target(target, array, f"{self.reader.where}: target {column.name}")
                array = array if target.array is None else target.array
            if column.dtype != BYTES and not is_ragged(array):
                array = array.astype(column.dtype, copy=False)
            arrays[column.name] = array
        encoded = encode_columns(self.columns, arrays)
        return encoded.append_column("split", pyarrow.array(splits))


def _arrange(source: Source, roles: Roles, features: Features) -> tuple[Arrays, list[Column]]:
    """Return all columns of a block, features first."""
    arrays, columns = dict(features.arrays), list(features.columns)
    named = [(name, "target") for name in roles.target]
    named += [(roles.weight, "weight")] * bool(roles.weight) + [(name, "id") for name in roles.ids]
    for name, role in named:
        array = source.columns[name]
        if role == "weight" or (role == "target" and array.dtype.kind == "f"):
            array = array.astype(np.float32)
        arrays[name] = array
        dtype = BYTES if array.dtype == object else array.dtype.name
        columns.append(Column(name, dtype, array.shape[1:], role))
    return arrays, columns


def _resolve_target(
    source: Source, findings: _Findings, options: DatasetOptions, features: Features, where: str
) -> tuple[str, tuple[str, ...], tuple[Any, ...]]:
    """Return the task, the class names, and the classes' values in order."""
    target = next((column for column in findings.columns.values() if column.role == "target"), None)
    if target is None:
        return "none", (), ()
    task = options.task or source.task
    values = sorted(findings.values.get(target.name, ()))
    if not task:
        is_class = target.dtype in (BYTES, "bool") or (np.dtype(target.dtype).kind in "iu" and len(values) <= _CLASSES)
        task = "classification" if is_class else "regression"
    if task != "classification":
        if task == "regression" and not np.isfinite(findings.moments[target.name].mean).all():
            raise UserError(
                f"{where}: target {target.name}: must hold finite numbers", hint="--missing drop drops rows."
            )
        return task, (), ()
    array = np.array(values, object if target.dtype == BYTES else target.dtype)
    encoded = encode_target([target.name], [array], source.labels, task, where)
    if len(values) < 2:
        raise UserError(f"{where}: target {target.name}: a classification needs at least 2 classes, got {len(values)}")
    return task, encoded.labels, tuple(values)


def _check_options(options: DatasetOptions) -> None:
    kind = parse_mode(options.split)[0] if options.split else "random"
    steps = [] if isinstance(options.preprocessing, str) else build_given(options.preprocessing)
    # What categories are is known after the first pass; other steps would need all values at once.
    unfitted = [
        type(step).__name__
        for step in steps
        if type(step).fit is not Step.fit
        and not isinstance(step, OneHot | Vocabulary | Pad)
        and getattr(step, "values", None) is None
    ]
    errors = [
        f"{name}: engine ray has {expected}, got {found!r}"
        for name, expected, found, is_wrong in (
            ("split", "random, group:FIELD and column:FIELD", options.split, kind not in ("random", "group", "column")),
            ("missing", "refuse, drop or a number", options.missing, options.missing in ("mean", "median")),
            (
                "task",
                "classification, regression and none",
                options.task,
                options.task not in ("", "classification", "regression", "none"),
            ),
            ("target", "at most one field", list(options.target), len(options.target) > 1),
            ("limit", "no limit", options.limit, bool(options.limit)),
            ("validation", "column:FIELD for given splits", options.validation, bool(options.validation)),
            ("test", "column:FIELD for given splits", options.test, bool(options.test)),
            ("storage", "parquet only", options.storage, options.storage == "mindrecord"),
            ("preprocessing", "fitted steps only", ", ".join(unfitted), bool(unfitted)),
        )
        if is_wrong
    ]
    if errors:
        raise ValidationError(errors, subject="load_dataset")


def _open(path: Path, kind: str, seed: int) -> Callable[[], Any]:
    """Return a function that reads the source from its start."""
    data: Any = ray.data
    if kind == "images":
        folders = [folder for folder in path.rglob("*") if folder.is_dir()]
        files = [str(file) for folder in sorted(folders) for file in list_images(folder)]
        if not files:
            raise UserError(f"{path}: has no images in class folders")
        # Neighbours would be of one class.
        order = np.random.default_rng(seed).permutation(len(files))
        shuffled = [files[index] for index in order]
        return lambda: data.read_binary_files(shuffled, include_paths=True)
    suffixes = {"parquet": [".parquet", ".pq"], "csv": [".csv"], "jsonl": [".jsonl", ".ndjson"]}[kind]
    files = [str(path)] if path.is_file() else sorted(str(file) for file in path.rglob("*") if file.suffix in suffixes)
    if not files:
        raise UserError(f"{path}: has no files {', '.join(suffixes)}")
    read = {"parquet": data.read_parquet, "csv": data.read_csv, "jsonl": data.read_json}[kind]
    options = {"lines": True} if kind == "jsonl" else {}
    return lambda: read(files, **options)


def _hash(array: NDArray[Any], seed: int) -> NDArray[Any]:
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


def _list_values(array: NDArray[Any]) -> list[Any]:
    values: list[Any] = np.unique(array).tolist() if array.dtype != object else list(set(array.tolist()))
    return values if len(values) <= _MAX_VALUES or array.dtype != object else values[: _MAX_VALUES + 1]


def _repeat(values: set[Any]) -> NDArray[Any]:
    array = np.empty(2 * len(values), object)
    array[:] = sorted(values) * 2
    return array
