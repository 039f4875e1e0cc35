"""Model options in its signature's metadata: padded dimensions, input ranges, serving."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.tensors import TensorSpec, parse_range

_DIMENSION_FIELDS = ("inputs", "outputs", "sizes", "pad")
_LARGEST = {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}


@dataclass(frozen=True)
class Dimension:
    """A free dimension other than the batch, such as a token count, padded up to one of a few sizes.

    A graph compiles anew for each shape; with padding, all shapes are compiled when the model is loaded.

    Args:
        name: Such as `tokens`.
        inputs: Axis by input; the length is the same in all inputs in a request. Axis 0 is the batch.
        outputs: Axis by output, which is cropped to the request length.
        sizes: Lengths that are compiled, ascending; longer requests are refused.
        pad: Fill value by input.
    """

    name: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    sizes: tuple[int, ...]
    pad: Mapping[str, float | int]

    def get_size(self, length: int) -> int | None:
        """Return the smallest size that holds `length`, or None when it is longer than the longest."""
        return next((size for size in self.sizes if size >= length), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the dimension as JSON types, without its name."""
        fields = dataclasses.asdict(self)
        return {name: fields[name] for name in _DIMENSION_FIELDS}


def parse_serving(value: Any) -> dict[str, float]:
    """Validate a model's serving options.

    Args:
        value: Such as {"max_batch": 16, "max_delay_ms": 2}.

    Raises:
        ValidationError: All mistakes at once.
    """
    if not isinstance(value, Mapping):
        raise ValidationError([f"serving: must be an object, got {_shorten(value)}"])
    errors = []
    for name, number in value.items():
        if name in ("max_batch", "max_queue"):
            if type(number) is not int or number < 1:
                errors.append(f"serving.{name}: must be a whole number from 1, got {_shorten(number)}")
        elif name == "max_delay_ms":
            if not _is_number(number) or not 0 <= number < math.inf:
                errors.append(f"serving.{name}: must be 0 or more, got {_shorten(number)}")
        else:
            errors.append(f"serving: unknown field {name!r}, expected max_batch, max_delay_ms and max_queue")
    if errors:
        raise ValidationError(errors)
    return dict(value)


