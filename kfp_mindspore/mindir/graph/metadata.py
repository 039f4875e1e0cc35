"""A MindIR file's metadata, read in 0.1 s without loading MindSpore."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kfp_mindspore.compat.protobuf import load_standalone
from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.bundle import MODEL_FILE, TensorSpec
from kfp_mindspore.mindir.graph.encryption import decrypt_file, missing_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The graph's own bookkeeping, which computes nothing.
_BOOKKEEPING = frozenset({"Constant", "Depend", "Load", "MakeTuple", "Return", "TupleGetItem", "UpdateState"})
# Weights beside a graph of a bundle, see `place_graph` of the export.
_WEIGHTS = re.compile(r"[A-Za-z0-9]+\.weights_[0-9]+")
_CIPHER_MAGIC = bytes.fromhex("d85e3a7f")
_DTYPES = {
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "DOUBLE": "float64",
    "FLOAT64": "float64",
    "BOOL": "bool",
    **{f"{kind}{bits}": f"{kind.lower()}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
}


@dataclass(frozen=True)
class MindIRInfo:
    """A MindIR file's own metadata.

    Args:
        path: The file.
        size: File size in bytes.
        producer: The program that wrote it, `MindSpore`.
        mindspore_version: The version that wrote it.
        inputs: Name, dtype and shape, -1 for a free dimension.
        outputs: As `inputs`; output names are generated, and those inside a tuple have none.
        parameters: How many weights (tensors).
        parameter_values: Values in them.
        operators: How often each operator occurs, most frequent first.
    """

    path: Path
    size: int
    producer: str
    mindspore_version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    parameter_values: int
    operators: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the information as JSON types."""
        return {
            "path": str(self.path),
            "size": self.size,
            "producer": self.producer,
            "mindspore_version": self.mindspore_version,
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "parameters": self.parameters,
            "parameter_values": self.parameter_values,
            "operators": dict(self.operators),
        }


class GraphOperator(NamedTuple):
    """An operator of a graph.

    Args:
        name: The operator's type, such as `MatMul`.
        scope: The layers that it belongs to, such as `Default/rnn-GRU/MatMul-op0`.
        texts: Constant text inputs.
    """

    name: str
    scope: str
    texts: tuple[str, ...]


def is_encrypted(path: Path | str) -> bool:
    """Return whether a MindIR file is encrypted, by the first bytes."""
    with Path(path).open("rb") as file:
        return file.read(len(_CIPHER_MAGIC)) == _CIPHER_MAGIC


def inspect_mindir(path: Path | str, *, key: bytes | None = None) -> MindIRInfo:
    """Read a MindIR file.

    Args:
        path: The file, or the bundle directory that holds it; digests are not checked.
        key: An encrypted file's key, which is decrypted in memory; this loads MindSpore.

    Raises:
        NotFoundError: There is no such file.
        UserError: It is no MindIR file, or is encrypted and the key is missing or wrong.
        MissingExtraError: MindSpore, which contains the format's definition, is not installed.
    """
    file = _get_file(path)
    model = read_proto(file, key=key)
    graph = model.graph
    operators = count_operators(model)
    weights = [tensor for part in (graph, *model.functions) for tensor in part.parameter]
    return MindIRInfo(
        path=file,
        size=file.stat().st_size,
        producer=model.producer_name,
        mindspore_version=model.model_version,
        inputs=tuple(_read_value(value) for value in graph.input),
        outputs=tuple(_read_value(value) for value in graph.output),
        parameters=len(weights),
        parameter_values=sum(_multiply(tensor.dims) for tensor in weights),
        operators={name: count for name, count in operators.most_common() if name not in _BOOKKEEPING},
    )


def read_proto(path: Path | str, *, key: bytes | None = None) -> Any:
    """Parse a MindIR file into the protobuf message, a ModelProto.

    Args:
        path: The file, or the bundle directory that holds it; digests are not checked.
        key: 16, 24 or 32 bytes that decrypt an encrypted file in memory; this loads MindSpore.

    Raises:
        NotFoundError: There is no such file.
        UserError: It is no MindIR file, or is encrypted and the key is missing or wrong.
        MissingExtraError: MindSpore, which contains the message's definition, is not installed.
    """
    file = _get_file(path)
    messages = _load_messages()
    from google.protobuf.message import DecodeError

    encrypted = is_encrypted(file)
    if encrypted and key is None:
        raise missing_key(file)
    content = decrypt_file(file, key) if encrypted and key is not None else file.read_bytes()
    try:
        model = messages.ModelProto.FromString(content)
    except DecodeError:
        raise UserError(f"{file}: not a MindIR file") from None
    if not model.graph.node or not model.graph.input:
        raise UserError(f"{file}: not a MindIR file: it holds no graph")
    return model


