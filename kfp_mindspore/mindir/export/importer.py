"""Import of a MindIR that was exported by another program as a model bundle."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.compat.graph_executor import CompiledGraph
from kfp_mindspore.data.rows import read_rows
from kfp_mindspore.data.samples import read_samples
from kfp_mindspore.errors import UserError, join_names
from kfp_mindspore.formats.bundle import (
    MODEL_FILE,
    OUTPUT,
    ModelBundle,
    Signature,
    TensorSpec,
    VerifiedSamples,
    write_bundle,
)
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.manifest import describe_files
from kfp_mindspore.formats.tensors import list_mismatches
from kfp_mindspore.mindir.devices import use_device
from kfp_mindspore.mindir.environment import import_mindspore
from kfp_mindspore.mindir.export.padding import shorten_error
from kfp_mindspore.mindir.graph.encryption import ENCRYPTION, load_graph
from kfp_mindspore.mindir.graph.execution import KERNEL_ERRORS
from kfp_mindspore.mindir.graph.index_ranges import IndexRanges, add_ranges, compute_index_ranges
from kfp_mindspore.mindir.graph.metadata import (
    count_operators,
    inspect_mindir,
    is_encrypted,
    list_weight_files,
    read_proto,
    read_weights,
)
from kfp_mindspore.mindir.monitoring.statistics import compute_statistics
from kfp_mindspore.mindir.options import ExportChanges, ExportOptions, resolve_tolerance
from kfp_mindspore.mindir.verify import measure_difference, run_and_compare
from kfp_mindspore.outputs import check_replaceable

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    Arrays = dict[str, NDArray[Any]]

# Size of generated free dimensions.
_LENGTH = 8
_SEED = 20
_RANDOM = re.compile("^Rand|Random|Dropout|Bernoulli|Multinomial|Standard(Normal|Laplace)|Uniform(Int|Real|Ext)")
_EXAMPLE_HINT = "Give rows that the model accepts: --example FILE, or samples=…."


def import_mindir(
    file: Path | str,
    output_dir: Path | str,
    options: ExportOptions | None = None,
    *,
    dataset_dir: Path | str | None = None,
    samples: Mapping[str, NDArray[Any]] | Path | str | None = None,
    key: bytes | None = None,
    **changes: Unpack[ExportChanges],
) -> ModelBundle:
    """Make a MindIR file a model bundle; the graph's outputs on samples are recorded.

    On any error nothing is written, and an existing bundle at `output_dir` is unchanged.

    Args:
        file: The MindIR.
        output_dir: The bundle directory to write; replaced when it exists.
        options: `sample_count`, `metadata`, `tolerance`, `statistics`, `device` and `device_id`; the other fields are a
            checkpoint's.
        dataset_dir: A dataset directory; test samples are kept after the dataset's preprocessing, with their
            targets, and statistics are its training split's. Its inputs have the graph's names, or are the only one.
        samples: Inputs by name, or a file with rows (`kfp_mindspore.data.rows`); default random ones: normal numbers,
            integers 0 and 1, indices in their tables.
        key: An encrypted file's key, see `export_mindir`; the bundle's model stays encrypted.
        changes: Fields that differ from `options`.

    Returns:
        The bundle, opened.

    Raises:
        UserError: The file is damaged, stateful or has custom operators, or the samples do not fit; the message names
            the operator, weight or input.
        MissingExtraError: MindSpore is not installed.
    """
    options = dataclasses.replace(options or ExportOptions(), **changes)
    options.check()
    file = Path(file)
    rows = samples if isinstance(samples, (Path, str)) else None
    check_replaceable(Path(output_dir), OUTPUT, [file, dataset_dir, rows])
    model = read_proto(file, key=key)
    read_weights(file, key=key)
    _check_operators(file, model)
    specs = _list_inputs(file, inspect_mindir(file, key=key).inputs)
    metadata = {name: str(text) for name, text in (options.metadata or {}).items()}
    version = model.model_version or import_mindspore().__version__
    declared = Signature(specs, (), version, metadata=metadata)
    batch = declared.batch_size
    target: NDArray[Any] | None = None
    named: dict[str, str] = {}
    if dataset_dir is not None:
        if samples is not None:
            raise UserError("dataset, samples: give one of them")
        given, target, named = _read_dataset(file, dataset_dir, declared, options.sample_count)
        origin = named.pop("dataset")
    elif samples is None:
        given, origin = _generate(file, declared, compute_index_ranges(model), options.sample_count), "generated"
    else:
        given, origin = _read(file, samples, declared, options.sample_count), "samples"
    described = {"imported": file.name, "producer": model.producer_name, **named, **metadata}
    if is_encrypted(file):
        described["encryption"] = ENCRYPTION
    use_device(options.device, options.device_id)
    with events.span("mindir.import"), write_bundle(output_dir) as writer:
        shutil.copyfile(file, writer.directory / MODEL_FILE)
        for name in list_weight_files(model):
            shutil.copyfile(file.with_name(name), writer.directory / name)
        plain = {"encryption": described["encryption"]} if "encryption" in described else {}
        bundle = ModelBundle(writer.directory, Signature(specs, (), version, metadata=plain))
        graph = _Runner(file, CompiledGraph(load_graph(bundle, key)), specs, batch)
        outputs = graph.run(given)
        if measure_difference(outputs, graph.run(given)):
            raise UserError(f"{file}: stateful or random: its outputs change from run to run")
        free = graph.list_free(given, outputs)
        shapes = [TensorSpec(name, array.dtype.name, free[name]) for name, array in outputs.items()]
        signature = Signature(specs, tuple(shapes), version, metadata=described)
        if not signature.batch_size and batch > 0:
            given = {name: array[:batch] for name, array in given.items()}
            outputs = graph.run(given)
            target = target[:batch] if target is not None else None
        signature = add_ranges(signature, model, given)
        kept = VerifiedSamples(given, outputs, target)
        tolerance = kept.scale_tolerance(
            resolve_tolerance(options.tolerance, [array.dtype.name for array in kept.outputs.values()])
        )
        writer.write_verified(kept)
        bundle = ModelBundle(writer.directory, dataclasses.replace(signature, files=describe_files(writer.directory)))
        difference = _compare(file, bundle, kept, tolerance, key)
        trained = Dataset.open(dataset_dir) if options.statistics and dataset_dir is not None else None
        if trained is not None and (found := compute_statistics(bundle, trained, key=key)):
            writer.write_statistics(found)
        verified = {"dataset": origin, "samples": len(kept), "max_abs_diff": difference, "tolerance": tolerance}
        writer.sign(dataclasses.replace(signature, verified=verified))
        ModelBundle.open(writer.directory, verify=False)
    return ModelBundle.open(output_dir)


class _Runner:
    """A compiled graph, run in batches with its size."""

    def __init__(self, file: Path, graph: CompiledGraph, specs: Sequence[TensorSpec], batch: int) -> None:
        self._file = file
        self._graph = graph
        self._specs = specs
        self._batch = batch

    def run(self, arrays: Arrays) -> Arrays:
        """Return the outputs by name.

        Raises:
            UserError: The graph does not compute the samples.
        """
        import numpy as np

        rows = len(next(iter(arrays.values())))
        step = self._batch if self._batch > 0 else rows
        parts = []
        for start in range(0, rows, step) if self._batch else (0,):
            indexes = np.minimum(np.arange(start, start + step), rows - 1)
            try:
                results = self._graph.run(
                    [arrays[spec.name][indexes] if self._batch else arrays[spec.name] for spec in self._specs]
                )
            except KERNEL_ERRORS as error:
                listed = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
                raise UserError(
                    f"{self._file}: the graph does not compute {listed}: {shorten_error(error)}", hint=_EXAMPLE_HINT
                ) from error
            # The memory is the executor's.
            parts.append([np.array(array) for array in results])
        if any(array.ndim == 0 or len(array) != step for array in parts[0]) or not self._batch:
            columns = parts[0]
        else:
            columns = [np.concatenate(column)[:rows] for column in zip(*parts, strict=True)]
        names = ["output"] if len(columns) == 1 else [f"output_{index}" for index in range(len(columns))]
        return dict(zip(names, columns, strict=True))

    def list_free(self, arrays: Arrays, outputs: Arrays) -> dict[str, tuple[int, ...]]:
        """Return each output's shape, -1 for dimensions that change with the inputs' free ones."""
        shapes = {name: list(array.shape) for name, array in outputs.items()}
        if self._batch > 0:
            for name, array in self.run({name: array[: self._batch] for name, array in arrays.items()}).items():
                shapes[name][:1] = array.shape[:1]
        changes = []
        if self._batch < 0 and len(next(iter(arrays.values()))) > 1:
            changes.append({name: array[:-1] for name, array in arrays.items()})
        if changed := self._resize(arrays):
            changes.append(changed)
        for changed in changes:
            for name, array in self.run(changed).items():
                for axis, size in enumerate(array.shape):
                    if size != outputs[name].shape[axis]:
                        shapes[name][axis] = -1
        if self._batch < 0 and len(next(iter(arrays.values()))) == 1:
            for shape in shapes.values():
                shape[:1] = [-1] if shape[:1] == [1] else shape[:1]
        return {name: tuple(shape) for name, shape in shapes.items()}

    def _resize(self, arrays: Arrays) -> Arrays:
        """Return the arrays with other sizes of the free dimensions other than the batch; empty without one."""
        import numpy as np

        changed = dict(arrays)
        for spec in self._specs:
            for axis, size in enumerate(spec.shape):
                if size == -1 and (axis or not self._batch):
                    array = changed[spec.name]
                    changed[spec.name] = np.concatenate([array, array.take([0], axis)], axis)
        return changed if any(changed[name] is not arrays[name] for name in arrays) else {}


def _check_operators(file: Path, model: Any) -> None:
    operators = count_operators(model)
    if custom := sorted(name for name in operators if name.startswith("Custom")):
        raise UserError(
            f"{file}: has the custom operator {join_names(custom)}, whose code is not in the file",
            hint="Write the network with MindSpore's operators, and export it again.",
        )
    weights = {tensor.name for tensor in model.graph.parameter}
    writers = {
        primitive.name
        for primitive in model.primitives
        if any(attribute.name == "side_effect_mem" and attribute.i for attribute in primitive.attribute)
    }
    stateful: dict[str, str] = {}
    for graph in (model.graph, *model.functions):
        for node in graph.node:
            name = node.op_type.removeprefix("REF::")
            if written := [value for value in node.input if name in writers and value in weights]:
                stateful[name.partition(":")[0]] = written[-1].rpartition(":")[2]
    reasons = [f"{operator} changes the parameter {weight}" for operator, weight in stateful.items()]
    reasons += [f"{operator} draws random numbers" for operator in sorted(filter(_RANDOM.search, operators))]
    if reasons:
        raise UserError(
            f"{file}: stateful: {join_names(reasons)}",
            hint="Call network.set_train(False) before mindspore.export, or remove the operator.",
        )


def _list_inputs(file: Path, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    import numpy as np

    for spec in specs:
        if spec.dtype not in np.sctypeDict:
            raise UserError(f"{file}: input {spec.name!r}: must be a tensor with a NumPy dtype, is {spec.dtype}")
        if not spec.shape:
            raise UserError(
                f"{file}: input {spec.name!r}: must have a dimension, is a scalar",
                hint="Let the network take a tensor with shape (1,).",
            )
    if len({spec.name for spec in specs}) < len(specs):
        raise UserError(f"{file}: its inputs must have different names, got {join_names(spec.name for spec in specs)}")
    return tuple(specs)


def _read(file: Path, samples: Mapping[str, NDArray[Any]] | Path | str, declared: Signature, count: int) -> Arrays:
    specs = declared.free_batch(declared.inputs)
    arrays = read_rows(samples, specs).inputs if isinstance(samples, Path | str) else dict(samples)
    source = samples if isinstance(samples, Path | str) else "samples"
    if mistakes := list_mismatches(specs, arrays):
        listed = "; ".join(f"input {name!r}: {what}" for name, what in mistakes.items())
        raise UserError(f"{source}: does not fit {file}: {listed}")
    if not declared.batch_size:
        return arrays
    if len({len(array) for array in arrays.values()}) > 1:
        raise UserError(f"{source}: all inputs must have the same number of rows")
    return {name: array[:count] for name, array in arrays.items()}


def _read_dataset(
    file: Path, directory: Path | str, declared: Signature, count: int
) -> tuple[Arrays, NDArray[Any] | None, dict[str, str]]:
    """Return a test split's first samples and targets, and the metadata: `dataset`, `task` and `labels`."""
    dataset = Dataset.open(directory)
    held_out = read_samples(dataset, "test", count=count)
    names = [spec.name for spec in declared.inputs]
    arrays = held_out.inputs
    if len(names) == len(arrays) == 1:
        arrays = dict(zip(names, arrays.values(), strict=True))
    if mistakes := list_mismatches(declared.free_batch(declared.inputs), arrays):
        listed = "; ".join(f"input {name!r}: {what}" for name, what in mistakes.items())
        raise UserError(
            f"{directory}: does not fit {file}: {listed}",
            hint="Load the data with the inputs and the preprocessing that the network was trained with.",
        )
    named = {"dataset": dataset.name, "task": dataset.task}
    if dataset.labels:
        named["labels"] = json.dumps(list(dataset.labels))
    return arrays, held_out.target, named


