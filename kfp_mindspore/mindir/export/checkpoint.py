"""Checkpoint export as a model bundle, verified on real inputs."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.data.samples import arrange_columns
from kfp_mindspore.errors import KfpMindSporeError, UserError, join_names
from kfp_mindspore.formats.bundle import (
    DETECTOR_KIND,
    MODEL_FILE,
    OUTPUT,
    PREPROCESSING_FILE,
    TRANSFORM_FILE,
    BundleWriter,
    ModelBundle,
    Signature,
    TensorSpec,
    VerifiedSamples,
    write_bundle,
)
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.formats.manifest import describe_files
from kfp_mindspore.formats.model_options import parse_dimensions
from kfp_mindspore.formats.rows import build_field_layout, build_layout
from kfp_mindspore.mindir.devices import use_device
from kfp_mindspore.mindir.environment import import_mindspore, use_graph_mode
from kfp_mindspore.mindir.export.graph import export_graph, place_graph, run_graph
from kfp_mindspore.mindir.export.padding import (
    check_inputs,
    check_padding,
    describe_tensor,
    format_dimensions,
    get_free_axes,
)
from kfp_mindspore.mindir.export.samples import (
    ExportSamples,
    declare_serving,
    load_export_samples,
    prepare_pictures,
    read_example_file,
)
from kfp_mindspore.mindir.graph.encryption import ENCRYPTION, check_key
from kfp_mindspore.mindir.graph.index_ranges import add_ranges
from kfp_mindspore.mindir.graph.metadata import inspect_mindir, read_proto
from kfp_mindspore.mindir.monitoring.statistics import compute_statistics
from kfp_mindspore.mindir.options import FREE, ExportChanges, ExportOptions, resolve_tolerance
from kfp_mindspore.mindir.parameters.files import (
    get_source,
    is_foreign,
    load_matching,
    open_checkpoint,
    read_checkpoint,
    rename_parameters,
)
from kfp_mindspore.mindir.parameters.shards import is_sharded
from kfp_mindspore.mindir.verify import compare_raw, run_and_compare
from kfp_mindspore.outputs import check_replaceable
from kfp_mindspore.settings import CPU
from kfp_mindspore.transform.declaration import build_pipeline
from kfp_mindspore.transform.export import try_transform
from kfp_mindspore.transform.load import read_transform, read_transform_source

if TYPE_CHECKING:
    from mindspore import nn
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    Arrays = dict[str, NDArray[Any]]

_logger = logging.getLogger(__name__)

NO_TRANSFORM = "none"


def export_mindir(
    checkpoint_dir: Path | str,
    output_dir: Path | str,
    options: ExportOptions | None = None,
    *,
    dataset_dir: Path | str | None = None,
    samples: NDArray[Any] | Mapping[str, NDArray[Any]] | Path | str | None = None,
    key: bytes | None = None,
    **changes: Unpack[ExportChanges],
) -> ModelBundle:
    """Export a trained network as a model bundle.

    The exported graph is loaded again and the outputs are compared with the network's. On any error nothing is
    written, and an existing bundle at `output_dir` is unchanged.

    Args:
        checkpoint_dir: A checkpoint directory, a sharded checkpoint's (`mindir.parameters.shards`), or the file or
            directory that any script saved: `.ckpt` or `.safetensors`, for which `network` is required.
        output_dir: The bundle directory to write; replaced when it exists.
        options: The options, see `kfp_mindspore.mindir.options`; default all defaults.
        dataset_dir: A dataset directory; its test split's first samples are compared, its task, labels and
            preprocessing are recorded. The preprocessing that the checkpoint records has precedence. Several network
            inputs are matched by name.
        samples: Real inputs to compare, instead of a dataset: an array with shape (N, …), or arrays by parameter name.
            Raw ones, by request names, if the checkpoint records a preprocessing. A path is a file with rows
            (`kfp_mindspore.data.rows`), whose first `sample_count` are compared.
        key: 16, 24 or 32 bytes to encrypt model.mindir with (AES-GCM). No plain model reaches the disk; the samples in
            verified.npz are not encrypted.
        changes: Fields of `ExportOptions` that differ from `options`: export_mindir(…, batch=8).

    Returns:
        The bundle, opened.

    Raises:
        UserError: The checkpoint, the network or the samples are missing or do not fit together.
        KfpMindSporeError: MindSpore cannot export the network, or the exported graph's outputs differ.
        MissingExtraError: MindSpore is not installed.
    """
    options = dataclasses.replace(options or ExportOptions(), **changes)
    options.check()
    rows = samples if isinstance(samples, (Path, str)) else None
    check_replaceable(Path(output_dir), OUTPUT, [checkpoint_dir, dataset_dir, options.strategy, rows])
    if key is not None:
        check_key(key)
    transform, dimensions = options.transform, options.dimensions
    declared = transform is None
    if transform == NO_TRANSFORM:
        transform = None
    if transform is not None:
        # A misspelt name must not cost a whole export's time.
        read_transform_source(transform)
    if options.strategy is not None and not is_sharded(checkpoint_dir):
        raise UserError(f"strategy: {checkpoint_dir} is no sharded checkpoint: it has no directories rank_<N>")
    checkpoint = open_checkpoint(checkpoint_dir)
    if isinstance(samples, Path | str):
        samples = read_example_file(samples, checkpoint.preprocessing if declared else {}, options.sample_count)
    loaded = load_export_samples(checkpoint, dataset_dir, samples, options.sample_count, declared=declared)
    if loaded.task == "detection" and declared:
        loaded = prepare_pictures(loaded)
    if not declared and checkpoint.preprocessing:
        _logger.info("the transform %s replaces the preprocessing that the checkpoint records", transform or "none")
    mindspore = import_mindspore()
    device = use_device(options.device, options.device_id)
    from kfp_mindspore.mindir.parameters.network import scratch_directory

    with events.span("mindir.export"), scratch_directory() as scratch, use_graph_mode():
        cell = _get_network(checkpoint, options.network, options.network_arguments)
        source = get_source(checkpoint)
        stored = rename_parameters(read_checkpoint(checkpoint, scratch, options.strategy), options.rename, source)
        if unused := load_matching(cell, stored, source).unused:
            _logger.warning("%s: not the network's: %s", source, join_names(unused))
        cell.set_train(False)
        fixed = None if options.batch == FREE else int(options.batch)
        inputs = _order_inputs(cell, loaded.inputs, named=isinstance(samples, Mapping) and not loaded.declaration)
        axes = get_free_axes(dimensions, "inputs")
        if dimensions is not None:
            check_inputs(
                dimensions, [describe_tensor(name, array, fixed or -1, axes) for name, array in inputs.items()], inputs
            )
        file = export_graph(cell, scratch, inputs, fixed, axes, key)
        run_graph(cell, file, inputs, fixed, key)
        named = dict(zip((spec.name for spec in inspect_mindir(file, key=key).inputs), inputs.values(), strict=False))
        if isinstance(samples, Mapping) and not loaded.declaration and set(samples) != set(named):
            raise UserError(f"samples: must be named {', '.join(named)}, got {', '.join(samples)}")
        outputs = _run_network(cell, list(named.values()), fixed)
        kept = VerifiedSamples(named, outputs, loaded.target, weight=loaded.weight, groups=loaded.groups)
        signature = _describe_tensors(kept, fixed, dimensions, mindspore.__version__)
        described = _describe(checkpoint, loaded, options)
        if key is not None:
            described["encryption"] = ENCRYPTION
        signature = dataclasses.replace(signature, metadata={**described, **signature.metadata})
        signature = add_ranges(signature, read_proto(file, key=key), named)
        declaration: dict[str, Any] = {}
        names = dict(zip(loaded.inputs, named, strict=True)) if len(named) == 1 else {}
        if declared:
            declaration = declare_serving(loaded, names, signature.outputs)
            if declaration.get("pre"):
                kept = dataclasses.replace(kept, raw=loaded.raw)
        raw_specs = build_pipeline(declaration).inputs if declaration.get("pre") else None
        if transform is None:
            signature = _add_rows(signature, loaded, raw_specs, names, options.extra_columns)
        tolerance = kept.scale_tolerance(
            resolve_tolerance(options.tolerance, [array.dtype.name for array in outputs.values()])
        )
        with write_bundle(output_dir) as writer:
            place_graph(file, writer.directory / MODEL_FILE)
            writer.write_verified(kept)
            if declaration:
                writer.write_preprocessing(declaration)
            difference = _compare(writer.directory, signature, kept, tolerance, key)
            if signature.dimensions:
                difference = max(difference, check_padding(writer.directory, signature, kept, tolerance, key))
            if transform is not None:
                signature = _add_transform(writer, transform, signature, kept, loaded, key, options.extra_columns)
            verified = {**loaded.origin, "samples": len(kept), "max_abs_diff": difference, "tolerance": tolerance}
            if device != CPU:
                verified["device"] = device
            signature = dataclasses.replace(signature, verified=verified)
            _check_labels(signature)
            if options.statistics and loaded.dataset is not None:
                files = describe_files(writer.directory)
                bundle = ModelBundle(writer.directory, dataclasses.replace(signature, files=files))
                # The transform's code has run for the example request too.
                if found := compute_statistics(bundle, loaded.dataset, key=key, allow_code=True):
                    writer.write_statistics(found)
            writer.sign(signature)
            _check_signature(writer.directory, output_dir)
    return ModelBundle.open(output_dir)


def _get_network(checkpoint: Checkpoint, network: str | nn.Cell | None, arguments: Mapping[str, Any] | None) -> nn.Cell:
    from kfp_mindspore.mindir.parameters.network import build_network
    from kfp_mindspore.mindir.parameters.widths import cut_network

    if network is not None and not isinstance(network, str):
        return network
    factory = network or checkpoint.network.factory
    if not factory:
        raise UserError(
            f"{checkpoint.path}: does not record how the network is built",
            hint="Name it: --network module:factory, or network=….",
        )
    cell = build_network(factory, checkpoint.network.arguments if arguments is None else arguments)
    cut_network(cell, checkpoint.network.cut)
    return cell


def _order_inputs(cell: nn.Cell, inputs: Arrays, *, named: bool) -> Arrays:
    """Return the inputs in `construct`'s parameter order and with its names, where they match.

    Raises:
        UserError: There are several inputs by other names than the parameters'.
    """
    parameters = [
        name
        for name, parameter in inspect.signature(cell.construct).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if named or len(inputs) > 1:
        if set(inputs) <= set(parameters):
            return {name: inputs[name] for name in parameters if name in inputs}
        if named or not parameters:
            return inputs
        raise UserError(
            f"{type(cell).__name__}: its inputs are {', '.join(parameters)}, the samples are {', '.join(inputs)}",
            hint="Name the dataset's columns as the network's inputs, or add Rename steps to its preprocessing.",
        )
    return dict(zip(parameters, inputs.values(), strict=False)) if parameters else inputs


def _run_network(cell: nn.Cell, arrays: list[NDArray[Any]], fixed: int | None) -> Arrays:
    """Run the network itself, in batches with the graph's size; outputs in a dict keep their names."""
    import mindspore
    import numpy as np

    from kfp_mindspore.compat.graph_executor import flatten_outputs

    rows = len(arrays[0])
    step = fixed or rows
    parts = []
    names: list[str] = []
    for start in range(0, rows, step):
        indexes = np.minimum(np.arange(start, start + step), rows - 1)
        outputs = cell(*(mindspore.Tensor(array[indexes]) for array in arrays))
        if isinstance(outputs, Mapping):
            names, outputs = list(outputs), list(outputs.values())
        results = flatten_outputs(outputs)
        if any(array.ndim == 0 or len(array) != step for array in results):
            raise UserError(
                f"{type(cell).__name__}: outputs must have one row a sample, got shapes "
                f"{', '.join(str(array.shape) for array in results)} for {step} samples"
            )
        parts.append([array[: rows - start] for array in results])
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not names:
        names = ["output"] if len(columns) == 1 else [f"output_{index}" for index in range(len(columns))]
    return dict(zip(names, columns, strict=True))


