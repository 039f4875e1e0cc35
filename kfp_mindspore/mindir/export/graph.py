"""A network's MindIR file, for the export step and for the check before training."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.compat.graph_executor import CompiledGraph
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.bundle import MODEL_FILE
from kfp_mindspore.mindir.environment import NETWORK_ERRORS, use_graph_mode
from kfp_mindspore.mindir.export.layer_source import LayerSource, locate_error, locate_operator
from kfp_mindspore.mindir.export.padding import describe_tensor, shorten_error
from kfp_mindspore.mindir.graph.encryption import ENCRYPTION
from kfp_mindspore.mindir.graph.execution import KERNEL_ERRORS
from kfp_mindspore.mindir.graph.metadata import list_operators, read_proto
from kfp_mindspore.mindir.parameters.network import scratch_directory

if TYPE_CHECKING:
    from mindspore import nn
    from numpy.typing import NDArray

    from kfp_mindspore.mindir.export.padding import Axes

    Arrays = Mapping[str, NDArray[Any]]

RECIPES = "docs/your-own-model.md#sequences"
# MindSpore 2.9 writes this operator for a `raise` or `assert` whose condition depends on an input, and cannot load it.
_RAISE = "raise"
# Batch sizes that a graph with a free batch is run with.
_SIZES = (5, 7)
_FIXED = "Or export it with a fixed batch: --batch N or batch=N, and TrainingConfig(export_check=N)."


class UnfitSamplesError(UserError):
    """The network does not compute the samples, exported or not."""


def export_graph(
    cell: nn.Cell, scratch: Path, arrays: Arrays, fixed: int | None, axes: Axes, key: bytes | None = None
) -> Path:
    """Write a network's MindIR.

    Args:
        cell: The network, in evaluation mode; call it in GRAPH mode.
        scratch: The directory to write to.
        arrays: Samples by input name, in `construct`'s order, each with shape (N, …).
        fixed: The graph's batch size, or None for a free one.
        axes: Further free axes by input name.
        key: A key to encrypt the file with.

    Returns:
        The file.

    Raises:
        UnfitSamplesError: The network does not compute the samples.
        UserError: The graph has an operator that cannot be loaded; the message has the layer and the line.
        KfpMindSporeError: MindSpore cannot export the network.
    """
    import mindspore

    inputs = []
    for name, array in arrays.items():
        row = mindspore.Tensor(array[:1].repeat(fixed or 1, axis=0))
        shape: list[int | None] = [None if axis in axes.get(name, ()) else size for axis, size in enumerate(row.shape)]
        if fixed is None:
            shape[0] = None
        inputs.append(mindspore.Tensor(shape=shape, dtype=row.dtype) if None in shape else row)
    file = scratch / MODEL_FILE
    options = {} if key is None else {"enc_key": key, "enc_mode": ENCRYPTION}
    try:
        mindspore.export(cell, *inputs, file_name=str(file.with_suffix("")), file_format="MINDIR", **options)
    except NETWORK_ERRORS as error:
        specs = [describe_tensor(name, array, fixed or -1, axes) for name, array in arrays.items()]
        found = ", ".join(f"{spec.name} of {spec.dtype} {spec.shape}" for spec in specs)
        source = locate_error(cell, str(error))
        message = f"{_name(cell, source)} cannot be exported for {found}: {shorten_error(error)}"
        if not _accepts(cell, arrays):
            hint = "Give samples with the inputs that the network was trained on (--dataset, samples=…)."
            raise UnfitSamplesError(message, hint=_join(source.line, hint)) from error
        hint = "A network without a free batch may take a fixed one: --batch N." if fixed is None else ""
        raise KfpMindSporeError(message, hint=_join(source.line, hint)) from error
    if not file.is_file():
        # Over 1 GiB MindSpore 2.9 writes the weights beside the graph.
        file = file.with_stem(f"{file.stem}_graph")
    if not file.is_file() or (key is not None and file.name != MODEL_FILE):
        raise KfpMindSporeError(
            f"{type(cell).__name__}: MindSpore wrote no {MODEL_FILE}; over 1 GB it has no encryption"
        )
    _refuse_raise(cell, read_proto(file, key=key), fixed)
    return file


def place_graph(file: Path, target: Path) -> None:
    """Move a graph of `export_graph` with the weights beside it, named `<target's stem>.weights_<number>`.

    Args:
        file: The file.
        target: Its path in a bundle.
    """
    model = read_proto(file) if file.name != MODEL_FILE else None
    if model is None:
        shutil.move(file, target)
        return
    for tensor in model.graph.parameter:
        source = file.parent / tensor.external_data.location
        tensor.external_data.location = f"{target.stem}.weights_{source.name.rpartition('_')[2]}"
        if source.is_file():
            shutil.move(source, target.parent / tensor.external_data.location)
    target.write_bytes(model.SerializeToString())


def check_exportable(cell: nn.Cell, arrays: Arrays, fixed: int | None) -> None:
    """Export a network to a temporary file, load it and run it on samples.

    The network's mode and weights do not change.

    Args:
        cell: The network.
        arrays: Samples by input name, in `construct`'s order, each with shape (N, …).
        fixed: The graph's batch size, or None for a free one, which is run with two sizes.

    Raises:
        UnfitSamplesError: The network does not compute the samples.
        UserError: The network cannot be exported, loaded or run; the message has the layer and the line.
    """
    modes = [(part, part.training) for _, part in cell.cells_and_names()]
    cell.set_train(False)
    try:
        with scratch_directory() as scratch, use_graph_mode():
            try:
                file = export_graph(cell, scratch, arrays, fixed, {})
            except UserError:
                raise
            except KfpMindSporeError as error:
                raise UserError(error.message, hint=error.hint) from error
            run_graph(cell, file, arrays, fixed)
    finally:
        for part, training in modes:
            part.set_train(training)


def run_graph(cell: nn.Cell, file: Path, arrays: Arrays, fixed: int | None, key: bytes | None = None) -> None:
    """Load an exported graph and run it, with two batch sizes if the batch is free, as a server does.

    Args:
        cell: The network, for the message.
        file: The network's MindIR.
        arrays: Samples by input name, each with shape (N, …).
        fixed: The graph's batch size, or None for a free one.
        key: The file's key.

    Raises:
        UserError: MindSpore cannot load or run it, or the outputs keep the first batch size.
    """
    import mindspore

    options = {} if key is None else {"dec_key": key, "dec_mode": ENCRYPTION}
    try:
        graph = CompiledGraph(mindspore.load(str(file), **options))
        counts = [
            [len(output) if output.ndim else 0 for output in graph.run(_repeat(arrays, rows))]
            for rows in (_SIZES if fixed is None else (fixed,))
        ]
    except KERNEL_ERRORS as error:
        raise UserError(
            f"{type(cell).__name__} is exported, but its MindIR cannot be loaded and run: {shorten_error(error)}",
            # MindSpore 2.9 compiles a graph with control flow for one shape only: "The actor already exists".
            hint=f"A condition or loop on values may be the cause: use ops.where.\n{_FIXED}" if fixed is None else "",
        ) from error
    if fixed is None and any(count == (_SIZES[0], _SIZES[0]) for count in zip(*counts, strict=True)):
        # MindSpore 2.9 keeps the first batch size in nn.GRU's output.
        raise UserError(
            f"{type(cell).__name__} is exported, but its MindIR returns {_SIZES[0]} rows for a batch of {_SIZES[1]}",
            hint=f"An nn.GRU may be the cause: see {RECIPES}.\n{_FIXED}",
        )


def _repeat(arrays: Arrays, rows: int) -> list[NDArray[Any]]:
    import numpy as np

    return [np.resize(array[:1], (rows, *array.shape[1:])) for array in arrays.values()]


def _accepts(cell: nn.Cell, arrays: Arrays) -> bool:
    """Return whether the network computes the samples, outside an export."""
    import mindspore

    try:
        cell(*(mindspore.Tensor(array) for array in arrays.values()))
    except NETWORK_ERRORS:
        return False
    return True


def _refuse_raise(cell: nn.Cell, model: Any, fixed: int | None) -> None:
    operator = next((operator for operator in list_operators(model) if operator.name == _RAISE), None)
    if operator is None:
        return
    source = locate_operator(cell, operator.scope)
    raised = next(iter(operator.texts), "an exception")
    batch = "with a free batch" if fixed is None else f"with a batch of {fixed}"
    hint = f"See {RECIPES}: GRU, LSTM and Transformer that export; remove a raise or assert of your own."
    raise UserError(
        f"{_name(cell, source)} cannot be exported {batch}: it raises {raised} on a condition that depends on its "
        f"inputs, and MindSpore cannot load such a graph (operator {_RAISE!r})",
        hint=_join(source.line, hint, _FIXED if fixed is None else ""),
    )


def _name(cell: nn.Cell, source: LayerSource) -> str:
    name = type(cell).__name__
    return f"{name}: {source}" if source.path else name


def _join(*lines: str) -> str:
    return "\n".join(line for line in lines if line)
