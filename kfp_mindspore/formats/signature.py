"""What a model takes and gives: tensors, and the free dimensions that are padded to a few sizes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import ValidationError

FORMAT_VERSION = 1
BYTES = "bytes"
"""The dtype of what a transform may take and give, a graph never: texts and encoded images, as `bytes` objects."""

_LARGEST = {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}


@dataclass(frozen=True)
class TensorSpec:
    """What one input or output looks like.

    Args:
        name: Its name, such as `image`.
        dtype: NumPy name of its type, such as `float32`; `bytes` for texts and encoded images that a transform takes.
        shape: Its dimensions, -1 for a free one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def describe_mismatch(self, dtype: str, shape: Sequence[int]) -> str:
        """Say how an array differs from this.

        Args:
            dtype: NumPy name of the array's type.
            shape: The array's shape.

        Returns:
            Such as `shape must be (-1, 1, 8, 8), got (3, 8, 8)`, or an empty text when the array fits.
        """
        if dtype != self.dtype:
            return f"dtype must be {self.dtype}, got {dtype}"
        fits = len(shape) == len(self.shape) and all(
            size == wanted >= 0 or (wanted == -1 and size > 0) for size, wanted in zip(shape, self.shape, strict=True)
        )
        return "" if fits else f"shape must be {self.shape}, got {tuple(shape)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON types."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> TensorSpec:
        """Rebuild a spec from `to_dict`'s result."""
        return cls(str(value["name"]), str(value["dtype"]), tuple(int(size) for size in value["shape"]))


