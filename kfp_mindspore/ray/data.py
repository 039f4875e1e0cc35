"""Data larger than memory to a dataset directory with Parquet shards, by Ray Data in two passes.

The first pass assigns each sample to a split by a hash and collects the training split's statistics; the second one
converts the samples, and this process writes them as they arrive. A limit, and a stratified or time split, have a pass
of their own before them, which finds the bounds that later passes compare each sample with.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.data import DataContext

from kfp_mindspore import events
from kfp_mindspore.data.columns import Features
from kfp_mindspore.data.load import check_output
from kfp_mindspore.data.moments import find_format, parse_moments
from kfp_mindspore.data.options import DatasetChanges, DatasetOptions
from kfp_mindspore.data.preprocessing import build_given, fit_preprocessing, get_max_pixels
from kfp_mindspore.data.roles import Roles, list_exact_fields, list_named_fields
from kfp_mindspore.data.sources.base import Source, SourceRequest
from kfp_mindspore.data.split import parse_mode
from kfp_mindspore.data.targets import check_target, encode_target
from kfp_mindspore.errors import KfpMindSporeError, UserError, ValidationError
from kfp_mindspore.formats.dataset import SPLITS, Column, Dataset, write_shards
from kfp_mindspore.formats.shards import compute_block_rows, decode_column, encode_columns, measure_row
from kfp_mindspore.formats.tensors import BYTES, is_ragged
from kfp_mindspore.ray.blocks import BlockReader, Bounds, list_bounds, mix_hashes
from kfp_mindspore.ray.files import SourceFiles, list_source
from kfp_mindspore.ray.job import connect
from kfp_mindspore.ray.statistics import (
    MAX_VALUES,
    Findings,
    Lowest,
    Moments,
    describe_spans,
    list_values,
    select_lowest,
)
from kfp_mindspore.transform.categories import OneHot, Vocabulary
from kfp_mindspore.transform.images import DecodeImage, Resize, check_image
from kfp_mindspore.transform.lists import Pad
from kfp_mindspore.transform.pipeline import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    Arrays = dict[str, NDArray[Any]]

_BLOCK_BYTES = 16 << 20
_SAMPLE_ROWS = 1000
_CLASSES = 20
# Samples whose times or numbers stand for all of a larger set, and hashes kept of each class.
_QUANTILE_ROWS = 1 << 16
_MEDIAN_ROWS = 1 << 14
_CLASS_ROWS = 1 << 12


def load_dataset(
    source: str, output_dir: Path | str, options: DatasetOptions | None = None, **changes: Unpack[DatasetChanges]
) -> Dataset:
    """Write a dataset directory with Parquet shards from data that need not fit in memory.

    Ray is started on this machine unless it is initialised or RAY_ADDRESS is set; its nodes must see local files.

    Args:
        source: A path or fsspec URI: Parquet, CSV or JSON lines, a file or a directory with such files, or a folder
            with an image folder for each class. Objects of a store (s3, gs) are read by the workers, with this
            process's credentials; what a web server has is downloaded first.
        output_dir: The dataset directory; an existing one is replaced atomically.
        options: The options of `kfp_mindspore.data.load_dataset`. `split` is `random` (by a hash of the ids, or of all
            features and the target, so that equal samples are in one split), `stratified` (the hash by class),
            `time:FIELD` (equal times are in one split), `group:FIELD` or `column:FIELD`. `limit` keeps at most so many
            samples. A median, and the times' bounds, are exact up to 16,384 and 65,536 samples, then a random
            sample's. `task` is `classification`, `regression`, `multi_label` or `none`. Steps in `preprocessing` must
            have their values already, apart from those for categories.
        changes: Fields of `DatasetOptions` that differ from `options`.

    Returns:
        The dataset, opened.

    Raises:
        NotFoundError: There is no such source; Ray is not started then.
        UserError: The source does not fit the options.
    """
    options = dataclasses.replace(options or DatasetOptions(), **changes)
    options.check()
    check_output(source, output_dir)
    _check_options(options)
    order = parse_mode(options.split)[1] if options.split else ""
    exact = list_exact_fields(list(options.target), options.weight, options.ids, order, options.inputs)
    request = SourceRequest(
        list_named_fields(exact, options.features, options.inputs),
        exact=exact,
        max_pixels=get_max_pixels(options.preprocessing),
    )
    with list_source(source, options.format) as files:
        connect(log_to_driver=False)
        context = DataContext.get_current()
        before = (context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars)
        # Equal data give equal shards, whichever worker is the first; a block has several copies while it is read.
        context.target_max_block_size, context.execution_options.preserve_order = _BLOCK_BYTES, True
        context.enable_progress_bars = False
        try:
            with events.span("dataset.load"):
                return _load(files, Path(output_dir), source, options, request)
        finally:
            context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars = (
                before
            )


def _load(
    files: SourceFiles,
    output: Path,
    name: str,
    options: DatasetOptions,
    request: SourceRequest,
) -> Dataset:
    order = parse_mode(options.split)[1] if options.time_format else ""
    texts = [name for name in (*options.texts, order) if name]
    read = files.open(options.seed, options.delimiter, texts)
    report: dict[str, Any] = {"engine": "ray", "missing_rule": options.missing}
    reader = BlockReader(f"{files.name} ({files.kind})", request, options, files.kind == "images", files.has_splits)
    reader = _survey(read, reader, report)
    findings = Findings()
    sample: Arrays | None = None
    first: tuple[Source, Features] | None = None
    for part, block in _run(read, _Inspect(reader)):
        findings.merge(part)
        if first is None and block is not None:
            first, sample = block[:2], block[2]
    if first is None or sample is None:
        reason = "no sample is in the split train" if findings.counts else "each sample has a missing value"
        raise UserError(f"{reader.where}: {reason}")
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
    filled: dict[str, list[float]] = {}
    if options.missing in ("mean", "median"):
        filled = findings.fill(columns, str(options.missing))
        _fill(sample, filled)
        report["filled"] = filled
    if findings.spans:
        spans = {split: [first[1], last[1]] for split, (first, last) in findings.spans.items()}
        report["moments"] = {"field": parse_mode(options.split)[1], "splits": spans}
    statistics = {
        column.name: findings.moments[column.name].describe(column)
        for column in everything
        if column.name in findings.moments and len(column.shape) < 2
    }
    # Each category twice: texts that all differ would be refused as categories.
    fitted = {name: _repeat(findings.values[name]) if name in findings.values else sample[name] for name in sample}
    typed = Features(tuple(columns), fitted, features.inputs, {})
    declaration = fit_preprocessing(options.preprocessing, source, typed, fitted, statistics, None, options.unknown)
    description = {
        "name": Path(name.rstrip("/")).stem,
        "task": task,
        "labels": list(labels),
        "columns": [dataclasses.asdict(column) for column in everything],
        "preprocessing": declaration,
        "seed": options.seed,
        "statistics": statistics,
        "report": {**report, "dropped": findings.dropped},
    }
    converted = read().map_batches(
        _Convert(reader, tuple(everything), task, values, filled), batch_size=None, batch_format="pyarrow"
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


def _run(read: Callable[[], Any], function: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield what a function finds in each block."""
    for row in read().map_batches(_Guard(function), batch_size=None, batch_format="pyarrow").iter_rows():
        found = pickle.loads(row["found"])
        if isinstance(found, KfpMindSporeError):
            raise found
        if found is not None:
            yield found