def parse_ranges(value: Any, inputs: Sequence[TensorSpec]) -> dict[str, tuple[float, float]]:
    """Validate input ranges.

    Args:
        value: Such as {"ids": [0, 29999]}: the least and the greatest value, both included.
        inputs: The model's inputs.

    Raises:
        ValidationError: All mistakes at once.
    """
    if not isinstance(value, Mapping):
        raise ValidationError([f"ranges: must be an object of [least, greatest] by input, got {_shorten(value)}"])
    names = [spec.name for spec in inputs]
    errors = []
    ranges = {}
    for name, limits in value.items():
        if name not in names:
            errors.append(f"ranges.{name}: must be an input, one of {', '.join(map(repr, names))}")
            continue
        try:
            ranges[str(name)] = parse_range(limits)
        except ValueError as error:
            errors.append(f"ranges.{name}: {error}")
    if errors:
        raise ValidationError(errors)
    return ranges


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def parse_dimensions(value: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[Dimension, ...]:
    """Validate free dimensions against a model's inputs and outputs.

    Args:
        value: Such as {"tokens": {"inputs": {"ids": 1, "mask": 1}, "outputs": {"logits": 1}, "sizes": [16, 32, 64],
            "pad": {"ids": 0, "mask": 0}}}. `outputs` may be missing where none has the dimension, and `pad` where
            inputs are padded with 0.
        inputs: The model's inputs.
        outputs: The model's outputs.

    Raises:
        ValidationError: All mistakes at once, such as `dimensions.tokens.inputs.ids: axis 1 must be free (-1) …`.
    """
    if not isinstance(value, Mapping):
        raise ValidationError([f"dimensions: must be an object of dimensions by name, got {_shorten(value)}"])
    errors: list[str] = []
    dimensions = []
    used: dict[tuple[str, str, int], str] = {}
    for name, entry in value.items():
        where = f"dimensions.{name}"
        mistakes = list(_check_dimension(where, entry, inputs, outputs))
        errors += mistakes
        if mistakes:
            continue
        axes = {kind: dict(entry.get(kind, {})) for kind in ("inputs", "outputs")}
        for kind, by_tensor in axes.items():
            for tensor, axis in by_tensor.items():
                other = used.setdefault((kind, tensor, axis), str(name))
                if other != name:
                    errors.append(f"{where}.{kind}.{tensor}: axis {axis} is dimension {other!r} already")
        pad = {tensor: entry.get("pad", {}).get(tensor, 0) for tensor in axes["inputs"]}
        dimensions.append(Dimension(str(name), axes["inputs"], axes["outputs"], tuple(entry["sizes"]), pad))
    if errors:
        raise ValidationError(errors)
    return tuple(dimensions)


def _check_dimension(
    where: str, entry: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield f"{where}: must be an object with inputs, outputs, sizes and pad, got {_shorten(entry)}"
        return
    for key in entry:
        if key not in _DIMENSION_FIELDS:
            yield f"{where}: unknown field {key!r}, expected inputs, outputs, sizes and pad"
    found = {kind: entry.get(kind, {}) for kind in ("inputs", "outputs", "pad")}
    wrong = [kind for kind, axes in found.items() if not isinstance(axes, Mapping)]
    for kind in wrong:
        yield f"{where}.{kind}: must be an object, got {_shorten(entry[kind])}"
    if wrong:
        return
    if not found["inputs"]:
        yield f"{where}.inputs: must name the axis of at least one input"
    yield from _check_axes(f"{where}.inputs", found["inputs"], inputs)
    yield from _check_axes(f"{where}.outputs", found["outputs"], outputs)
    yield from _check_sizes(f"{where}.sizes", entry.get("sizes"))
    yield from _check_pad(f"{where}.pad", found["pad"], found["inputs"], inputs)


def _check_axes(where: str, axes: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Iterator[str]:
    shapes = {spec.name: spec.shape for spec in specs}
    for name, axis in axes.items():
        if name not in shapes:
            yield f"{where}: unknown {name!r}, expected {', '.join(map(repr, shapes)) or 'none'}"
        elif not _is_integer(axis) or not 1 <= axis < len(shapes[name]):
            yield (
                f"{where}.{name}: must be an axis of shape {shapes[name]} other than the batch, "
                f"1 to {len(shapes[name]) - 1}, got {_shorten(axis)}"
            )
        elif shapes[name][axis] != -1:
            yield f"{where}.{name}: axis {axis} must be free (-1) in the signature, is {shapes[name][axis]}"


def _check_sizes(where: str, sizes: Any) -> Iterator[str]:
    whole = isinstance(sizes, list | tuple) and bool(sizes) and all(_is_integer(size) and size > 0 for size in sizes)
    if not whole or any(size >= following for size, following in itertools.pairwise(sizes)):
        yield f"{where}: must be ascending whole numbers of at least 1, such as [16, 32, 64], got {_shorten(sizes)}"


def _check_pad(
    where: str, pad: Mapping[str, Any], axes: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> Iterator[str]:
    dtypes = {spec.name: spec.dtype for spec in specs}
    for name, value in pad.items():
        if name not in axes:
            yield f"{where}: unknown {name!r}, expected {', '.join(map(repr, axes)) or 'none'}"
        elif not isinstance(value, int) and not (isinstance(value, float) and math.isfinite(value)):
            yield f"{where}.{name}: must be a finite number, got {_shorten(value)}"
        elif not _holds(dtypes.get(name, ""), value):
            yield f"{where}.{name}: must be a value of dtype {dtypes[name]}, got {_shorten(value)}"


def _holds(dtype: str, value: float) -> bool:
    if dtype == "bool":
        return value in (0, 1)
    if dtype.startswith(("int", "uint")):
        bits = int(dtype.lstrip("uint"))
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return value == int(value) and low <= value <= high
    return abs(value) <= _LARGEST.get(dtype, math.inf)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
