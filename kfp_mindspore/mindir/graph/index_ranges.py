"""Ranges for integer inputs that a graph uses as indices, derived from the nodes.

An index outside its table makes MindSpore 2.9's CPU kernels wait 3 s before they raise, and leaves the compiled graph
unusable, so a server has to refuse the value before the graph runs.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.mindir.graph.metadata import split_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Lookup:
    """An operator that reads table rows.

    Args:
        table: The table's position among the operator's inputs.
        indices: Index position.
        axis: Position where the constant stands that names the table's axis; None for axis 0.
    """

    table: int
    indices: int
    axis: int | None = None


# EmbeddingLookup and OneHot are absent: they answer zeros for an index outside the table.
_LOOKUPS = {
    "Gather": _Lookup(0, 1, 2),
    "GatherD": _Lookup(0, 2, 1),
    "Embedding": _Lookup(1, 0),
    "IndexSelect": _Lookup(0, 2, 1),
}
# Lookups whose table size is not one number.
_UNSIZED = {"GatherNd": 1}
# The output holds the first input's values only.
_VALUE_PRESERVING = frozenset(
    {"BroadcastTo", "Cast", "Depend", "ExpandDims", "Flatten", "FlattenExt", "Identity", "Load", "Reshape", "ReverseV2"}
    | {"Slice", "SliceExt", "Squeeze", "StridedSlice", "Tile", "Transpose", "View"}
)
# The output does not depend on the inputs' values, or is bounded whatever they are.
_BOUNDED = frozenset(
    {"Argmax", "ArgMaxExt", "ArgMaxWithValue", "ArgMinWithValue", "DynamicShape", "Shape", "TensorShape", "UpdateState"}
    | {"Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "NotEqual"}
)


@dataclass(frozen=True)
class IndexRanges:
    """How a graph's inputs are used as indices.

    Args:
        known: Least and greatest index by input, both included, for inputs that reach a lookup unchanged.
        unknown: Inputs that reach a lookup through arithmetic, or a table of unknown size.
    """

    known: Mapping[str, tuple[int, int]]
    unknown: frozenset[str]


def compute_index_ranges(model: Any) -> IndexRanges:
    """Derive the range for each input that is an index into a table.

    Args:
        model: The MindIR's message, by `read_proto`.
    """
    operators = {primitive.name: primitive.op_type for primitive in model.primitives}
    inputs = {value.name: split_name(value.name) for value in model.graph.input}
    known: dict[str, tuple[int, int]] = {}
    unknown: set[str] = set()
    for graph in (model.graph, *model.functions):
        nodes = _Nodes(graph, operators, inputs)
        for node in graph.node:
            operator = nodes.get_operator(node)
            if operator in _UNSIZED:
                unknown |= nodes.list_sources(node.input[_UNSIZED[operator]])
            lookup = _LOOKUPS.get(operator)
            if lookup is None:
                continue
            indices = node.input[lookup.indices]
            rows = nodes.get_rows(node, lookup)
            direct = nodes.get_unchanged_input(indices)
            if rows and direct:
                # The CPU kernels count -n to -1 from the end: a wrong id, such as -1 for none, would get another's row.
                known[direct] = 0, min(known.get(direct, (0, rows - 1))[1], rows - 1)
            else:
                unknown |= nodes.list_sources(indices)
    return IndexRanges(known, frozenset(unknown - set(known)))


def add_ranges(signature: Signature, model: Any, samples: Mapping[str, NDArray[Any]]) -> Signature:
    """Return the signature with a range for each input that the graph uses as an index.

    A range that the user names in the metadata has precedence over the graph's, and the graph's over the samples'.

    Args:
        signature: The signature.
        model: The MindIR's message, by `read_proto`.
        samples: The inputs' samples by name.
    """
    found = compute_index_ranges(model)
    ranges: dict[str, tuple[float, float]] = {**found.known, **signature.ranges}
    for spec in signature.inputs:
        if spec.name in found.unknown and spec.name not in ranges and spec.dtype.startswith(("int", "uint")):
            array = samples[spec.name]
            ranges[spec.name] = least, greatest = int(array.min()), int(array.max())
            _logger.warning(
                "input %r is used as an index and the graph does not fix its range: servers will refuse values outside "
                "%d to %d, the range of the samples; name another by the metadata ranges={%s: [least, greatest]}",
                *(spec.name, least, greatest, json.dumps(spec.name)),
            )
    return dataclasses.replace(
        signature,
        inputs=tuple(dataclasses.replace(spec, range=ranges.get(spec.name)) for spec in signature.inputs),
        metadata={name: text for name, text in signature.metadata.items() if name != "ranges"},
    )


class _Nodes:
    """One graph's or function's nodes by their output's name."""

    def __init__(self, graph: Any, operators: Mapping[str, str], inputs: Mapping[str, str]) -> None:
        self._operators = operators
        self._inputs = inputs
        self._producers = {name: node for node in graph.node for name in node.output}
        self._tables = {tensor.name: list(tensor.dims) for tensor in graph.parameter}
        self._tables |= {value.name: list(value.tensor[0].dims) for value in graph.input if value.tensor}
        self._arguments = {value.name for value in graph.input} - set(inputs)

    def get_operator(self, node: Any) -> str:
        """Return the operator's type, such as Gather."""
        name = node.op_type.removeprefix("REF::")
        return self._operators.get(name, name)

    def get_rows(self, node: Any, lookup: _Lookup) -> int:
        """Return the table size along the indexed axis, 0 when the graph does not fix it."""
        name = node.input[lookup.table]
        while (producer := self._producers.get(name)) is not None and self.get_operator(producer) in ("Load", "Depend"):
            name = producer.input[0]
        dimensions = self._tables.get(name) or _get_shape(producer)
        axis = 0 if lookup.axis is None else _get_integer(self._producers.get(node.input[lookup.axis]))
        if axis is None or not -len(dimensions) <= axis < len(dimensions):
            return 0
        return max(0, int(dimensions[axis]))

    def get_unchanged_input(self, name: str) -> str:
        """Return the graph input whose values a tensor holds, or an empty string."""
        while (producer := self._producers.get(name)) is not None and self.get_operator(producer) in _VALUE_PRESERVING:
            name = producer.input[0]
        return self._inputs.get(name, "")

    def list_sources(self, name: str) -> set[str]:
        """Return the graph inputs that a tensor's values depend on."""
        sources: set[str] = set()
        pending, seen = [name], {name}
        while pending:
            current = pending.pop()
            producer = self._producers.get(current)
            if current in self._inputs:
                sources.add(self._inputs[current])
            elif current in self._arguments:
                # A function argument: any graph input may have been passed.
                sources.update(self._inputs.values())
            elif producer is not None and (operator := self.get_operator(producer)) not in _BOUNDED:
                used = producer.input[:1] if operator in _VALUE_PRESERVING else producer.input
                pending += [following for following in used if following not in seen]
                seen.update(used)
        return sources


def _get_shape(node: Any) -> list[int]:
    attribute = _get_attribute(node, "value", "shape")
    return list(attribute.tensors[0].dims) if attribute is not None and len(attribute.tensors) else []


def _get_integer(node: Any) -> int | None:
    attribute = _get_attribute(node, "value")
    return int(attribute.i) if attribute is not None and not len(attribute.tensors) else None


def _get_attribute(node: Any, *names: str) -> Any:
    attributes = {attribute.name: attribute for attribute in node.attribute} if node is not None else {}
    return next((attributes[name] for name in names if name in attributes), None)