@dataclass(frozen=True)
class _Guard:
    """A function on a block that is not empty, whose errors are returned: Ray's own would have them as text only."""

    function: Callable[[Any], Any]

    def __call__(self, table: Any) -> Any:
        import pyarrow

        try:
            found = self.function(table) if len(table) else None
        except KfpMindSporeError as error:
            found = error
        return pyarrow.table({"found": [pickle.dumps(found)]})


def _survey(read: Callable[[], Any], reader: BlockReader, report: dict[str, Any]) -> BlockReader:
    """Return the reader with the bounds that its limit and its split need, a pass for each."""
    options = reader.options
    kind = parse_mode(options.split)[0] if options.split else ""
    if options.limit:
        found = _collect(read, _Survey(reader, "limit", options.limit + 1))
        limits = {split: lowest.keys[-1] for split, lowest in found.items() if lowest.count > options.limit}
        report |= {"limit": options.limit, "samples": sum(lowest.count for lowest in found.values())}
        reader = dataclasses.replace(reader, bounds=Bounds(limits))
    if kind == "time":
        (times,) = _collect(read, _Survey(reader, kind, _QUANTILE_ROWS)).values()
        where = f"{reader.where}: {parse_mode(options.split)[1]}"
        moments = find_format(times.values, where, options.time_format) if times.values.dtype == object else None
        order = times.values if moments is None else parse_moments(times.values, moments, where)
        values = sorted(order.tolist())
        test, both = options.test_fraction, options.test_fraction + options.validation_fraction
        first, last = (values[len(values) - math.ceil(round(share * len(values), 6))] for share in (both, test))
        bounds = dataclasses.replace(reader.bounds, times=(first, last), moments=moments)
        reader = dataclasses.replace(reader, bounds=bounds)
    if kind == "stratified":
        found = _collect(read, _Survey(reader, kind, _CLASS_ROWS))
        classes = {value: _bound_class(lowest, options) for value, lowest in found.items()}
        reader = dataclasses.replace(reader, bounds=dataclasses.replace(reader.bounds, classes=classes))
    return reader


