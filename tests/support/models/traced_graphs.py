"""MindIR graphs written operator by operator, for traces without MindSpore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.compat.protobuf import load_standalone
from kfp_mindspore.compression.groups import ChannelGroups, build_groups
from kfp_mindspore.compression.structure import Structure, trace

Shape = tuple[int, ...]


class Graph:
    """A graph with one input, `x`.

    Args:
        shape: The input's shape.
    """

    def __init__(self, shape: Shape) -> None:
        self.model = load_standalone("mindspore.train.mind_ir_pb2").ModelProto()
        self.model.graph.input.add(name="x").tensor.add(dims=shape)
        self.shapes: dict[str, Shape] = {}
        self._count = 0

    def add_weight(self, name: str, *shape: int) -> str:
        """Add a parameter, and return its name."""
        self.model.graph.parameter.add(name=name, dims=shape)
        self.shapes[name] = shape
        return name

    def add_constant(self, value: float | Sequence[int] | Shape, *, is_tensor: bool = False) -> str:
        """Add a number, a tuple of numbers, or a tensor of which only the shape counts; return its name."""
        node = self._add_node("Constant")
        attribute = node.attribute.add(name="value")
        if is_tensor:
            attribute.tensors.add(dims=value)
        elif isinstance(value, Sequence):
            for number in value:
                attribute.values.add(ints=[number])
        elif isinstance(value, float):
            attribute.floats.append(value)
        else:
            attribute.ints.append(value)
        return str(node.output[0])

    def add(self, operator: str, *inputs: str, shape: Shape | list[Shape], layer: str = "", group: int = 0) -> str:
        """Add an operator, and return its output's name.

        Args:
            operator: Its type, such as `MatMul`.
            inputs: Names of its inputs.
            shape: Its output's shape, or shapes of several outputs.
            layer: The layer that it is in.
            group: A convolution's groups.
        """
        node = self._add_node(operator)
        node.input.extend(inputs)
        node.domain = f"Default/{layer}-Layer/{operator}-op0" if layer else ""
        attribute = node.attribute.add(name="shape")
        if isinstance(shape, list):
            for part in shape:
                attribute.values.add().tensors.add(dims=part)
        else:
            attribute.tensors.add(dims=shape)
        if group:
            primitive = self.model.primitives.add(name=f"{operator}{self._count}", op_type=operator)
            primitive.attribute.add(name="group", i=group)
            node.op_type = f"REF::{primitive.name}"
        return str(node.output[0])

    def get_part(self, value: str, index: int, shape: Shape) -> str:
        """Return one of an operator's outputs."""
        return self.add("TupleGetItem", value, self.add_constant(index), shape=shape)

    def add_dense(self, value: str, name: str, inputs: int, outputs: int, lead: Shape = (2,)) -> str:
        """Add a dense layer without bias on a value of shape (*lead, inputs)."""
        weight = self.add_weight(f"{name}.weight", outputs, inputs)
        return self.add("Dense", value, weight, shape=(*lead, outputs), layer=name)

    def add_convolution(self, value: str, name: str, inputs: int, outputs: int, group: int = 1) -> str:
        """Add a 3 × 3 convolution on a value of shape (2, inputs, 4, 4)."""
        weight = self.add_weight(f"{name}.weight", outputs, inputs // group, 3, 3)
        return self.add("Conv2D", value, weight, shape=(2, outputs, 4, 4), layer=name, group=group)

    def trace(self, output: str) -> Structure:
        """Trace the graph with this value as output."""
        self.model.graph.output.add(name=output)
        return trace(self.model)

    def find_groups(self, output: str, untrained: Sequence[str] = ()) -> ChannelGroups:
        """Group the graph's channels with this value as output."""
        trained = [name for name in self.shapes if name not in untrained]
        return build_groups(self.trace(output), self.shapes, trained)

    def _add_node(self, operator: str) -> Any:
        self._count += 1
        return self.model.graph.node.add(op_type=operator, output=[f"v{self._count}"])


def describe_groups(groups: ChannelGroups) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """Return how many units each group has, and the reasons by layer that is left."""
    sizes = {group.name: len(group) for group in groups.groups.values()}
    return sizes, {left.layer: left.reason for left in groups.left}