def read_weights(path: Path | str, *, key: bytes | None = None) -> dict[str, NDArray[Any]]:
    """Return the weights in a MindIR file by name.

    Args:
        path: As for `read_proto`.
        key: As for `read_proto`.

    Raises:
        UserError: It is no MindIR file, or a weight is damaged or stored in another file; the message names it.
    """
    file = _get_file(path)
    return {split_name(tensor.name): _read_weight(file, tensor) for tensor in read_proto(file, key=key).graph.parameter}


def list_weight_files(model: Any) -> list[str]:
    """Return the names of the files beside the graph that hold weights of a message from `read_proto`."""
    return sorted({tensor.external_data.location for tensor in model.graph.parameter} - {""})


def count_operators(model: Any) -> Counter[str]:
    """Return how often each operator occurs in a message from `read_proto`, bookkeeping included."""
    return Counter(operator.name for operator in list_operators(model))


def list_operators(model: Any) -> Iterator[GraphOperator]:
    """Yield the operators in a message from `read_proto`, bookkeeping included."""
    primitives = {primitive.name: primitive.op_type for primitive in model.primitives}
    parts = (model.graph, *model.functions)
    texts = {
        node.output[0]: attribute.s.decode(errors="replace")
        for part in parts
        for node in part.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value" and attribute.s
    }
    for part in parts:
        for node in part.node:
            name = node.op_type.removeprefix("REF::")
            yield GraphOperator(
                primitives.get(name, name.partition(":")[0]),
                node.domain,
                tuple(texts[value] for value in node.input if value in texts),
            )


def split_name(name: str) -> str:
    """Return an input's or output's name without its graph's: MindIR writes `<graph>:<name>`."""
    return name.rpartition(":")[2] if name.count(":") < 2 else name.split(":", 1)[1]


def _read_weight(file: Path, tensor: Any) -> NDArray[Any]:
    import numpy as np

    name, content = split_name(tensor.name), tensor.raw_data
    if tensor.HasField("external_data"):
        place = tensor.external_data
        if not _WEIGHTS.fullmatch(place.location) or not (beside := file.with_name(place.location)).is_file():
            raise UserError(
                f"{file}: the weight {name} is in another file, {place.location}: MindSpore splits models over 1 GB",
                hint="Export the model from its checkpoint: kfp-mindspore model export",
            )
        with beside.open("rb") as opened:
            opened.seek(place.offset)
            content = opened.read(place.length)
    kind = _read_dtype(tensor)
    if kind not in _DTYPES.values():
        raise UserError(f"{file}: the weight {name} has the unknown dtype {kind}")
    # NumPy has no bfloat16: its bits are the upper half of a float32.
    dtype = np.dtype("uint16" if kind == "bfloat16" else kind)
    expected = _multiply(tensor.dims) * dtype.itemsize
    if len(content) != expected:
        raise UserError(
            f"{file}: damaged: the weight {name} {tuple(tensor.dims)} of {kind} must have {expected} bytes, got "
            f"{len(content)}",
            hint="Copy the file again from where it came from.",
        )
    array = np.frombuffer(content, dtype).reshape(tuple(tensor.dims))
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat16" else array.copy()


def _get_file(path: Path | str) -> Path:
    file = Path(path)
    if file.is_dir():
        file = file / MODEL_FILE
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file")
    return file


@lru_cache(maxsize=1)
def _load_messages() -> Any:
    return load_standalone("mindspore.train.mind_ir_pb2")


def _read_value(value: Any) -> TensorSpec:
    name = split_name(value.name)
    if not value.tensor:
        return TensorSpec(name, value.denotation.lower() or "unknown", ())
    tensor = value.tensor[0]
    return TensorSpec(name, _read_dtype(tensor), tuple(tensor.dims))


def _read_dtype(tensor: Any) -> str:
    kind: str = _load_messages().TensorProto.DataType.Name(tensor.data_type)
    return _DTYPES.get(kind, kind.lower())


def _multiply(dimensions: Any) -> int:
    product = 1
    for size in dimensions:
        product *= size
    return product