def _describe_tensors(
    samples: VerifiedSamples, fixed: int | None, dimensions: Mapping[str, Any] | None, version: str
) -> Signature:
    inputs, outputs = (
        tuple(
            describe_tensor(name, array, fixed or -1, get_free_axes(dimensions, kind)) for name, array in arrays.items()
        )
        for kind, arrays in (("inputs", samples.inputs), ("outputs", samples.outputs))
    )
    metadata = {}
    if dimensions:
        metadata["dimensions"] = format_dimensions(parse_dimensions(dimensions, inputs, outputs))
    return Signature(inputs, outputs, version, metadata=metadata)


def _add_rows(
    signature: Signature, loaded: ExportSamples, raw: Sequence[TensorSpec] | None, names: Mapping[str, str], extra: str
) -> Signature:
    """Return the signature with the columns by which a table's rows are accepted.

    Args:
        signature: The signature.
        loaded: The export's samples.
        raw: Request inputs before a declared preprocessing; None when requests have the graph's inputs.
        names: The graph's input by the dataset's column, where it differs.
        extra: Whether other columns are `ignore`d or `refuse`d.
    """
    if loaded.dataset is None or (raw is None and loaded.dataset.preprocessing.get("pre")):
        return signature
    if raw is None:
        layout = build_layout(loaded.dataset, signature.free_batch(signature.inputs), names, extra=extra)
    else:
        steps = loaded.declaration.get("pre", ())
        layout = build_layout(loaded.dataset, raw, {}, steps=steps, extra=extra)
    if layout is None:
        return signature
    return dataclasses.replace(signature, metadata={**signature.metadata, "rows": json.dumps(layout.to_dict())})


