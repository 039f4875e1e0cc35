"""The step that selects unlabelled samples and moves them to the labelled ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kfp_mindspore.steps.launch.arguments import to_metadata

if TYPE_CHECKING:
    from kfp import dsl
    from numpy.typing import NDArray

    from kfp_mindspore.formats.dataset import Dataset

    Arrays = dict[str, NDArray[Any]]

LABELLED = "train"
POOL = "pool"


def select_from_pool(
    bundle: dsl.Model | None,
    dataset: dsl.Dataset,
    selected: dsl.Dataset,
    *,
    strategy: str,
    count: int,
    seed: int,
) -> tuple[list[int], int, int]:
    """Move samples from the split `pool` to the split `train`.

    Args:
        bundle: The model whose scores decide; None for the strategy `random`.
        dataset: The dataset directory; without a split `pool`, `train` is the pool.
        selected: Output artifact; the dataset directory is written there.
        strategy: See `kfp_mindspore.evaluation.select_samples`.
        count: Samples to select.
        seed: Seed for `random`, and for the order among equal samples.

    Returns:
        The selected samples' indexes in the pool, and both splits' sample counts afterwards.

    Raises:
        UserError: An argument is invalid, or bundle and dataset do not fit together.
    """
    import numpy as np

    from kfp_mindspore.errors import UserError
    from kfp_mindspore.evaluation.selection import check_strategy, select_samples
    from kfp_mindspore.formats.dataset import Dataset, write_dataset

    check_strategy(strategy)
    source = Dataset.open(dataset.path)
    splits = {split: source.read_columns(split) for split in source.splits}
    is_first = POOL not in splits
    if is_first:
        splits[POOL] = splits[LABELLED]
        splits[LABELLED] = {name: array[:0] for name, array in splits[POOL].items()}
    size = _count(splits[POOL])
    if strategy == "random":
        scores, labelled = np.empty((size, 0), np.float32), None
    elif bundle is None or is_first:
        raise UserError(
            f"strategy: {strategy} needs a bundle trained on the labelled samples of a dataset with the split {POOL!r}",
            hint="Select the first samples with strategy='random'.",
        )
    else:
        scores, labelled = _compute_scores(bundle.path, source)
    indexes = select_samples(scores, count, strategy=strategy, labelled=labelled, seed=seed)
    rest = np.setdiff1d(np.arange(size), indexes)
    pool = splits[POOL]
    splits[LABELLED] = {name: np.concatenate([array, pool[name][indexes]]) for name, array in splits[LABELLED].items()}
    splits[POOL] = {name: array[rest] for name, array in pool.items()}
    written = write_dataset(
        selected.path,
        name=source.name,
        task=source.task,
        columns=source.columns,
        splits=splits,
        labels=source.labels,
        seed=source.seed,
        preprocessing=source.preprocessing,
        statistics=source.statistics,
        report=source.report,
        storage=source.storage,
    )
    selected.metadata.update(
        name=written.name,
        task=written.task,
        labels=to_metadata(written.labels),
        splits=to_metadata(written.splits),
        strategy=strategy,
        digest=written.digest,
    )
    return indexes.tolist(), written.splits[LABELLED], written.splits[POOL]


def _compute_scores(bundle: str, dataset: Dataset) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the graph's first output for the pool and for the labelled samples, each with shape (N, K)."""
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.formats.bundle import ModelBundle
    from kfp_mindspore.mindir import GraphRunner
    from kfp_mindspore.mindir.evaluate import read_model_samples, select_inputs

    opened = ModelBundle.open(bundle)
    output = opened.signature.outputs[0].name
    import_mindspore()
    with GraphRunner(opened, warm=()) as runner:

        def compute(split: str) -> NDArray[Any]:
            scores = runner.predict(select_inputs(opened, read_model_samples(opened, dataset, split)))[output]
            return scores.reshape(len(scores), -1)

        return compute(POOL), compute(LABELLED)


def _count(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))