def _collect(read: Callable[[], Any], survey: _Survey) -> dict[Any, Lowest]:
    found: dict[Any, Lowest] = {}
    for part in _run(read, survey):
        for group, lowest in part.items():
            found[group] = found[group].merge(lowest) if group in found else lowest
        if len(found) > MAX_VALUES:
            raise UserError(f"split: the target has more than {MAX_VALUES} different values, which are no classes")
    if not found:
        raise UserError(f"{survey.reader.where}: each sample has a missing value")
    return found


def _bound_class(lowest: Lowest, options: DatasetOptions) -> tuple[np.uint64, np.uint64]:
    """Return a class's bounds: exact for a class that is kept whole or whose held samples are."""
    test = round(options.test_fraction * lowest.count)
    both = test + round(options.validation_fraction * lowest.count)
    default = list_bounds(options)
    one, other = (
        lowest.keys[count] if count < len(lowest.keys) else bound
        for count, bound in zip((test, both), default, strict=True)
    )
    return one, other


@dataclass(frozen=True)
class _Survey:
    """A pass that finds the lowest keys: of kept samples for a limit, of all samples for times, or of each class."""

    reader: BlockReader
    kind: str
    size: int

    def __call__(self, table: Any) -> dict[Any, Lowest]:
        if self.kind == "limit":
            source, _, hashes, given = self.reader.read_fields(table)
            keys = mix_hashes(hashes)
            groups = np.full(len(source), -1) if given is None else given
            return {group: select_lowest(self.size, keys, keys, groups == group) for group in set(groups.tolist())}
        block = self.reader.read(table)
        if block is None:
            return {}
        if self.kind == "time":
            return {"": Lowest.select(self.size, block.keys, block.source.columns[block.roles.order])}
        named = block.roles.target
        classes = block.source.columns[named[0]] if len(named) == 1 else np.empty((0, 0))
        if classes.ndim != 1 or classes.dtype.kind == "f":
            raise UserError(
                f"{self.reader.where}: split stratified needs one target of classes, got {', '.join(named) or 'none'}",
                hint="Split at random: --split random.",
            )
        hashes = block.hashes
        return {value: select_lowest(self.size, hashes, hashes, classes == value) for value in set(classes.tolist())}


@dataclass(frozen=True)
class _Inspect:
    """The first pass over a block: findings, and a sample of its training split."""

    reader: BlockReader

    def __call__(self, table: Any) -> tuple[Findings, Any]:
        block = self.reader.read(table)
        # A limit leaves out samples too.
        dropped = 0 if self.reader.bounds.limits else len(table) - (len(block.source) if block else 0)
        if block is None:
            return Findings(dropped=dropped), None
        source, roles, features, splits = block.source, block.roles, block.features, block.splits
        is_train = splits == 0
        found = Findings(Counter(SPLITS[index] for index in splits.tolist()), dropped=dropped)
        arrays, columns = _arrange(source, roles, features)
        for column in columns:
            train = arrays[column.name][is_train]
            found.columns[column.name] = column
            if not len(train) or is_ragged(train):
                continue
            if column.role == "target" and column.shape:
                # Whether all are 0 or 1 is seen from three.
                found.values[column.name] = set(np.unique(arrays[column.name])[:3].tolist())
            is_class = column.role == "target" and not column.shape and arrays[column.name].dtype.kind != "f"
            is_text = column.role == "feature" and column.dtype == BYTES and not column.shape
            if is_class or (is_text and not self.reader.is_images):
                found.values[column.name] = set(list_values(arrays[column.name] if column.role == "target" else train))
            if column.dtype not in (BYTES, "bool") and len(column.shape) < 2:
                found.moments[column.name] = Moments.measure(train)
                if self.reader.options.missing == "median" and train.dtype.kind == "f":
                    found.lowest[column.name] = select_lowest(_MEDIAN_ROWS, block.keys, arrays[column.name], is_train)
        if self.reader.bounds.times is not None:
            found.spans = describe_spans(
                source.columns[roles.order],
                self.reader.read_order(source, roles),
                splits,
                source.times.get(roles.order, ""),
            )
        if self.reader.is_images:
            headers = self._check_images(table, source)
            found.sizes.update(header[:2] for header in headers)
            found.modes = {mode for *_, mode in headers}
        first = None
        if is_train.any():
            sample = {name: array[is_train][:_SAMPLE_ROWS] for name, array in features.arrays.items()}
            small = dataclasses.replace(source, columns={}, splits=None)
            first = (small, dataclasses.replace(features, arrays={}), sample)
        return found, first

    def _check_images(self, table: Any, source: Source) -> list[tuple[int, int, str]]:
        headers = []
        for content in source.columns["image"]:
            try:
                headers.append(check_image(content, self.reader.request.max_pixels))
            except UserError as error:
                pairs = zip(table.column("path").to_pylist(), table.column("bytes").to_pylist(), strict=True)
                path = next(path for path, found in pairs if found == content)
                raise UserError(f"{path}: {error.message}", hint=error.hint) from None
        return headers