def _check_labels(signature: Signature) -> None:
    try:
        _ = signature.labels
    except (ValueError, TypeError) as error:
        raise UserError(f"metadata: labels: must be a JSON list of class names ({error})") from None


def _check_signature(directory: Path, output_dir: Path | str) -> None:
    """Raise metadata errors before an existing bundle is replaced."""
    try:
        ModelBundle.open(directory, verify=False)
    except UserError as error:
        raise UserError(error.message.replace(str(directory), str(output_dir)), hint=error.hint) from None


def _add_transform(
    writer: BundleWriter,
    transform: Path | str,
    signature: Signature,
    samples: VerifiedSamples,
    loaded: ExportSamples,
    key: bytes | None,
    extra: str,
) -> Signature:
    """Validate a transform, write it and its example, and return the signature with its name and the table's columns.

    Args:
        writer: The bundle.
        transform: A file, or a registered name, which the signature names.
        signature: The signature.
        samples: The graph's samples.
        loaded: The export's samples.
        key: The model's key.
        extra: Whether other columns are `ignore`d or `refuse`d.
    """
    from kfp_mindspore.mindir.graph.runner import GraphRunner

    bound, source = read_transform(transform, signature)

    def compute(arrays: Arrays) -> Arrays:
        with GraphRunner(ModelBundle(writer.directory, signature), max_batch=1, warm=(), key=key) as runner:
            return runner.predict(arrays)

    raw, metadata = loaded.raw, dict(signature.metadata)
    if loaded.dataset is not None and (layout := build_field_layout(loaded.dataset, bound.inputs, extra=extra)):
        raw = arrange_columns(loaded.dataset, loaded.raw, layout)
        metadata["rows"] = json.dumps(layout.to_dict())
    example = try_transform(bound, samples, compute, Path(transform) if source else None, raw=raw)
    if example is not None:
        writer.write_example(example)
    if source:
        (writer.directory / TRANSFORM_FILE).write_bytes(source)
    else:
        metadata["transform"] = str(transform)
    return dataclasses.replace(signature, metadata=metadata)


