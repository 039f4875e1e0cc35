"""A dataset's preprocessing: a source's steps or the user's, fitted on the training split and declared."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.data.columns import Features
from kfp_mindspore.data.sources.base import Source
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import Column
from kfp_mindspore.formats.tensors import BYTES, TensorSpec, list_mismatches
from kfp_mindspore.transform.categories import Categories, OneHot, Tokenize, Vocabulary
from kfp_mindspore.transform.columns import Concatenate
from kfp_mindspore.transform.declaration import build_pipeline, build_steps, declare, declare_step, fit_steps
from kfp_mindspore.transform.images import CenterCrop, DecodeImage, Resize, check_image
from kfp_mindspore.transform.lists import Pad
from kfp_mindspore.transform.pipeline import Pipeline, Step
from kfp_mindspore.transform.values import Normalize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfp_mindspore.transform.base import Arrays

Given = str | Sequence[Step | Mapping[str, Any]]
IMAGENET = "imagenet"
# By channel, for values from 0 to 1; torchvision's and most of mindcv's weights were trained with them.
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_ROWS = (DecodeImage, Resize, CenterCrop)
_MAX_CATEGORIES = 100
# In fewer rows, categories may all differ by chance.
_MIN_ROWS = 50


def check_preprocessing(given: Given) -> None:
    """Raise ValidationError unless it is empty, `standardize`, `imagenet`, `none` or a list."""
    if isinstance(given, str) and given not in ("", "standardize", IMAGENET, "none"):
        raise ValidationError(
            [f"preprocessing: must be standardize, {IMAGENET}, none or a list of steps, got {given!r}"],
            subject="load_dataset",
        )


def list_limits(given: Given) -> dict[str, int]:
    """Return the columns of the `Pad` steps, "" for a step without one, each with the most values in a list.

    Args:
        given: As for `fit_preprocessing`; 0 is for a step that cuts longer lists.
    """
    if isinstance(given, str):
        return {}
    steps = [step for step in build_given(given) if isinstance(step, Pad)]
    return {step.column: 0 if step.truncate else step.length for step in steps}


def get_max_pixels(given: Given) -> int:
    """Return the most pixels of an image that the `DecodeImage` steps decode, their default without such a step."""
    steps = [] if isinstance(given, str) else build_given(given)
    return max([step.max_pixels for step in steps if isinstance(step, DecodeImage)] or [DecodeImage().max_pixels])


def check_images(given: Given, source: Source, features: Features) -> None:
    """Refuse image files that the `DecodeImage` steps cannot decode; a folder's reader has checked its own.

    Raises:
        UserError: The message has the field and the row.
    """
    if isinstance(given, str) or source.format == "images":
        return
    for step in build_given(given):
        if not isinstance(step, DecodeImage):
            continue
        for column in features.columns:
            if column.name != (step.column or features.columns[0].name) or column.dtype != BYTES or column.shape:
                continue
            for index, content in enumerate(features.arrays[column.name]):
                try:
                    check_image(content, step.max_pixels)
                except UserError as error:
                    field = ", ".join(column.fields) or column.name
                    where = f"{source.where}: {field}: image in row {index + 1}"
                    raise UserError(f"{where}: {error.message}", hint=error.hint) from None


def build_given(given: Sequence[Step | Mapping[str, Any]]) -> list[Step]:
    """Return steps for steps or their declarations."""
    return [step if isinstance(step, Step) else build_steps([step])[0] for step in given]


def fit_preprocessing(
    given: Given,
    source: Source,
    features: Features,
    train: Arrays,
    statistics: Mapping[str, Any],
    vocabulary: Step | None,
    unknown: str = "ignore",
) -> dict[str, Any]:
    """Return the preprocessing's declaration.

    Args:
        given: `standardize`, `imagenet`, `none`, a list of steps or their declarations; empty for the source's steps,
            which standardise numbers in tables.
        source: The source.
        features: Its feature columns.
        train: The training split's feature columns.
        statistics: The training split's statistics by column.
        vocabulary: The fitted step for a language model's text; None for other tasks.
        unknown: `refuse` for steps that refuse a request's unknown categories; `ignore` leaves the steps as they are.

    Raises:
        UserError: A step does not fit the columns.
    """
    if given == "none":
        return {}
    if isinstance(given, str):
        scale = given == "standardize" or source.is_table
        steps = _choose_steps(source, features, train, statistics if scale else {}, vocabulary)
        if given == IMAGENET:
            steps = _normalize_images(steps, source)
    else:
        unfitted = build_given(given)
        _check_texts(unfitted, source, features, train)
        steps = _fit(unfitted, train)
    if not steps:
        return {}
    if unknown == "refuse":
        steps = tuple(step.replace_rule(unknown) if isinstance(step, Categories) else step for step in steps)
    specs = [TensorSpec(column.name, column.dtype, (-1, *column.shape)) for column in features.columns]
    return declare(Pipeline(steps, inputs=specs))


def fit_vocabulary(given: Given, features: Features, train: Arrays) -> tuple[Given, Tokenize]:
    """Return the preprocessing with the `Tokenize` for a language model's text fitted, and that step.

    Args:
        given: As for `fit_preprocessing`; a list has one step `Tokenize`.
        features: The feature columns, one holding bytes.
        train: The training split's columns.

    Raises:
        UserError: There is no text, or the tokens are no characters.
    """
    texts = [column.name for column in features.columns if column.dtype == BYTES]
    if len(texts) != 1:
        raise UserError(f"language_model: needs one feature of texts, got {', '.join(texts) or 'none'}")
    (name,) = texts
    if isinstance(given, str):
        length = max(len(text.decode(errors="replace")) for text in train[name])
        return given, Tokenize(length, side="left", column=name).fit({name: train[name]})
    steps = build_given(given)
    places = [index for index, step in enumerate(steps) if isinstance(step, Tokenize)]
    if len(places) != 1:
        raise UserError(f"preprocessing: a language model of texts needs one step Tokenize, got {len(places)}")
    vocabulary = steps[places[0]]
    assert isinstance(vocabulary, Tokenize)
    if vocabulary.unit != "characters":
        raise UserError("preprocessing: Tokenize: unit must be characters: the target is one character later")
    steps[places[0]] = vocabulary = vocabulary.fit({name: train[name]})
    return steps, vocabulary


def count_unknown_tokens(declaration: Mapping[str, Any], splits: Mapping[str, Arrays]) -> dict[str, dict[str, float]]:
    """Return the share of tokens that the vocabulary lacks, 0 to 1, by text column and split.

    Args:
        declaration: The fitted preprocessing.
        splits: The raw columns of each split but the training split.
    """
    found: dict[str, dict[str, float]] = {}
    for split, arrays in splits.items():
        for column, step in find_tokenizers(declaration, arrays).items():
            unknown, total = step.count_unknown(arrays[column])
            found.setdefault(column, {})[split] = round(unknown / max(total, 1), 4)
    return found


def describe_lengths(declaration: Mapping[str, Any], train: Arrays) -> dict[str, dict[str, float]]:
    """Return the declared length, the share of longer texts (0 to 1) and the length that keeps 95 %, by text column.

    Args:
        declaration: The fitted preprocessing.
        train: The training split's raw columns.

    Returns:
        Only the columns with a longer text.
    """
    found = {}
    for column, step in find_tokenizers(declaration, train).items():
        counts = step.count_tokens(train[column])
        if cut := round(float((counts > step.length).mean()), 4):
            keeping = int(np.quantile(counts, 0.95, method="higher"))
            found[column] = {"length": step.length, "cut": cut, "length_95": keeping}
    return found


def find_tokenizers(declaration: Mapping[str, Any], arrays: Arrays) -> dict[str, Tokenize]:
    """Return the `Tokenize` step of each text column that has one.

    Args:
        declaration: The preprocessing.
        arrays: Raw columns by name.
    """
    texts = [name for name, array in arrays.items() if array.dtype == object]
    steps = [step for step in build_steps(declaration.get("pre", ())) if isinstance(step, Tokenize)]
    named = {step.column or (texts[0] if len(texts) == 1 else ""): step for step in steps}
    return {name: named[name] for name in texts if name in named}


def apply_declaration(declaration: Mapping[str, Any], raw: Arrays, subject: str) -> Arrays:
    """Return the network's inputs for raw columns.

    Args:
        declaration: The preprocessing.
        raw: The columns by name, each with shape (N, …).
        subject: The columns' origin in messages.

    Raises:
        UserError: The columns are not those that the preprocessing takes, or a step does not fit them.
    """
    pipeline = build_pipeline(declaration)
    expected = [spec.name for spec in pipeline.inputs or ()]
    wrong = list_mismatches(pipeline.inputs, raw, ragged=True) if pipeline.inputs else {}
    if wrong:
        found = f"takes {', '.join(expected)}, got {', '.join(raw)}"
        if set(expected) == set(raw):
            found = "; ".join(f"{name}: {mismatch}" for name, mismatch in wrong.items())
        raise UserError(
            f"{subject}: the model's preprocessing {found}",
            hint="Give samples with the inputs that the network was trained on (--dataset, samples=…).",
        )
    return apply_steps(pipeline, raw)


def apply_steps(pipeline: Pipeline, arrays: Arrays) -> Arrays:
    """Return the arrays after a pipeline's preprocessing; images are decoded in parts."""
    count, rows = len(next(iter(arrays.values()))), pipeline.max_rows
    if not count or rows is None:
        return pipeline.preprocess(arrays)
    parts = [
        pipeline.preprocess({name: array[start : start + rows] for name, array in arrays.items()})
        for start in range(0, count, rows)
    ]
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError as error:
        raise UserError(f"images have different sizes ({error})", hint="Add a step: Resize((32, 32)).") from None