@dataclass(frozen=True)
class _Convert:
    """The second pass over a block."""

    reader: BlockReader
    columns: tuple[Column, ...]
    task: str
    values: tuple[Any, ...]
    filled: Mapping[str, list[float]]

    def __call__(self, table: Any) -> Any:
        import pyarrow

        block = self.reader.read(table)
        if block is None:
            nothing = {
                column.name: np.empty((0, *column.shape), object if column.dtype == BYTES else column.dtype)
                for column in self.columns
            }
            empty = encode_columns(self.columns, nothing)
            return empty.append_column("split", pyarrow.array([], pyarrow.int8()))
        source, roles, features, splits = block.source, block.roles, block.features, block.splits
        _fill(features.arrays, self.filled)
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
    """Return a block's columns, features first."""
    arrays, columns = dict(features.arrays), list(features.columns)
    several = roles.target if len(roles.target) > 1 else ()
    if several:
        targets = [source.columns[name] for name in several]
        if any(array.dtype == object for array in targets):
            raise UserError(f"{source.where}: target {', '.join(several)}: several fields must hold numbers")
        arrays["target"] = np.stack(targets, axis=1).astype(np.float32)
        columns.append(Column("target", "float32", (len(several),), "target", several))
    named = [] if several else [(name, "target") for name in roles.target]
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
    source: Source, findings: Findings, options: DatasetOptions, features: Features, where: str
) -> tuple[str, tuple[str, ...], tuple[Any, ...]]:
    """Return the task, the class names, and the classes' values in order."""
    target = next((column for column in findings.columns.values() if column.role == "target"), None)
    if target is None:
        return "none", (), ()
    task = options.task or source.task
    values = sorted(findings.values.get(target.name, ()))
    if target.shape:
        is_binary = set(values) <= {0, 1}
        task = task or ("multi_label" if is_binary else "regression")
        named = f"{where}: target {', '.join(target.fields) or target.name}"
        if task == "classification":
            raise UserError(f"{named}: a classification has one class a sample, got shape {target.shape}")
        if task == "multi_label" and not is_binary:
            raise UserError(f"{named}: multi_label needs 0 or 1 for each label")
        labels = target.fields or tuple(map(str, range(target.shape[0])))
        return task, labels if task == "multi_label" else (), ()
    if task == "multi_label":
        raise UserError(f"{where}: multi_label needs several targets, or a list in each row, got {target.name}")
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
            ("split", "no order of samples, which contiguous needs", options.split, kind == "contiguous"),
            (
                "task",
                "classification, regression, multi_label and none",
                options.task,
                options.task not in ("", "classification", "regression", "multi_label", "none"),
            ),
            ("validation", "column:FIELD for given splits", options.validation, bool(options.validation)),
            ("test", "column:FIELD for given splits", options.test, bool(options.test)),
            ("merge_labels", "classes as they are", options.merge_labels, bool(options.merge_labels)),
            (
                "time_format",
                "it with split=time:FIELD only",
                options.time_format,
                bool(options.time_format) and kind != "time",
            ),
            ("storage", "parquet only", options.storage, options.storage == "mindrecord"),
            ("preprocessing", "fitted steps only", ", ".join(unfitted), bool(unfitted)),
        )
        if is_wrong
    ]
    if errors:
        raise ValidationError(errors, subject="load_dataset")


def _fill(arrays: Arrays, filled: Mapping[str, list[float]]) -> None:
    """Replace NaN in place, by one number a field."""
    for name, values in filled.items():
        array = arrays[name] if arrays[name].ndim == 2 else arrays[name][:, None]
        np.copyto(array, np.array(values, array.dtype), where=np.isnan(array))


def _repeat(values: set[Any]) -> NDArray[Any]:
    array = np.empty(2 * len(values), object)
    array[:] = sorted(values) * 2
    return array
