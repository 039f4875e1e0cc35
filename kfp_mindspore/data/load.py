"""Conversion from data sources to a dataset directory."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.data.columns import (
    build_features,
    check_infinite,
    check_missing,
    convert_numbers,
    drop_incomplete,
    fill_missing,
)
from kfp_mindspore.data.fetch import fetch_source, resolve_path
from kfp_mindspore.data.moments import describe_moments, to_order
from kfp_mindspore.data.options import DatasetChanges, DatasetOptions, join_sources
from kfp_mindspore.data.report import (
    compute_statistics,
    count_duplicates,
    describe_boxes,
    describe_lists,
    list_constants,
    list_missing_classes,
    list_mixed,
    list_rounded,
)
from kfp_mindspore.data.roles import Roles, list_exact_fields, list_named_fields, resolve_roles
from kfp_mindspore.data.sources import sklearn_sets
from kfp_mindspore.data.sources.base import TARGETS, Source, SourceRequest
from kfp_mindspore.data.sources.formats import list_parts, read_path
from kfp_mindspore.data.sources.named import READERS as NAMED
from kfp_mindspore.data.split import parse_mode, split_samples
from kfp_mindspore.data.targets import Target, check_target, encode_target, list_alike
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.bundle import SIGNATURE_FILE
from kfp_mindspore.formats.dataset import (
    DESCRIPTION,
    OUTPUT,
    SPLITS,
    Column,
    Dataset,
    copy_dataset,
    write_dataset,
)
from kfp_mindspore.formats.tensors import BYTES
from kfp_mindspore.outputs import check_replaceable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack


_logger = logging.getLogger(__name__)
_HINT = f"Named data sets are {', '.join(NAMED)}; or give a file, a directory or a URI such as s3://…."


def load_dataset(
    source: str | Mapping[str, str],
    output_dir: Path | str,
    options: DatasetOptions | None = None,
    **changes: Unpack[DatasetChanges],
) -> Dataset:
    """Write a dataset directory; an existing one is replaced atomically.

    Args:
        source: A named set (`breast_cancer`, `diabetes`, `digits`, `fashion_mnist`, `iris`, `linnerud`, `movielens`,
            `new_testament`, `reviews`, `scenes`, `shapes`, `waves`, `wine`), or a path or fsspec URI (s3, gs, http) to
            a CSV, Parquet, JSON lines, NPZ, NPY, IDX, text or MindRecord file, to a folder with an image folder for
            each class, to one with COCO, YOLO or VOC boxes, or to a dataset directory, which is copied. A mapping has a
            source for each split: {"train": …, "test": …}.
        output_dir: The dataset directory to write.
        options: The options, see `kfp_mindspore.data.options`; default all defaults.
        changes: Fields of `DatasetOptions` that differ from `options`: load_dataset(…, target="price").

    Returns:
        The dataset, opened; `report` has the guessed task, missing values, missing classes, constant columns and
        duplicates over the splits.

    Raises:
        NotFoundError: There is no such source.
        UserError: The source does not fit the options.
        MissingExtraError: A library for the format is not installed.
    """
    options = dataclasses.replace(options or DatasetOptions(), **changes)
    from kfp_mindspore.data.preprocessing import get_max_pixels, list_limits

    options.check()
    if options.engine != "memory":
        raise UserError(
            f"engine: must be memory here, got {options.engine}", hint="Use kfp_mindspore.ray.load_dataset."
        )
    source = join_sources(source, options)
    check_output(source, output_dir)
    kind, field = parse_mode(options.split) if options.split else ("", "")
    if options.time_format and kind != "time":
        raise ValidationError(["time_format: needs split=time:FIELD"], subject="load_dataset")
    exact = list_exact_fields(list(options.target), options.weight, options.ids, field, options.inputs)
    size = options.image_size
    request = SourceRequest(
        list_named_fields(exact, options.features, options.inputs),
        guess_target=not options.target,
        exact=exact,
        # A stated format is for the characters of the file.
        texts=frozenset(options.texts) | ({field} if options.time_format else set()),
        delimiter=options.delimiter,
        lists=list_limits(options.preprocessing),
        length=options.length,
        text_lines=options.task not in ("", "language_model"),
        image_size=(size[0], size[-1]) if size else None,
        max_pixels=get_max_pixels(options.preprocessing),
        drop_boxes=options.missing == "drop",
    )
    if source in sklearn_sets.TABLES:
        # Imported before the span, which measures work without imports (0.5 s here).
        sklearn_sets.import_datasets()
    with ExitStack() as stack, events.span("dataset.load"):
        read = _read(source, request, options.format, stack)
        if isinstance(read, Dataset):
            options.check_copy(source, read)
            return copy_dataset(read, output_dir)
        roles = resolve_roles(
            read,
            target=list(options.target),
            weight=options.weight,
            ids=options.ids,
            order=field,
            features=options.features,
            inputs=options.inputs,
        )
        return _write(Path(output_dir), read, roles, options, name=_get_name(source), kind=kind)


def check_output(source: str | Mapping[str, str], output_dir: Path | str) -> None:
    """Check that a dataset directory may be written: it replaces only another one, and is not the source.

    Args:
        source: As for `load_dataset`.
        output_dir: The directory.

    Raises:
        UserError: It is a file, has other content, or is, is in or contains the source.
    """
    sources = [source] if isinstance(source, str) else source.values()
    check_replaceable(Path(output_dir), OUTPUT, [given for given in sources if given not in NAMED])


def check_source(source: str) -> None:
    """Check that a source exists; URIs are not opened.

    Args:
        source: A named data set, a path or a URI.

    Raises:
        NotFoundError: It is neither a named data set nor an existing path.
    """
    if source not in NAMED and "://" not in source:
        resolve_path(source, hint=_HINT)


def _read(source: str | Mapping[str, str], request: SourceRequest, kind: str, stack: ExitStack) -> Source | Dataset:
    """Read a source; its downloads are kept until the stack is closed."""
    if not isinstance(source, str):
        return _concatenate({split: _read_part(split, uri, request, kind, stack) for split, uri in source.items()})
    if source in NAMED:
        return NAMED[source](request)
    path = stack.enter_context(fetch_source(source, hint=_HINT))
    if (path / DESCRIPTION).is_file():
        return Dataset.open(path)
    if (path / SIGNATURE_FILE).is_file():
        raise UserError(f"{source}: is a model bundle ({SIGNATURE_FILE}), expected data", hint=_HINT)
    parts = list_parts(path) if path.is_dir() and kind not in ("parquet", "images", "idx") else {}
    if parts:
        read = {split: read_path(file, request, kind) for split, file in parts.items()}
        return _concatenate(read) if len(read) > 1 else read["train"]
    return read_path(path, request, kind)


def _read_part(split: str, uri: str, request: SourceRequest, kind: str, stack: ExitStack) -> Source:
    if split not in SPLITS:
        raise ValidationError([f"source: splits are {', '.join(SPLITS)}, got {split!r}"], subject="load_dataset")
    return read_path(stack.enter_context(fetch_source(uri, hint=_HINT)), request, kind)


def _concatenate(parts: Mapping[str, Source]) -> Source:
    """Return several sources with the same fields as one, one for each split."""
    import numpy as np

    if "train" not in parts:
        raise UserError(f"source: the split train is missing, found {', '.join(parts) or 'none'}")
    first = parts["train"]
    for part in parts.values():
        if list(part.columns) != list(first.columns):
            found = ", ".join(part.columns)
            raise UserError(f"{part.where}: fields must be {', '.join(first.columns)}, got {found}")
    counts: Counter[str] = Counter()
    for part in parts.values():
        counts.update(part.missing)
    try:
        columns = {name: np.concatenate([part.columns[name] for part in parts.values()]) for name in first.columns}
    except ValueError as error:
        raise UserError(f"{first.where}: the splits have samples of different shapes ({error})") from None
    given = np.repeat([SPLITS.index(split) for split in parts], [len(part) for part in parts.values()]).astype(np.int8)
    return dataclasses.replace(first, columns=columns, splits=given, missing=dict(counts))


def _get_name(source: str | Mapping[str, str]) -> str:
    text = source if isinstance(source, str) else source["train"]
    last = text.partition("?")[0].rstrip("/").rpartition("/")[2]
    return last.partition(".")[0] or last


def _write(output: Path, source: Source, roles: Roles, options: DatasetOptions, *, name: str, kind: str) -> Dataset:
    """Encode, split, fit the preprocessing and write; a field is released once it is in the splits."""
    from kfp_mindspore.data.preprocessing import (
        check_images,
        count_unknown_tokens,
        describe_lengths,
        fit_preprocessing,
        fit_vocabulary,
    )

    report: dict[str, Any] = {"format": source.format, "missing_rule": options.missing}
    checked = [name for name in roles.list_features() if name not in options.texts]
    if source.is_table and (mixed := list_mixed({name: source.columns[name] for name in checked})):
        report["mixed"] = mixed
    if infinite := check_infinite(source, roles, options.infinite):
        report["infinite"] = infinite
    task = options.task or source.task
    classes = () if task == "language_model" else roles.target
    if missing := check_missing(source, roles, options.missing, classes):
        report["missing"] = missing
    if options.missing == "drop" and missing:
        report["dropped"] = drop_incomplete(source, missing, classes)
    target = encode_target(
        roles.target,
        [source.columns[name] for name in roles.target],
        source.labels,
        task,
        source.where,
        tuple(source.columns),
        merge=options.merge_labels,
    )
    if len(roles.target) == 1:
        check_target(target, source.columns[roles.target[0]], f"{source.where}: target {roles.target[0]}")
    if target.task == "none" and target.reason:
        _logger.warning(
            "%s: no field is named %s, so the task is none: name the target with --target NAME or target=…",
            source.where,
            " or ".join(TARGETS),
        )
    order = source.columns[roles.order] if roles.order else None
    if kind == "time" and order is not None:
        order = to_order(order, f"{source.where}: {roles.order}", options.time_format)
    indexes = _split(source, roles, target, options, kind, order)
    if kind == "time" and order is not None:
        unit = source.times.get(roles.order, "")
        report["moments"] = {
            "field": roles.order,
            "splits": describe_moments(source.columns[roles.order], order, indexes, unit),
        }
    integers = {name for name, array in source.columns.items() if array.dtype.kind in "iu"} | source.integers
    if options.limit:
        report |= {"limit": options.limit, "samples": len(source)}
    features = build_features(source, roles)
    others = _build_others(source, roles, target, kind)
    source.columns.clear()
    check_images(options.preprocessing, source, features)
    splits = _take({**features.arrays, **{column.name: array for column, array in others}}, features.arrays, indexes)
    if options.missing not in ("refuse", "drop"):
        # Also without missing values: requests may have some.
        report["filled"] = fill_missing(features.columns, splits, options.missing)
    preprocessing, labels, vocabulary = options.preprocessing, target.labels, None
    if target.task == "language_model" and target.array is not None and target.array.dtype == object:
        preprocessing, vocabulary = fit_vocabulary(preprocessing, features, splits["train"])
        for arrays in splits.values():
            arrays[others[0][0].name] = vocabulary.compute(arrays[others[0][0].name])
        # The id texts: 0 is padding, 1 an unknown character.
        labels = ("", "\N{REPLACEMENT CHARACTER}", *(vocabulary.values or ()))
    columns = [*features.columns, *(_complete(column, splits["train"]) for column, _ in others)]
    statistics = compute_statistics(columns, splits["train"])
    raw = {column.name: splits["train"][column.name] for column in features.columns}
    try:
        declaration = fit_preprocessing(preprocessing, source, features, raw, statistics, vocabulary, options.unknown)
    except UserError as error:
        mistakes = [f"The values of {name} are {found}." for name, found in report.get("mixed", {}).items()]
        error.hint = " ".join([*mistakes, error.hint]).strip()
        raise
    report |= {
        "task_reason": target.reason,
        "left_out": [name for name in source.times if name not in roles.list_fields()],
        "indexes": list(source.indexes),
        "leading_zeros": {name: text for name, text in source.leading_zeros.items() if name in roles.list_fields()},
        "alike_labels": list_alike(labels) if target.task == "classification" else [],
        "merged_labels": target.merged,
        "conversions": dict(features.conversions),
        "constant": list_constants(columns, statistics),
        "rounded": list_rounded(columns, statistics, integers),
        "duplicates": count_duplicates(columns, splits),
    }
    if unknown := count_unknown_tokens(declaration, {name: splits[name] for name in splits if name != "train"}):
        report["unknown_tokens"] = unknown
    if lengths := describe_lengths(declaration, {name: splits["train"][name] for name in raw}):
        report["texts"] = lengths
    if lists := describe_lists(columns, splits["train"], declaration.get("pre", ())):
        report["lists"] = lists
    if target.task == "classification":
        targets = {split: arrays[others[0][0].name] for split, arrays in splits.items()}
        report["missing_classes"] = list_missing_classes(labels, targets)
    if target.task == "detection":
        found = {split: arrays[others[0][0].name][..., 0] for split, arrays in splits.items()}
        report["boxes"] = {split: describe_boxes(classes) for split, classes in found.items()}
        targets = {split: classes[classes >= 0].astype(int) for split, classes in found.items()}
        report["missing_classes"] = list_missing_classes(labels, targets)
    return write_dataset(
        output,
        name=name,
        task=target.task,
        columns=columns,
        splits=splits,
        labels=labels,
        seed=options.seed,
        preprocessing=declaration,
        statistics=statistics,
        report=report,
        storage=options.storage,
    )


def _split(
    source: Source, roles: Roles, target: Target, options: DatasetOptions, kind: str, order: NDArray[Any] | None
) -> dict[str, NDArray[np.int64]]:
    defaults = {"classification": "stratified", "language_model": "contiguous"}
    kind = kind or defaults.get(target.task, "random")
    if kind == "stratified" and target.task != "classification":
        raise UserError(
            f"split: stratified needs a classification, the task is {target.task}", hint="Use random: --split random."
        )
    if kind == "stratified" and target.array is not None and source.splits is None and not options.limit:
        import numpy as np

        sizes = np.bincount(target.array)
        if 1 in sizes:
            alone = sizes.tolist().index(1)
            raise UserError(
                f"{source.where}: target {roles.target[0]}: a stratified split needs several samples of each class, "
                f"{target.labels[alone]!r} has one, row {int((target.array == alone).argmax()) + 1}",
                hint="Remove the sample, or split at random: --split random.",
            )
    return split_samples(
        len(source),
        kind,
        values=order,
        classes=target.array if target.task == "classification" else None,
        given=source.splits,
        fractions=(options.validation_fraction, options.test_fraction),
        limit=options.limit,
        seed=options.seed,
    )


def _take(
    arrays: dict[str, NDArray[Any]], features: dict[str, NDArray[Any]], indexes: Mapping[str, NDArray[np.int64]]
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return each split's samples; each array is released before the next one is copied."""
    features.clear()
    splits: dict[str, dict[str, NDArray[Any]]] = {split: {} for split in indexes}
    for name in list(arrays):
        array = arrays.pop(name)
        for split, chosen in indexes.items():
            splits[split][name] = array[chosen]
    return splits