def _fit(steps: Sequence[Step], train: Arrays) -> tuple[Step, ...]:
    """Fit steps; image steps before the first fitted step are applied in parts."""
    last = max((index for index, step in enumerate(steps) if isinstance(step, _ROWS)), default=-1)
    if all(type(step).fit is Step.fit for step in steps):
        return tuple(steps)
    first, rest = tuple(steps[: last + 1]), steps[last + 1 :]
    fitted, _ = fit_steps(rest, apply_steps(Pipeline(first), train) if first else train)
    return (*first, *fitted)


def _choose_steps(
    source: Source, features: Features, train: Arrays, statistics: Mapping[str, Any], vocabulary: Step | None
) -> tuple[Step, ...]:
    columns = {column.name: column for column in features.columns}
    steps = [step.fit(train) for step in (_rename(step, features) for step in source.steps) if step is not None]
    if vocabulary is not None:
        steps.append(vocabulary)
    decoded = {step.column for step in steps}
    for name, column in columns.items():
        if name in statistics and column.dtype == "float32" and len(column.shape) < 2:
            steps.append(_standardize(column, statistics[name]))
    for name, parts in features.inputs.items():
        texts = [part for part in parts if columns[part].dtype == BYTES and part not in decoded]
        if len(parts) == 1 and parts[0] == name and texts:
            if source.is_table:
                steps.append(Vocabulary(column=name).fit(train))
                _require_categories(source, name, train[name])
            continue
        for text in texts:
            step = OneHot(column=text).fit(train)
            if len(step.values or ()) > _MAX_CATEGORIES:
                raise UserError(
                    f"{source.where}: the field {text!r} has {len(step.values or ())} different texts, more than "
                    f"{_MAX_CATEGORIES} for one-hot vectors",
                    hint=f'Leave it out (--features), make it an input of indexes (inputs={{"{text}": "{text}", …}}), '
                    'or split it into words (preprocessing=[Tokenize(40, unit="words", lowercase=True, …), …]).',
                )
            _require_categories(source, text, train[text])
            steps.append(step)
        if texts:
            steps.append(Concatenate(parts, name))
    return tuple(steps)


