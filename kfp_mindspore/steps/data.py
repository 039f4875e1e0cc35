"""The step that loads and splits a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.steps.launch.arguments import to_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from kfp import dsl

    from kfp_mindspore.data.options import DatasetOptions
    from kfp_mindspore.formats.dataset import Dataset


def prepare_dataset(
    artifact: dsl.Dataset, name: str, source: dsl.Artifact | None, options: DatasetOptions
) -> tuple[int, int, int]:
    """Load a dataset into an artifact, split it and describe it in the artifact's metadata.

    Args:
        artifact: Output artifact; the dataset directory is written there.
        name: Name, path or URI, see `kfp_mindspore.data.load_dataset`.
        source: Artifact with the data, in place of the name; None without one.
        options: The options, as texts where a parameter has one type.

    Returns:
        Samples in the train, validation and test splits.
    """
    from kfp_mindspore.data.options import parse_texts
    from kfp_mindspore.data.report import render_report

    if source is not None:
        name = source.path
        print(f"source: {source.uri}")
    dataset = load_by_engine(name, artifact.path, parse_texts(options))
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


def load_by_engine(source: str, directory: Path | str, options: DatasetOptions) -> Dataset:
    """Load a dataset with the engine that the options name.

    Args:
        source: Name, path or URI.
        directory: The dataset directory to write.
        options: The options.

    Raises:
        NotFoundError: There is no such path.
    """
    if options.engine == "ray":
        from kfp_mindspore.data.fetch import resolve_path

        if "://" not in source:
            # Before the import of Ray Data, which takes seconds.
            resolve_path(source, hint="Engine ray reads a path or a URI; named data sets are for engine memory.")
        from kfp_mindspore.ray import load_dataset
    else:
        from kfp_mindspore.data import load_dataset
    return load_dataset(source, directory, options)