def _describe(checkpoint: Checkpoint, samples: ExportSamples, options: ExportOptions) -> dict[str, str]:
    if is_foreign(checkpoint):
        described = {"checkpoint": checkpoint.path.name}
    else:
        described = {"epoch": str(checkpoint.epoch), "step": str(checkpoint.step), "seed": str(checkpoint.seed)}
    factory, arguments = options.network or checkpoint.network.factory, options.network_arguments
    if factory and isinstance(factory, str):
        described["network"] = factory
        described["network_arguments"] = json.dumps(
            dict(checkpoint.network.arguments if arguments is None else arguments), sort_keys=True
        )
    if samples.task == "detection":
        described |= {"task": "none", "kind": DETECTOR_KIND}
    elif samples.task:
        described["task"] = samples.task
    if samples.labels:
        described["labels"] = json.dumps(list(samples.labels))
    return {**described, **{name: str(text) for name, text in (options.metadata or {}).items()}}


def _compare(
    directory: Path, signature: Signature, samples: VerifiedSamples, tolerance: float, key: bytes | None
) -> float:
    # Without dimensions nothing is padded: compare the graph first, the padding later.
    plain = {name: text for name, text in signature.metadata.items() if name != "dimensions"}
    bundle = ModelBundle(directory, dataclasses.replace(signature, metadata=plain, files=describe_files(directory)))
    compare = compare_raw if PREPROCESSING_FILE in bundle.signature.files else run_and_compare
    difference = compare(bundle, samples, key)
    if not difference <= tolerance:
        raise KfpMindSporeError(
            f"the exported graph must compute what the network does within {tolerance:.2g}, differs by "
            f"{difference:.2g} on {len(samples)} samples"
        )
    return difference
