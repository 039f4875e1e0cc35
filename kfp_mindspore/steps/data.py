"""The step that loads and splits a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.steps.launch.arguments import to_metadata

if TYPE_CHECKING:
    from kfp import dsl


def prepare_dataset(
    artifact: dsl.Dataset,
    name: str,
    *,
    validation: str = "",
    test: str = "",
    features: Sequence[str] = (),
    inputs: Mapping[str, str | Sequence[str]] | None = None,
    preprocessing: str = "",
    missing: str = "refuse",
    image_size: Sequence[float] = (),
    **options: Any,
) -> tuple[int, int, int]:
    """Load a dataset into an artifact, split it and describe it in the artifact's metadata.

    Args:
        artifact: Output artifact; the dataset directory is written to its path.
        name: Name, path or URI, see `kfp_mindspore.data.load_dataset`.
        validation: The validation split's path or URI; empty for a source fraction.
        test: The test split's path or URI; empty for a source fraction.
        features: Feature fields; empty for all without another role.
        inputs: Fields by network input; empty for the default.
        preprocessing: `standardize`, `none` or a JSON list of steps; empty for the format's default.
        missing: Rule for missing values; a number as text.
        image_size: Image height and width in a folder; empty for the most frequent size.
        options: Other `load_dataset` options.

    Returns:
        Samples in the train, validation and test splits.
    """
    from kfp_mindspore.data import load_dataset
    from kfp_mindspore.data.options import join_sources, parse_missing, parse_preprocessing
    from kfp_mindspore.data.report import render_report

    size = tuple(int(side) for side in image_size)
    dataset = load_dataset(
        join_sources(name, validation, test),
        artifact.path,
        features=list(features) or None,
        inputs=inputs or None,
        preprocessing=parse_preprocessing(preprocessing),
        missing=parse_missing(missing),
        image_size=(size[0], size[-1]) if size else None,
        **options,
    )
    print(render_report(dataset))
    artifact.metadata.update(
        name=dataset.name,
        seed=dataset.seed,
        labels=to_metadata(dataset.labels),
        task=dataset.task,
        columns=to_metadata([vars(column) for column in dataset.columns]),
        splits=to_metadata(dataset.splits),
        report=to_metadata(dataset.report),
        digest=dataset.digest,
    )
    return dataset.splits["train"], dataset.splits["validation"], dataset.splits["test"]
