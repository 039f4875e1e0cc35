"""An export's held-out samples, and the preprocessing and postprocessing that the bundle declares."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.example_rows import read_example
from kfp_mindspore.data.preprocessing import apply_declaration
from kfp_mindspore.data.rows import read_rows
from kfp_mindspore.data.samples import GROUP, read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform.boxes import LetterboxImage, SelectBoxes
from kfp_mindspore.transform.categories import find_refused
from kfp_mindspore.transform.declaration import build_pipeline, build_steps, declare_step
from kfp_mindspore.transform.images import DecodeImage
from kfp_mindspore.transform.values import Label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_SPLIT = "test"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportSamples:
    """Samples to compare the exported graph with the network.

    Args:
        inputs: The network's inputs by name, each with shape (N, …).
        raw: The same samples as requests have them; equal to `inputs` without a preprocessing.
        declaration: The declared preprocessing; empty for none.
        target: Targets as the dataset stores them, shape (N, …), or None.
        weight: Each sample's weight, float32 with shape (N,), or None.
        groups: Each sample's query in a ranking, (N,), or None.
        labels: Class names.
        task: The dataset's task; empty without a dataset.
        origin: Where they come from, for the signature's `verified`.
        dataset: The dataset, or None.
    """

    inputs: Arrays
    raw: Arrays
    declaration: Mapping[str, Any] = field(default_factory=dict)
    target: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    labels: tuple[str, ...] = ()
    task: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)
    dataset: Dataset | None = None

    @property
    def is_classification(self) -> bool:
        """Whether the labels are class names, and each sample has one class."""
        return self.task == "classification" and bool(self.labels)


def load_export_samples(
    checkpoint: Checkpoint,
    dataset_dir: Path | str | None,
    samples: NDArray[Any] | Mapping[str, NDArray[Any]] | None,
    count: int,
    *,
    declared: bool,
) -> ExportSamples:
    """Read an export's samples and apply the preprocessing that the network was trained with.

    Args:
        checkpoint: The checkpoint, whose preprocessing has precedence over the dataset's.
        dataset_dir: A dataset directory, whose test split is read.
        samples: Arrays instead of a dataset: raw, if the checkpoint records a preprocessing and `declared` is set.
        count: How many samples to read from the dataset.
        declared: Whether the bundle declares the preprocessing; not so with a transform.

    Raises:
        UserError: There are no samples, or the preprocessing does not fit them.
    """
    import numpy as np

    declaration = checkpoint.preprocessing if declared else {}
    if samples is not None:
        arrays = dict(samples) if isinstance(samples, Mapping) else {_get_name(declaration): samples}
        if not arrays or len({len(array) if array.ndim else 0 for array in arrays.values()} | {0}) != 2:
            raise UserError("samples: must be arrays of the same number of rows, at least 1")
        raw = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        inputs = apply_declaration(declaration, raw, "samples") if declaration else raw
        inputs = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        return _leave_out_refused(ExportSamples(inputs, raw, declaration, origin={"dataset": "samples"}))
    if dataset_dir is None:
        raise UserError(
            "export needs real inputs to compare the exported graph with the network",
            hint="Give a dataset (--dataset, dataset_dir=…) or rows: a file (--example) or arrays (samples=…).",
        )
    dataset = Dataset.open(dataset_dir)
    held_out = read_samples(dataset, _SPLIT, count=count, preprocessing=declaration or None)
    if declared and not declaration:
        declaration = dataset.preprocessing
    elif declaration and declaration != dataset.preprocessing:
        _logger.warning(
            "%s: declares another preprocessing than %s was trained with, whose is exported",
            dataset_dir,
            checkpoint.path,
        )
    found = ExportSamples(
        held_out.inputs,
        held_out.raw,
        declaration,
        target=held_out.target,
        weight=held_out.weight,
        groups=held_out.ids.get(GROUP),
        labels=dataset.labels,
        task=dataset.task,
        origin={"dataset": dataset.name, "split": _SPLIT, "sha256": dataset.digest},
        dataset=dataset,
    )
    return _leave_out_refused(found)


def _leave_out_refused(samples: ExportSamples) -> ExportSamples:
    """Return the samples without those with a category that the server refuses, which the smoke test would send."""
    import numpy as np

    kept = np.logical_not(find_refused(build_pipeline(samples.declaration), samples.raw))
    if kept.all():
        return samples
    if not kept.any():
        raise UserError(
            "samples: each has a category that the training split does not have, which the server would refuse",
            hint="Load the dataset with --unknown ignore, or with more samples.",
        )
    _logger.warning("%d of %d samples are left out: their categories are refused", int((~kept).sum()), len(kept))

    def select(value: Any) -> Any:
        return {name: array[kept] for name, array in value.items()} if isinstance(value, dict) else value[kept]

    parts = {name: getattr(samples, name) for name in ("inputs", "raw", "target", "weight", "groups")}
    return replace(samples, **{name: select(value) for name, value in parts.items() if value is not None})


def read_example_file(
    path: Path | str, declaration: Mapping[str, Any], count: int
) -> NDArray[Any] | Mapping[str, NDArray[Any]]:
    """Read a file's first rows: raw ones by the declaration's inputs, otherwise the network's inputs.

    Args:
        path: A file in one of `kfp_mindspore.data.rows`'s formats.
        declaration: The preprocessing; empty for none.
        count: How many rows.

    Raises:
        UserError: The file cannot be read, or does not fit.
    """
    inputs = build_pipeline(declaration).inputs
    if not inputs:
        return read_example(path, count)
    return {name: array[:count] for name, array in read_rows(path, inputs).inputs.items()}


def prepare_pictures(samples: ExportSamples) -> ExportSamples:
    """Return a detection's samples with the pictures' extents, by which the graph gives boxes in pixels.

    Raises:
        UserError: The preprocessing does not begin with a `DecodeImage` that resizes to two sides.
    """
    first, *rest = samples.declaration.get("pre", ()) or [{}]
    step = build_steps([first])[0] if first.get("type") == "DecodeImage" else None
    if not isinstance(step, DecodeImage) or not isinstance(step.resize, tuple) or not step.resize or step.crop:
        raise UserError(
            f"preprocessing: a detector needs DecodeImage(resize=(H, W)) first, got {first.get('type', 'none')}",
            hint="Load the dataset without preprocessing=…, or with imagenet.",
        )
    options: dict[str, Any] = {"max_pixels": step.max_pixels, "resample": step.resample, "column": step.column}
    letterbox = LetterboxImage(step.resize, stretch=True, **options)
    declaration = {**samples.declaration, "pre": [declare_step(letterbox), *rest]}
    inputs = build_pipeline(declaration).preprocess(samples.raw)
    return replace(samples, inputs=inputs, declaration=declaration)


def declare_serving(samples: ExportSamples, names: Mapping[str, str], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return a bundle's declaration: the dataset's preprocessing, and the output with the predicted text.

    A classification has `label`; a language model over texts whose last id is the last token's has `next`, the most
    likely next token.

    Args:
        samples: The export's samples.
        names: The graph's input by the network's input name in the samples.
        outputs: The graph's outputs.

    Returns:
        The declaration; empty when the server runs the graph alone.
    """
    pre = [*samples.declaration.get("pre", ())]
    if pre:
        pre += [
            {"type": "Rename", "name": graph, "column": column} for column, graph in names.items() if column != graph
        ]
    post = [*samples.declaration.get("post", ())]
    if not post and samples.task == "detection":
        logits, boxes = (spec.name for spec in outputs)
        post = [declare_step(SelectBoxes(samples.labels, logits=logits, column=boxes))]
    continues = _continues_texts(samples)
    if not post and (samples.is_classification or continues):
        classes = (len(samples.labels),)
        scores = [
            spec
            for spec in outputs
            if spec.shape[2 if continues else 1 :] == classes and spec.dtype.startswith("float")
        ]
        if scores:
            column = scores[0].name if len(outputs) > 1 else ""
            name = "next" if continues else "label"
            post = [declare_step(Label(samples.labels, name=name, last=continues, column=column))]
    if not pre and not post:
        return {}
    inputs = {"inputs": [spec.to_dict() for spec in _describe_raw(samples)]} if pre else {}
    return {**inputs, "pre": pre, "post": post}


def _continues_texts(samples: ExportSamples) -> bool:
    """Return whether the last position in a language model's scores predicts the token after the text."""
    steps = samples.declaration.get("pre", ())
    return samples.task == "language_model" and any(
        step["type"] == "Tokenize" and step.get("side") == "left" for step in steps
    )


def _describe_raw(samples: ExportSamples) -> list[TensorSpec]:
    return list(build_pipeline(samples.declaration).inputs or ()) or [
        TensorSpec(name, "bytes" if array.dtype == object else array.dtype.name, (-1, *array.shape[1:]))
        for name, array in samples.raw.items()
    ]


def _get_name(declaration: Mapping[str, Any]) -> str:
    inputs = build_pipeline(declaration).inputs or ()
    return inputs[0].name if len(inputs) == 1 else "input"