def _normalize_images(steps: Sequence[Step], source: Source) -> tuple[Step, ...]:
    """Decode image files as RGB, and normalise them after the other steps."""
    columns = [step.column for step in steps if isinstance(step, DecodeImage)]
    if not columns:
        raise UserError(
            f"preprocessing: {IMAGENET} is for PNG and JPEG files, {source.where} has none",
            hint="Give a folder with an image folder for each class, or a list of steps.",
        )
    decoded = [_decode_colours(step) if isinstance(step, DecodeImage) else step for step in steps]
    return (*decoded, *(Normalize(_IMAGENET_MEAN, _IMAGENET_STD, column=column) for column in columns))


def _decode_colours(step: DecodeImage) -> DecodeImage:
    changed = copy.copy(step)
    changed.mode = "RGB"
    return changed


def _check_texts(steps: Sequence[Step], source: Source, features: Features, train: Arrays) -> None:
    """Refuse a `Tokenize` step for a field that holds no texts."""
    for step in steps:
        if not isinstance(step, Tokenize):
            continue
        for column in features.columns:
            if column.name != (step.column or features.columns[0].name):
                continue
            field = ", ".join(column.fields) or column.name
            if column.dtype != BYTES:
                found = f"numbers ({column.dtype}, such as {train[column.name].flat[0]})"
            elif not any(text.strip() for text in train[column.name].flat):
                found = "empty texts only"
            else:
                continue
            raise UserError(
                f"{source.where}: {field}: Tokenize needs texts, the field holds {found}",
                hint=f'Name the field with the texts (inputs={{"{column.name}": "FIELD"}}, or -p text=FIELD).',
            )


def _require_categories(source: Source, name: str, texts: NDArray[Any]) -> None:
    if len(texts) >= _MIN_ROWS and len(set(texts.flat)) == texts.size:
        raise UserError(
            f"{source.where}: the field {name!r} has another text in each of {len(texts)} rows, which is no category",
            hint=f'Split it into words (preprocessing=[Tokenize(40, unit="words", lowercase=True, column="{name}")]) '
            "or leave it out (--features).",
        )


def _standardize(column: Column, statistics: Mapping[str, Any]) -> Normalize:
    """Return the `Normalize` for a column's mean and deviation; a constant field keeps its deviation."""
    least = float(np.finfo(np.float32).tiny)
    mean, std = (np.atleast_1d(statistics[key]).tolist() for key in ("mean", "std"))
    if not all(map(math.isfinite, [*mean, *std])):
        fields = column.fields or (column.name,)
        bad = [field for field, one, other in zip(fields, mean, std, strict=False) if not math.isfinite(one + other)]
        raise UserError(f"{', '.join(bad)}: must hold finite numbers", hint="Leave it out: --features NAME,…")
    return Normalize(mean, [value if value > least else 1.0 for value in std], column=column.name)


def _rename(step: Step, features: Features) -> Step | None:
    """Return a source's step for the column that its field is stored in; None when the field is stacked or not kept."""
    for column in features.columns:
        if (step.column,) == (column.fields or (column.name,)):
            return build_steps([{**declare_step(step), "column": column.name}])[0]
    return None