@dataclass(frozen=True)
class Dimension:
    """A free dimension other than the batch, such as a number of tokens, that is padded up to one of a few sizes.

    A graph compiles anew for each shape that it meets; padded to known sizes, all of them are compiled at the start.

    Args:
        name: Such as `tokens`.
        inputs: Which axis of which input it is; all of them have the same length in one request. Axis 0 is the batch.
        outputs: Which axis of which output it is: what was padded is cut off there.
        sizes: The lengths that are computed, ascending; the last one is the longest that is accepted.
        pad: The value that each input is filled up with.
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
        return {
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "sizes": list(self.sizes),
            "pad": dict(self.pad),
        }


@dataclass(frozen=True)
class Signature:
    """What a bundle's model takes and gives, and what its files are.

    Args:
        inputs: In the order of the network's parameters.
        outputs: In the order of the network's results.
        mindspore_version: The version that exported the model.
        files: Name to {"sha256": …, "size": bytes}.
        verified: What the model was compared with: `samples`, `max_abs_diff`, `tolerance` and where they came from.
        metadata: Free texts. Some mean something here: `labels` is a JSON list of class names, `dimensions` a JSON
            object that `parse_dimensions` reads, `encryption` how model.mindir is encrypted, `transform` the name of
            a registered transform.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    mindspore_version: str
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    verified: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names by index; empty when the model is no classifier or they are not known."""
        return tuple(str(label) for label in json.loads(self.metadata.get("labels", "[]")))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The free dimensions that are padded to a few sizes; parsed at each call, checked when a bundle is opened.

        Raises:
            ValidationError: The metadata's `dimensions` do not fit the inputs and outputs.
        """
        text = self.metadata.get("dimensions", "")
        if not text:
            return ()
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValidationError([f"dimensions: not valid JSON ({error})"]) from None
        return parse_dimensions(value, self.inputs, self.outputs)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest value of inputs that the graph cannot compute outside of them, such as indices.

        Some of MindSpore's operators raise on such values, which costs seconds; a server refuses them beforehand.

        Raises:
            ValidationError: The metadata's `ranges` do not fit the inputs.
        """
        text = self.metadata.get("ranges", "")
        if not text:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValidationError([f"ranges: not valid JSON ({error})"]) from None
        return parse_ranges(value, self.inputs)

    @property
    def serving(self) -> dict[str, float]:
        """How a server should serve this model, where that differs from the server's flags.

        Any of `max_batch` and `max_queue`, whole numbers of rows from 1, and `max_delay_ms`, from 0.

        Raises:
            ValidationError: The metadata's `serving` says something else.
        """
        text = self.metadata.get("serving", "")
        if not text:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValidationError([f"serving: not valid JSON ({error})"]) from None
        return parse_serving(value)

    @property
    def encryption(self) -> str:
        """How model.mindir is encrypted, `AES-GCM`; empty when it is not."""
        return self.metadata.get("encryption", "")

    @property
    def transform(self) -> str:
        """Name of the registered transform that the model is served with; empty without one."""
        return self.metadata.get("transform", "")

    def to_dict(self) -> dict[str, Any]:
        """Return the signature as JSON types."""
        return {
            "version": FORMAT_VERSION,
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "mindspore_version": self.mindspore_version,
            "files": {name: dict(entry) for name, entry in self.files.items()},
            "verified": dict(self.verified),
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Signature:
        """Rebuild a signature from `to_dict`'s result.

        Raises:
            KeyError: A field is missing.
            TypeError, ValueError, AttributeError: A field has another type.
        """
        return cls(
            inputs=tuple(TensorSpec.from_dict(spec) for spec in value["inputs"]),
            outputs=tuple(TensorSpec.from_dict(spec) for spec in value["outputs"]),
            mindspore_version=str(value["mindspore_version"]),
            files={
                str(name): {"sha256": str(entry["sha256"]), "size": int(entry["size"])}
                for name, entry in value["files"].items()
            },
            verified=dict(value["verified"]),
            metadata={str(name): str(text) for name, text in value["metadata"].items()},
        )


def parse_serving(value: Any) -> dict[str, float]:
    """Check how a model should be served.

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
    """Read the ranges of inputs and check them.

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
    for name, bounds in value.items():
        pair = isinstance(bounds, list | tuple) and len(bounds) == 2 and all(_is_number(item) for item in bounds)
        if name not in names:
            errors.append(f"ranges.{name}: must be an input, one of {', '.join(map(repr, names))}")
        elif not pair or bounds[0] > bounds[1]:
            errors.append(f"ranges.{name}: must be [least, greatest], got {_shorten(bounds)}")
    if errors:
        raise ValidationError(errors)
    return {str(name): (bounds[0], bounds[1]) for name, bounds in value.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def parse_dimensions(value: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[Dimension, ...]:
    """Read dimensions and check them against a model's inputs and outputs.

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
    taken: dict[tuple[str, str, int], str] = {}
    for name, entry in value.items():
        where = f"dimensions.{name}"
        if not isinstance(entry, Mapping):
            errors.append(f"{where}: must be an object with inputs, outputs, sizes and pad, got {_shorten(entry)}")
            continue
        errors += [
            f"{where}: unknown field {key!r}, expected inputs, outputs, sizes and pad"
            for key in entry
            if key not in ("inputs", "outputs", "sizes", "pad")
        ]
        axes = {kind: _get_object(entry, kind) for kind in ("inputs", "outputs", "pad")}
        errors += [
            f"{where}.{kind}: must be an object, got {_shorten(entry[kind])}"
            for kind, found in axes.items()
            if found is None
        ]
        if any(found is None for found in axes.values()):
            continue
        found_inputs, found_outputs, pad = (dict(axes[kind] or {}) for kind in ("inputs", "outputs", "pad"))
        mistakes = [
            *([] if found_inputs else [f"{where}.inputs: must name the axis of at least one input"]),
            *_check_axes(f"{where}.inputs", found_inputs, inputs),
            *_check_axes(f"{where}.outputs", found_outputs, outputs),
            *_check_sizes(f"{where}.sizes", entry.get("sizes")),
            *_check_pad(f"{where}.pad", pad, found_inputs, inputs),
        ]
        errors += mistakes
        if mistakes:
            continue
        for kind, found in (("inputs", found_inputs), ("outputs", found_outputs)):
            for tensor, axis in found.items():
                other = taken.setdefault((kind, tensor, axis), str(name))
                if other != name:
                    errors.append(f"{where}.{kind}.{tensor}: axis {axis} is dimension {other!r} already")
        filled = {tensor: pad.get(tensor, 0) for tensor in found_inputs}
        dimensions.append(Dimension(str(name), found_inputs, found_outputs, tuple(entry["sizes"]), filled))
    if errors:
        raise ValidationError(errors)
    return tuple(dimensions)


def _get_object(entry: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    found = entry.get(kind, {})
    return found if isinstance(found, Mapping) else None


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
