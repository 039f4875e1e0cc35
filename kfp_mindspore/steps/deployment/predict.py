"""The step that computes a model bundle's predictions for a dataset shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.data.sources.formats import list_parts
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import DESCRIPTION, Dataset
from kfp_mindspore.settings import AUTO

# Rows that are preprocessed at once.
_ROWS = 256

if TYPE_CHECKING:
    from kfp import dsl
    from numpy.typing import NDArray

    from kfp_mindspore.formats.bundle import ModelBundle


def predict_batch(
    bundle: dsl.Model,
    dataset: dsl.Dataset,
    predictions: dsl.Dataset,
    *,
    split: str = "test",
    shard: str = "1/1",
    engine: str = "memory",
    delimiter: str = "",
    device: str = "auto",
) -> int:
    """Write the predictions for one split shard as JSON lines.

    Shard "k/n" has every n-th sample from the k-th on; the shards "1/n" to "n/n" together have each sample once.

    Args:
        bundle: The model bundle.
        dataset: The dataset directory, or raw rows as `kfp_mindspore.data.rows.read_rows` reads them: a file, or a
            folder with one, or with one for each split.
        predictions: Output file: {"index", "outputs": {name: values}, "prediction"} per line. The prediction is the
            class, the labels, the number or the ids by task, and absent for a task without one.
        split: The dataset's split.
        shard: The shard and the shard count: "2/4" for the second shard out of four.
        engine: `memory` for one process, or `ray` for Ray's workers.
        delimiter: The character between two cells of a CSV file; empty to find it.
        device: See `kfp_mindspore.mindir.devices.DeviceOptions`; with `ray`, the workers have `auto`.

    Returns:
        How many samples the shard has.

    Raises:
        UserError: The shard is no such pair, or bundle and dataset do not fit together.
    """
    import numpy as np

    from kfp_mindspore.data.options import ENGINES
    from kfp_mindspore.data.split import parse_shard
    from kfp_mindspore.formats.bundle import MODEL_FILE, ModelBundle
    from kfp_mindspore.mindir.devices import use_device
    from kfp_mindspore.mindir.evaluate import open_model_samples

    number, count = parse_shard(shard)
    if engine not in ENGINES:
        raise ValidationError([f"engine: must be one of {', '.join(ENGINES)}, got {engine!r}"], subject="batch_predict")
    opened = ModelBundle.open(bundle.path)
    if device != AUTO:
        if engine == "ray":
            raise ValidationError(["device: must be auto with engine ray, whose workers choose"])
        use_device(device)
    path = Path(dataset.path)
    lines: Iterable[str] = ()
    if not _is_raw(path):
        data = Dataset.open(path)
        if split not in data.splits:
            raise UserError(f"{data.path}: no split {split!r}, found {', '.join(data.splits)}")
        indexes = np.arange(number - 1, data.splits[split], count)
        if engine == "ray" and len(indexes):
            from kfp_mindspore.ray import predict_rows

            lines = predict_rows(bundle.path, dataset.path, split, indexes)
        elif len(indexes):
            lines = _compute_lines(opened, data.task, indexes, open_model_samples(opened, data, split)(indexes))
    elif engine == "ray":
        raise UserError(
            f"{path}: engine ray predicts a dataset directory, found raw rows", hint="Load them first: load_dataset."
        )
    else:
        indexes, inputs = _read_raw(opened, _select_file(path, split), number, count, delimiter)
        if len(indexes):
            lines = _compute_lines(opened, opened.signature.task, indexes, inputs)
    file = Path(predictions.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as stream, events.span("mindir.predict"):
        stream.writelines(line + "\n" for line in lines)
    predictions.metadata.update(
        format="jsonl",
        split=split,
        shard=number,
        shards=count,
        samples=len(indexes),
        model_sha256=opened.signature.files[MODEL_FILE]["sha256"],
    )
    return len(indexes)


def _is_raw(path: Path) -> bool:
    """Return whether a path has raw rows: a file, or a folder with tables that is no dataset directory."""
    return path.is_file() or (path.is_dir() and not (path / DESCRIPTION).is_file() and bool(list_parts(path)))


def _select_file(path: Path, split: str) -> Path:
    """Return the file with raw rows: the path, or a folder's only file or the split's.

    Raises:
        UserError: The folder has other splits.
    """
    if path.is_file():
        return path
    parts = list_parts(path)
    if len(parts) > 1 and split not in parts:
        raise UserError(f"{path}: no split {split!r}, found {', '.join(parts)}")
    return parts[split] if len(parts) > 1 else parts["train"]


def _read_raw(
    bundle: ModelBundle, path: Path, number: int, count: int, delimiter: str
) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Return a shard's places in a file with raw rows, from 0, and the graph's inputs for them."""
    import numpy as np

    from kfp_mindspore.data.rows import read_rows
    from kfp_mindspore.transform.load import load_transform

    transform, signature = load_transform(bundle, allow_code=False), bundle.signature
    specs = signature.free_batch(signature.inputs) if transform is None else transform.inputs
    rows = read_rows(path, specs, signature.rows, delimiter=delimiter)
    total = len(next(iter(rows.inputs.values())))
    places = np.arange(total) if rows.kept is None else np.flatnonzero(rows.kept)
    chosen = places % count == number - 1
    inputs = {name: array[chosen] for name, array in rows.inputs.items()}
    if transform is None or not chosen.any():
        return places[chosen], inputs
    size = transform.transform.max_rows or _ROWS
    parts = [
        transform.run_preprocess({name: array[start : start + size] for name, array in inputs.items()})
        for start in range(0, int(chosen.sum()), size)
    ]
    return places[chosen], {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _compute_lines(
    bundle: ModelBundle, task: str, indexes: NDArray[Any], inputs: dict[str, NDArray[Any]]
) -> Iterator[str]:
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.evaluation.predictions import decode_scores, render_lines
    from kfp_mindspore.mindir import GraphRunner
    from kfp_mindspore.mindir.devices import use_device

    import_mindspore()
    use_device()
    with GraphRunner(bundle, warm=()) as runner:
        outputs = runner.predict(inputs)
    signature = bundle.signature
    decoded = decode_scores(signature.task or task, outputs[signature.outputs[0].name], signature.labels)
    yield from render_lines(indexes.tolist(), outputs, decoded)
