"""Free dimensions other than the batch at export: specs, and verification that padding does not change outputs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.bundle import Dimension, ModelBundle, Signature, TensorSpec, VerifiedSamples
from kfp_mindspore.formats.model_options import parse_dimensions
from kfp_mindspore.mindir.verify import measure_difference

if TYPE_CHECKING:
    from numpy.typing import NDArray

Axes = Mapping[str, Sequence[int]]


def get_free_axes(dimensions: Any, kind: str) -> dict[str, list[int]]:
    """Return inputs' or outputs' free axes by name, from dimensions that are not validated yet.

    Args:
        dimensions: The user's dimensions.
        kind: `inputs` or `outputs`.
    """
    axes: dict[str, list[int]] = {}
    for entry in dimensions.values() if isinstance(dimensions, Mapping) else ():
        named = entry.get(kind) if isinstance(entry, Mapping) else None
        for name, axis in named.items() if isinstance(named, Mapping) else ():
            if isinstance(axis, int) and axis > 0:
                axes.setdefault(str(name), []).append(axis)
    return axes


def describe_tensor(name: str, array: NDArray[Any], batch: int, axes: Axes) -> TensorSpec:
    """Return an array's spec: the shape with the batch and the free axes replaced."""
    free = axes.get(name, ())
    inner = (-1 if axis in free else size for axis, size in enumerate(array.shape) if axis)
    return TensorSpec(name, array.dtype.name, (batch, *inner))


def check_inputs(dimensions: Any, specs: Sequence[TensorSpec], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Validate the dimensions' inputs, before the network is compiled.

    Raises:
        ValidationError: They do not fit the inputs.
        UserError: The samples are longer than the largest size, or have different lengths.
    """
    own = (
        {name: {**entry, "outputs": {}} if isinstance(entry, Mapping) else entry for name, entry in dimensions.items()}
        if isinstance(dimensions, Mapping)
        else dimensions
    )
    for dimension in parse_dimensions(own, specs, ()):
        lengths = {name: arrays[name].shape[axis] for name, axis in dimension.inputs.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
            raise UserError(f"dimensions.{dimension.name}: samples must have one length in all inputs, got {found}")
        if (length := next(iter(lengths.values()))) > dimension.sizes[-1]:
            raise UserError(
                f"dimensions.{dimension.name}.sizes: must hold the samples' length {length}, the largest is "
                f"{dimension.sizes[-1]}"
            )


def format_dimensions(dimensions: Sequence[Dimension]) -> str:
    """Return dimensions as the JSON text in a signature's metadata."""
    return json.dumps({dimension.name: dimension.to_dict() for dimension in dimensions})


def check_padding(
    directory: Path, signature: Signature, samples: VerifiedSamples, tolerance: float, key: bytes | None
) -> float:
    """Run the exported graph padded to each size, and compare the cropped outputs with the network's.

    Args:
        directory: Directory with model.mindir.
        signature: With dimensions.
        samples: Real inputs and the network's outputs.
        tolerance: Largest absolute difference allowed.
        key: File key, or None.

    Returns:
        The largest absolute difference.

    Raises:
        KfpMindSporeError: Padding changes an output; the message names the size.
    """
    from kfp_mindspore.mindir.graph.runner import GraphRunner

    worst = 0.0
    for dimensions in _combine_sizes(signature.dimensions, samples):
        narrowed = dataclasses.replace(
            signature, metadata={**signature.metadata, "dimensions": format_dimensions(dimensions)}
        )
        sizes = ", ".join(f"{dimension.name} {dimension.sizes[0]}" for dimension in dimensions)
        try:
            with GraphRunner(ModelBundle(directory, narrowed), max_batch=len(samples), warm=(), key=key) as runner:
                found = runner.predict(samples.inputs)
        except (UserError, RuntimeError, ValueError, TypeError) as error:
            raise KfpMindSporeError(
                f"padded to {sizes}, the graph does not compute: {shorten_error(error)}",
                hint="Name the axis of every input that grows with the dimension.",
            ) from error
        for name, array in samples.outputs.items():
            if found[name].shape != array.shape:
                raise KfpMindSporeError(
                    f"padded to {sizes}: output {name!r} must have shape {array.shape} as the network's, has "
                    f"{found[name].shape}",
                    hint="Name the axis that grows in the dimension's outputs.",
                )
        difference = measure_difference(samples.outputs, found)
        if not difference <= tolerance:
            raise KfpMindSporeError(
                f"padded to {sizes}, the graph must compute what the network does without padding within {tolerance}, "
                f"differs by {difference} on {len(samples)} samples",
                hint="Padding must not affect the outputs: mask it in the network, or choose another pad value.",
            )
        worst = max(worst, difference)
    return worst


def shorten_error(error: Exception) -> str:
    """Return MindSpore's message in one line, without the call stack."""
    text = " ".join(str(error).partition("\n----")[0].split())
    return text or type(error).__name__


def _combine_sizes(dimensions: Sequence[Dimension], samples: VerifiedSamples) -> list[tuple[Dimension, ...]]:
    """Return combinations with one size per dimension that cover every size that fits the samples."""
    usable = []
    for dimension in dimensions:
        name, axis = next(iter(dimension.inputs.items()))
        usable.append([size for size in dimension.sizes if size >= samples.inputs[name].shape[axis]])
    return [
        tuple(
            dataclasses.replace(dimension, sizes=(sizes[min(index, len(sizes) - 1)],))
            for dimension, sizes in zip(dimensions, usable, strict=True)
        )
        for index in range(max(map(len, usable), default=0))
    ]