def _build_others(source: Source, roles: Roles, target: Target, kind: str) -> list[tuple[Column, NDArray[Any]]]:
    """Return the target, weight and id columns, the target first; their dtypes are set when they are encoded."""
    import numpy as np

    others = []
    if target.array is not None:
        several = len(roles.target) > 1
        name = "target" if several else roles.target[0]
        others.append((Column(name, "", (), "target", roles.target if several else ()), target.array))
    if roles.weight:
        weight = source.columns[roles.weight]
        if weight.ndim != 1 or weight.dtype.kind not in "biuf" or (weight < 0).any():
            raise UserError(f"{source.where}: weight {roles.weight}: must be numbers of at least 0, one a sample")
        others.append((Column(roles.weight, "", (), "weight"), weight.astype(np.float32)))
    ids = {name: name for name in roles.ids}
    if target.task == "ranking" and kind == "group" and "group" not in ids:
        ids["group"] = roles.order
    for name, field in ids.items():
        array = source.columns[field]
        fields = () if name == field else (field,)
        others.append(
            (Column(name, "", (), "id", fields), array if array.dtype.kind == "f" else convert_numbers(array))
        )
    return others


def _complete(column: Column, arrays: Mapping[str, NDArray[Any]]) -> Column:
    array = arrays[column.name]
    dtype = BYTES if array.dtype == object else array.dtype.name
    return dataclasses.replace(column, dtype=dtype, shape=array.shape[1:])
