"""Which parameters share channels, traced through an exported graph.

Each value of the graph gets an array with its shape: for each element its channel's label. An operator derives its
output's labels from its inputs', and joins labels that can only be removed together, so reshaped, transposed,
concatenated and flattened channels are followed element by element. Channels that reach the network's output, or an
operator that is not known, are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.compression.labels import Channels, compact, spread, varies
from kfp_mindspore.mindir.graph.metadata import split_name

if TYPE_CHECKING:
    from kfp_mindspore.compression.labels import Labels

_PASS = frozenset({"Load", "Depend", "Cast", "Identity", "Dropout", "StopGradient", "Tile"})
_UNARY = frozenset(
    {"ReLU", "ReLU6", "GeLU", "FastGeLU", "GeluExt", "SiLU", "Sigmoid", "Tanh", "HSwish", "HSigmoid", "Mish"}
    | {"MishExt", "LeakyReLUExt", "LeakyRelu", "Elu", "EluExt", "SeLU", "SeLUExt", "CeLU", "Softplus", "SoftplusExt"}
    | {"Softsign", "LogSigmoid", "SoftShrink", "HShrink", "Hardtanh", "Threshold", "NanToNum", "Abs", "Exp", "Exp2"}
    | {"Expm1", "Log", "Log1p", "Log2", "Log10", "Neg", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Sin", "Cos", "Tan"}
    | {"Sinh", "Cosh", "Erf", "Erfc", "Floor", "Ceil", "Round", "Trunc", "Sign", "LogicalNot", "ClampScalar"}
)
# Each operator of two tensors, and its forms with a number in place of one, which MindSpore writes for `values / 2`.
_BINARY = frozenset(
    {"Add", "AddExt", "AddScalar", "Sub", "SubExt", "SubScalar", "Mul", "Muls", "Div", "RealDiv", "Divs", "BiasAdd"}
    | {"DivMod", "DivMods", "FloorDiv", "FloorDivScalar", "FloorMod", "Mod", "FmodTensor", "FmodScalar"}
    | {"RemainderTensorTensor", "RemainderTensorScalar", "RemainderScalarTensor", "Atan2", "Atan2Ext"}
    | {"Pow", "PowTensorScalar", "PowScalarTensor", "Xlogy", "XLogYScalarOther", "XLogYScalarSelf", "PReLU"}
    | {"Lerp", "LerpScalar", "Addcmul", "AddcmulExt", "Addcdiv", "AddcdivExt", "LogAddExp", "LogAddExp2"}
    | {"Maximum", "Minimum", "ClampTensor", "Select", "SelectV2", "Where", "MaskedFill", "MaskedFillScalar"}
    | {"Equal", "EqualExt", "EqScalar", "NotEqual", "Less", "LessScalar", "LessEqual", "Greater", "GreaterEqual"}
    | {"GreaterEqualScalar", "LogicalAnd", "LogicalOr", "LogicalXor"}
)
ELEMENT_WISE = _UNARY | _BINARY
_REDUCTIONS = frozenset({"ReduceMean", "MeanExt", "ReduceSum", "SumExt", "ReduceMax", "ReduceMin", "ArgMaxWithValue"})
_POOLS = frozenset(
    {"MaxPool", "AvgPool", "AvgPool2D", "MaxPool3D", "AvgPool3D", "MaxPoolWithMask", "MaxPoolWithIndices"}
    | {
        "AdaptiveAvgPool2D",
        "AdaptiveAvgPool2DExt",
        "AdaptiveMaxPool2D",
        "Pad",
        "PadV3",
        "ResizeBilinearV2",
        "ResizeNearestNeighbor",
    }
)
_SHAPES = frozenset({"Reshape", "Flatten", "FlattenExt", "ExpandDims", "Squeeze", "View"})
_PRODUCTS = {"MatMul": 2, "BatchMatMul": 2, "Dense": 0, "MatMulExt": 0, "BatchMatMulExt": 0}
_IGNORED = frozenset({"UpdateState", "Return", "Shape", "TensorShape", "DynamicShape"})


@dataclass(frozen=True)
class Weight:
    """A parameter of the graph, or a constant tensor without a name."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """One operator's multiplications.

    Args:
        layer: The layer's path.
        parameter: Its weight; empty for a product without one.
        positions: How often the whole weight is used for one sample.
        labels: Without a weight, the output elements' labels.
        size: Without a weight, how many elements the output has.
    """

    layer: str
    parameter: str
    positions: int
    labels: Labels | None = None
    size: int = 0


@dataclass
class Structure:
    """A network's channels.

    Args:
        channels: The label sets.
        shapes: Parameter shapes by name, in the graph's order.
        produced: Parameter axes that compute channels.
        consumed: Parameter axes that channels are multiplied by.
        normalized: Labels that a LayerNorm normalizes over: without one the others' statistics change.
        work: Multiplications by operator.
        reshaped: The reshaped values' labels.
        unknown: Unknown operators' names with their layers.
    """

    channels: Channels = field(default_factory=Channels)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    produced: set[tuple[str, int]] = field(default_factory=set)
    consumed: set[tuple[str, int]] = field(default_factory=set)
    normalized: list[Labels] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    reshaped: list[Labels] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def trace(model: Any) -> Structure:
    """Trace an exported graph's channels.

    Args:
        model: A fixed-shape MindIR's message, by `read_proto`.
    """
    return _Tracer(model).run()


def get_layer(scope: str) -> str:
    """Return the layer in an operator's scope, such as `encoder.0` of `Default/encoder-SequentialCell/0-Block/Add-op0`.

    A name that holds a minus sign is not found.
    """
    return ".".join(part.partition("-")[0] for part in scope.split("/")[1:-1])


class _Tracer:
    def __init__(self, model: Any) -> None:
        self._graph = model.graph
        self._primitives = {primitive.name: primitive for primitive in model.primitives}
        self._structure = Structure()
        self._channels = self._structure.channels
        self._values: dict[str, Any] = {}
        for tensor in model.graph.parameter:
            name, shape = split_name(tensor.name), tuple(tensor.dims)
            self._structure.shapes[name] = shape
            self._values[tensor.name] = Weight(name, shape)

    def run(self) -> Structure:
        for value in self._graph.input:
            shape = tuple(value.tensor[0].dims)
            self._values[value.name] = self._create_frozen(shape, "the network's input")
        for node in self._graph.node:
            self._run_node(node)
        for value in self._graph.output:
            for labels in _flatten(self._values.get(value.name)):
                if not isinstance(labels, Weight):
                    self._channels.freeze(labels, "the network's output")
        return self._structure

    def _run_node(self, node: Any) -> None:
        name = node.op_type.removeprefix("REF::")
        primitive = self._primitives.get(name)
        name = primitive.op_type if primitive is not None else name
        if name == "Constant":
            self._values[node.output[0]] = _read_constant(node)
            return
        inputs = [self._values.get(value) for value in node.input]
        shapes = _read_shapes(node)
        if name in _IGNORED:
            result: Any = None
        elif name == "MakeTuple":
            result = inputs
        elif name == "TupleGetItem":
            parts, index = inputs[0], inputs[1]
            result = parts[index] if isinstance(parts, (list, tuple)) and isinstance(index, int) else None
        elif name in ("Load", "Depend"):
            result = inputs[0]
        else:
            rule = self._get_rule(name)
            reason = f"operator {name} in {get_layer(node.domain) or 'the network'}"
            try:
                result = rule(_Call(name, inputs, shapes, get_layer(node.domain), primitive))
            except _UnknownFormError as error:
                reason, result = f"{error} ({reason})" if str(error) else reason, None
            if result is None:
                if reason not in self._structure.unknown:
                    self._structure.unknown.append(reason)
                result = self._freeze_all(inputs, shapes, reason)
        self._values[node.output[0]] = result

    def _get_rule(self, name: str) -> Callable[[_Call], Any]:
        for names, rule in (
            (_PASS | _UNARY, self._pass),
            (_BINARY, self._combine),
            (_REDUCTIONS, self._reduce),
            (_POOLS, self._pool),
            (_SHAPES, self._reshape),
            (_PRODUCTS, self._multiply),
        ):
            if name in names:
                return rule
        rules: Mapping[str, Callable[[_Call], Any]] = {
            "Conv2D": self._convolve,
            "BatchNorm": self._normalize_batch,
            "LayerNorm": self._normalize_layer,
            "LayerNormExt": self._normalize_layer,
            "Softmax": self._soften,
            "LogSoftmax": self._soften,
            "Transpose": self._transpose,
            "TransposeExt": self._transpose,
            "Concat": self._concatenate,
            "Split": self._split,
            "StridedSlice": self._slice,
            "Gather": self._embed,
            "Embedding": self._embed,
        }
        return rules.get(name, lambda call: None)

    def _create_frozen(self, shape: Sequence[int], reason: str) -> Labels:
        label = self._channels.create(1)
        self._channels.freeze(label, reason)
        return np.broadcast_to(label.reshape([1] * len(shape)), tuple(shape))

    def _freeze_all(self, inputs: Sequence[Any], shapes: Any, reason: str) -> Any:
        for value in _flatten(inputs):
            if isinstance(value, Weight):
                for axis, size in enumerate(value.shape):
                    if value.name:
                        self._channels.freeze(self._channels.get_slot(value.name, axis, size), reason)
            else:
                self._channels.freeze(value, reason)
        return (
            [self._create_frozen(shape, reason) for shape in shapes]
            if isinstance(shapes, list)
            else (self._create_frozen(shapes, reason))
        )

    def _get_labels(self, value: Any) -> Labels:
        """Return a value's labels; a parameter's are its last axis'."""
        if isinstance(value, Weight):
            if not value.name or not value.shape:
                raise _UnknownFormError("a constant tensor")
            axis = len(value.shape) - 1
            self._structure.produced.add((value.name, axis))
            return spread(self._channels.get_slot(value.name, axis, value.shape[-1]), axis, value.shape)
        if not isinstance(value, np.ndarray):
            raise _UnknownFormError("no tensor")
        return value

    def _pass(self, call: _Call) -> Any:
        labels = self._get_labels(call.inputs[0])
        outputs = call.shapes if isinstance(call.shapes, list) else [call.shapes]
        if any(shape not in (labels.shape, ()) for shape in outputs):
            raise _UnknownFormError
        return [labels for _ in outputs] if isinstance(call.shapes, list) else labels

    def _combine(self, call: _Call) -> Labels:
        shape = call.shape
        operands = [value for value in call.inputs if isinstance(value, np.ndarray) and value.ndim <= len(shape)]
        weights = [value for value in call.inputs if isinstance(value, Weight) and math.prod(value.shape) > 1]
        if not operands:
            if len(weights) != 1 or weights[0].shape != shape:
                raise _UnknownFormError
            return self._get_labels(weights[0])
        operands.sort(key=lambda labels: -labels.size)
        result = np.broadcast_to(operands[0], shape)
        for other in operands[1:]:
            wide = np.broadcast_to(_align(other, shape), shape)
            narrow = [axis for axis in range(len(shape)) if _align(other, shape).shape[axis] < shape[axis]]
            if any(varies(result, axis) for axis in narrow):
                self._channels.freeze(other, "broadcast over channels")
            else:
                self._channels.join(result, wide)
        for weight in weights:
            axes = {len(shape) - len(weight.shape) + axis: axis for axis in range(len(weight.shape))}
            if call.name in ("BiasAdd", "PReLU"):
                axes = {1: 0}
            for axis, own in axes.items():
                if weight.shape[own] == 1 or not varies(result, axis):
                    continue
                vector = self._channels.get_vector(result, axis)
                if weight.name:
                    self._channels.join(self._channels.get_slot(weight.name, own, weight.shape[own]), vector)
                else:
                    self._channels.freeze(vector, "a constant tensor")
        return result

    def _reduce(self, call: _Call) -> Any:
        labels = self._get_labels(call.inputs[0])
        axes = call.inputs[1]
        axes = (axes,) if isinstance(axes, int) else axes or tuple(range(labels.ndim))
        reduced = labels
        for axis in sorted((axis % labels.ndim for axis in axes), reverse=True):
            if varies(labels, axis):
                raise _UnknownFormError("reduces channels")
            reduced = np.take(reduced, 0, axis)
        if isinstance(call.shapes, list):
            return [reduced.reshape(shape) for shape in call.shapes]
        return reduced.reshape(call.shape)

    def _pool(self, call: _Call) -> Any:
        labels = self._get_labels(call.inputs[0])
        for axis in range(2, labels.ndim):
            if varies(labels, axis):
                raise _UnknownFormError("channels along height or width")
        shapes = call.shapes if isinstance(call.shapes, list) else [call.shapes]
        if any(shape[:2] != labels.shape[:2] for shape in shapes):
            raise _UnknownFormError
        whole = slice(None)
        narrow = labels[tuple([whole, whole] + [slice(0, 1)] * (labels.ndim - 2))]
        found = [np.broadcast_to(narrow, shape) for shape in shapes]
        return found if isinstance(call.shapes, list) else found[0]

    def _reshape(self, call: _Call) -> Labels:
        labels = self._get_labels(call.inputs[0]).reshape(call.shape)
        if call.name in ("Reshape", "View"):
            self._structure.reshaped.append(labels)
        return labels

    def _transpose(self, call: _Call) -> Labels:
        order = call.inputs[1]
        labels = self._get_labels(call.inputs[0])
        if call.name == "TransposeExt":
            return np.swapaxes(labels, call.inputs[1], call.inputs[2])
        return labels.transpose(order)

    def _concatenate(self, call: _Call) -> Labels:
        parts, axis = call.inputs[0], call.inputs[1]
        return np.concatenate([self._get_labels(part) for part in parts], axis)

    def _split(self, call: _Call) -> list[Labels]:
        labels, axis = self._get_labels(call.inputs[0]), call.inputs[1]
        shapes = call.shapes
        if len({shape[axis] for shape in shapes}) > 1:
            raise _UnknownFormError("unequal parts")
        parts = np.split(labels, len(shapes), axis)
        for part in parts[1:]:
            self._channels.join(parts[0], part)
        return parts

    def _slice(self, call: _Call) -> Labels:
        labels = self._get_labels(call.inputs[0])
        begin, end, steps, begin_mask, end_mask, ellipsis_mask, new_mask, shrink_mask = call.inputs[1:9]
        if ellipsis_mask or new_mask:
            raise _UnknownFormError
        index: list[Any] = []
        for axis, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
            if shrink_mask >> axis & 1:
                index.append(first)
            else:
                start = None if begin_mask >> axis & 1 else first
                index.append(slice(start, None if end_mask >> axis & 1 else last, step))
        sliced: Labels = labels[tuple(index)]
        if sliced.shape != call.shape:
            raise _UnknownFormError
        for axis, taken in enumerate(index):
            whole = isinstance(taken, slice) and len(range(*taken.indices(labels.shape[axis]))) == labels.shape[axis]
            if not whole:
                self._channels.join_along(labels, axis)
        return sliced

    def _soften(self, call: _Call) -> Labels:
        labels = self._get_labels(call.inputs[0])
        axes = call.inputs[1] if len(call.inputs) > 1 else -1
        for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
            if varies(labels, axis):
                raise _UnknownFormError("compares channels")
        return labels

    def _normalize_batch(self, call: _Call) -> list[Labels]:
        labels = self._get_labels(call.inputs[0])
        vector = self._channels.get_vector(labels, 1)
        for weight in call.inputs[1:5]:
            self._join_weight(weight, 0, vector)
        return [labels] + [vector] * 4

    def _normalize_layer(self, call: _Call) -> list[Labels]:
        labels = self._get_labels(call.inputs[0])
        vector = self._channels.get_vector(labels, -1)
        if any(isinstance(weight, Weight) and len(weight.shape) != 1 for weight in call.inputs[1:4]):
            raise _UnknownFormError("several normalized axes")
        if varies(labels, labels.ndim - 1):
            self._structure.normalized.append(vector)
        for weight in call.inputs[1:4]:
            if isinstance(weight, Weight):
                self._join_weight(weight, 0, vector)
        return [labels, labels[..., :1], labels[..., :1]]

    def _join_weight(self, weight: Any, axis: int, vector: Labels) -> None:
        if not isinstance(weight, Weight) or not weight.name:
            raise _UnknownFormError("a weight that is computed")
        self._channels.join(self._channels.get_slot(weight.name, axis, weight.shape[axis]), vector)

    def _convolve(self, call: _Call) -> Labels:
        labels, weight = self._get_labels(call.inputs[0]), call.inputs[1]
        if not isinstance(weight, Weight) or not weight.name:
            raise _UnknownFormError("a weight that is computed")
        outputs, width = weight.shape[:2]
        groups = call.read_attribute("group") or 1
        inputs = self._channels.get_vector(labels, 1)
        produced = self._channels.get_slot(weight.name, 0, outputs)
        if groups == 1:
            self._channels.join(self._channels.get_slot(weight.name, 1, width), inputs)
            self._structure.consumed.add((weight.name, 1))
        elif groups == len(inputs) and outputs == groups:
            self._channels.join(produced, inputs)
        else:
            raise _UnknownFormError("a grouped convolution")
        self._structure.produced.add((weight.name, 0))
        positions = math.prod(call.shape[2:])
        self._structure.work.append(Work(call.layer, weight.name, positions))
        return spread(produced, 1, call.shape)

    def _multiply(self, call: _Call) -> Labels:
        one, other = call.inputs[:2]
        flags = [bool(value) for value in call.inputs[2:4]] if _PRODUCTS[call.name] else [False, call.name == "Dense"]
        if isinstance(other, Weight) and other.name and len(other.shape) == 2 and not flags[0]:
            labels = self._get_labels(one)
            inner, outer = (1, 0) if flags[1] else (0, 1)
            vector = self._channels.get_vector(labels, -1)
            self._channels.join(self._channels.get_slot(other.name, inner, other.shape[inner]), vector)
            produced = self._channels.get_slot(other.name, outer, other.shape[outer])
            self._structure.consumed.add((other.name, inner))
            self._structure.produced.add((other.name, outer))
            if call.name == "Dense" and len(call.inputs) > 2 and isinstance(call.inputs[2], Weight):
                self._join_weight(call.inputs[2], 0, produced)
            self._structure.work.append(Work(call.layer, other.name, labels.size // len(vector)))
            return spread(produced, len(call.shape) - 1, call.shape)
        first, second = self._get_labels(one), self._get_labels(other)
        first = first.swapaxes(-1, -2) if flags[0] else first
        second = second.swapaxes(-1, -2) if flags[1] else second
        # Contracted channels are removed from both operands, and a whole head with its scores.
        contracts = varies(first, first.ndim - 1) or varies(second, second.ndim - 2)
        left = self._channels.join_along(first, first.ndim - 1)[..., np.newaxis]
        right = self._channels.join_along(second, second.ndim - 2)[..., np.newaxis, :]
        if contracts or not self._is_frozen(left):
            self._channels.join(left, right)
        result = np.broadcast_to(right, call.shape)
        self._structure.work.append(Work(call.layer, "", first.shape[-1], compact(result), result.size))
        return result

    def _is_frozen(self, labels: Labels) -> bool:
        return all(self._channels.get_reason(label) for label in np.unique(compact(labels)).tolist())

    def _embed(self, call: _Call) -> Labels:
        table, indices = call.inputs[:2] if call.name == "Gather" else call.inputs[1::-1]
        if not isinstance(table, Weight) or not table.name or len(table.shape) != 2:
            raise _UnknownFormError
        if call.name == "Gather" and call.inputs[2] != 0:
            raise _UnknownFormError
        if isinstance(indices, np.ndarray):
            self._channels.freeze(indices, "an index")
        self._structure.produced.add((table.name, 1))
        return spread(self._channels.get_slot(table.name, 1, table.shape[1]), len(call.shape) - 1, call.shape)


@dataclass(frozen=True)
class _Call:
    """One operator with its inputs' labels, weights and constants, and its output shapes."""

    name: str
    inputs: Sequence[Any]
    shapes: Any
    layer: str
    primitive: Any

    @property
    def shape(self) -> tuple[int, ...]:
        if isinstance(self.shapes, list):
            raise _UnknownFormError
        found: tuple[int, ...] = self.shapes
        return found

    def read_attribute(self, name: str) -> int:
        attributes = self.primitive.attribute if self.primitive is not None else ()
        return next((int(attribute.i) for attribute in attributes if attribute.name == name), 0)


class _UnknownFormError(Exception):
    """A known operator in a form whose channels cannot be followed."""


def _align(labels: Labels, shape: Sequence[int]) -> Labels:
    return labels.reshape((1,) * (len(shape) - labels.ndim) + labels.shape)


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in _flatten(part)]
    return [value] if isinstance(value, (np.ndarray, Weight)) else []


def _read_shapes(node: Any) -> Any:
    attribute = next((item for item in node.attribute if item.name == "shape"), None)
    if attribute is None:
        return ()
    if len(attribute.values):
        return [tuple(value.tensors[0].dims) if len(value.tensors) else () for value in attribute.values]
    return tuple(attribute.tensors[0].dims) if len(attribute.tensors) else ()


def _read_constant(node: Any) -> Any:
    attribute = next((item for item in node.attribute if item.name == "value"), None)
    return None if attribute is None else _read_value(attribute)


def _read_value(attribute: Any) -> Any:
    if len(attribute.values):
        return tuple(_read_value(value) for value in attribute.values)
    if len(attribute.tensors):
        return Weight("", tuple(attribute.tensors[0].dims))
    for numbers in (attribute.ints, attribute.floats, attribute.doubles):
        if len(numbers):
            return numbers[0]
    return attribute.f or attribute.d or int(attribute.i)