def _generate(file: Path, declared: Signature, found: IndexRanges, count: int) -> Arrays:
    import numpy as np

    source = np.random.default_rng(_SEED)
    ranges: dict[str, tuple[float, float]] = {**found.known, **declared.ranges}
    arrays: Arrays = {}
    for spec in declared.inputs:
        shape = [_LENGTH if size < 0 else size for size in spec.shape]
        if declared.batch_size:
            shape[0] = count
        dtype = np.dtype(spec.dtype)
        if spec.name in ranges:
            least, greatest = ranges[spec.name]
            arrays[spec.name] = source.integers(math.ceil(least), math.floor(greatest) + 1, shape).astype(dtype)
        elif spec.name in found.unknown and dtype.kind in "iu":
            raise UserError(
                f"{file}: input {spec.name!r} is an index, and the graph does not fix its range",
                hint=f"Give rows (--example FILE), or the range: --metadata 'ranges={{\"{spec.name}\": [0, 99]}}'.",
            )
        elif dtype.kind == "f":
            arrays[spec.name] = source.standard_normal(shape).astype(dtype)
        else:
            arrays[spec.name] = source.integers(0, 2, shape).astype(dtype)
    return arrays


def _compare(file: Path, bundle: ModelBundle, kept: VerifiedSamples, tolerance: float, key: bytes | None) -> float:
    """Return the largest difference in other batches.

    Raises:
        UserError: A row's outputs depend on the batch.
    """
    difference = run_and_compare(bundle, kept, key)
    if bundle.signature.batch_size:
        first = VerifiedSamples(_take_first(kept.inputs), _take_first(kept.outputs), None)
        difference = max(difference, run_and_compare(bundle, first, key))
    if not difference <= tolerance:
        raise UserError(
            f"{file}: a row's outputs depend on the batch's other rows: in another batch they differ by "
            f"{difference:.2g}, expected at most {tolerance:.2g}",
            hint="Servers compute rows of several requests together: remove what reduces over the first dimension.",
        )
    return difference


def _take_first(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {name: array[:1] for name, array in arrays.items()}
