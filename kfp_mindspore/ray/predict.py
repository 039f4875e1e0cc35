"""A bundle's predictions for a dataset split, computed by Ray Data in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from kfp_mindspore.compat.mindspore_import import import_mindspore
from kfp_mindspore.evaluation.predictions import decode_scores, render_lines
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.ray.job import connect

if TYPE_CHECKING:
    from numpy.typing import NDArray


def predict_rows(
    bundle: Path | str,
    dataset: Path | str,
    split: str,
    indexes: NDArray[Any],
    *,
    batch_size: int = 256,
    concurrency: int | tuple[int, int] = 1,
) -> Iterator[str]:
    """Yield a JSON line for each sample, in order: index, outputs and prediction as `batch_predict` writes them.

    Ray is started on this machine unless it is initialised or RAY_ADDRESS is set. Each worker opens the bundle and the
    dataset itself, so the nodes must have both under these paths. A dataset with Parquet shards is read by blocks,
    another one as a whole by each worker.

    Args:
        bundle: The bundle's directory.
        dataset: The dataset directory.
        split: The dataset's split.
        indexes: The samples, at least one.
        batch_size: Samples that a worker computes at once.
        concurrency: Workers, or least and most workers; each has one CPU.
    """
    connect(log_to_driver=False)
    context = ray.data.DataContext.get_current()
    before, context.execution_options.preserve_order = context.execution_options.preserve_order, True
    try:
        lines = ray.data.from_numpy(indexes).map_batches(
            _Predictor,
            fn_constructor_args=(str(bundle), str(dataset), split),
            batch_size=batch_size,
            concurrency=concurrency,
            num_cpus=1,
        )
        for row in lines.iter_rows():
            yield row["line"]
    finally:
        context.execution_options.preserve_order = before


class _Predictor:
    """A worker with the bundle's graph and the split's samples."""

    def __init__(self, bundle: str, dataset: str, split: str) -> None:
        from kfp_mindspore.mindir import GraphRunner
        from kfp_mindspore.mindir.evaluate import open_model_samples

        import_mindspore()
        opened, data = ModelBundle.open(bundle), Dataset.open(dataset)
        self._signature = opened.signature
        self._task = opened.signature.task or data.task
        self._read = open_model_samples(opened, data, split)
        self._runner = GraphRunner(opened, warm=())

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, list[str]]:
        indexes = batch["data"]
        outputs = self._runner.predict(self._read(indexes))
        first = outputs[self._signature.outputs[0].name]
        decoded = decode_scores(self._task, first, self._signature.labels)
        return {"line": list(render_lines(indexes.tolist(), outputs, decoded))}
