"""Open Inference Protocol (V2) over HTTP: codec for JSON and the binary tensor data extension.

Source: https://github.com/kserve/open-inference-protocol and Triton's binary tensor data extension.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.protocols.rows import ColumnReader, RowReader
from mindsporeserver.protocols.tensors import (
    InputReader,
    check_names,
    encode_texts,
    join,
    list_texts,
    name_array,
    name_type,
    shorten,
)
from mindsporeserver.protocols.v1 import parse_json, read_parameters, to_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

UNKNOWN_PARAMETER = "unknown_categories"
# From Triton's extensions for classification and shared memory.
_REFUSED_PARAMETERS = (
    "classification",
    "class_count",
    "shared_memory_region",
    "shared_memory_offset",
    "shared_memory_byte_size",
)


@dataclass(frozen=True)
class Inference:
    """A decoded request.

    Args:
        id: ID chosen by the client, returned in the response; empty for none.
        inputs: Arrays by input name.
        outputs: Requested outputs by name, each with whether it is returned as binary data; None for all.
        binary: Whether outputs are returned as binary data by default.
        parameters: The request's.
    """

    id: str
    inputs: Arrays
    outputs: Mapping[str, bool] | None
    binary: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)


class ResponseBody(NamedTuple):
    """A response body.

    Args:
        body: JSON, or JSON followed by bytes.
        json_length: The JSON's length if binary data follows it, else None.
    """

    body: bytes
    json_length: int | None


def decode(
    body: bytes,
    header_length: bytes | str | None,
    readers: Mapping[str, InputReader],
    outputs: Sequence[str],
    rows: RowReader | None = None,
) -> Inference:
    """Decode a request body.

    Args:
        body: JSON, or JSON followed by bytes.
        header_length: The Inference-Header-Content-Length header's value, the JSON's length; None without it.
        readers: Accepted inputs by name.
        outputs: The model's output names.
        rows: Reads one input per column; None to accept the model's own inputs only.

    Raises:
        InvalidRequestError: The body is invalid; the message names the field, the expected and the found value.
    """
    length = len(body) if header_length is None else _read_length(header_length, len(body))
    payload = parse_json(body if length == len(body) else memoryview(body)[:length])
    if not isinstance(payload, dict):
        raise InvalidRequestError(f"body: must be a JSON object with 'inputs', got {name_type(payload)}")
    tensors = payload.get("inputs")
    if not isinstance(tensors, list) or not tensors:
        found = "an empty list" if tensors == [] else _describe_value(payload, "inputs")
        raise InvalidRequestError(f"inputs: must be a list of inputs, got {found}")
    content = memoryview(body)
    position = length
    inputs: Arrays = {}
    names = _read_names(tensors)
    if rows is not None and not rows.accepts(names):
        rows = None
    for name, tensor in zip(names, tensors, strict=True):
        reader = get_reader(name, tensor.get("datatype"), readers, rows)
        size = _read_size(tensor, name)
        if size is None:
            if "data" not in tensor:
                raise InvalidRequestError(f"input {name!r}: data is missing, and parameters.binary_data_size too")
            if reader is not None:
                inputs[name] = reader.read_flat(tensor["data"], tensor.get("shape"))
            continue
        if header_length is None:
            raise InvalidRequestError(
                f"input {name!r}: has binary_data_size, but the header Inference-Header-Content-Length is missing"
            )
        if "data" in tensor:
            raise InvalidRequestError(f"input {name!r}: has both data and binary_data_size")
        if size > len(body) - position:
            raise InvalidRequestError(
                f"input {name!r}: binary_data_size must be at most {len(body) - position}, the rest of the body, "
                f"got {size}"
            )
        if reader is not None:
            inputs[name] = reader.read_raw(content[position : position + size], tensor.get("shape"))
        position += size
    if position != len(body):
        raise InvalidRequestError(f"body: {len(body) - position} bytes after the binary data of all inputs")
    if rows is not None:
        inputs = rows.pack(inputs, names)
    elif len(inputs) != len(readers):
        check_names(inputs, readers)
    request_id = payload.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise InvalidRequestError(f"id: must be a string, got {name_type(request_id)}")
    if request_id and not request_id.isascii():
        _check_unicode("id", request_id)
    parameters = read_parameters(payload, "parameters")
    refuse_extensions(parameters, "parameters")
    binary = _read_flag(parameters, "binary_data_output", False, "parameters")
    wanted = _read_outputs(payload.get("outputs"), outputs, binary)
    return Inference(request_id or "", inputs, wanted, binary, parameters)


def encode(
    outputs: Mapping[str, NDArray[Any]], request: Inference, model_name: str, model_version: str, unknown: str = ""
) -> ResponseBody:
    """Encode the requested outputs; NaN becomes null in JSON.

    Args:
        outputs: Arrays by output name.
        request: The decoded request.
        model_name: Model name in the URL.
        model_version: The model version that computed the outputs.
        unknown: Unknown categories as text, for the response's parameters; empty for none.
    """
    described: list[dict[str, Any]] = []
    raw: list[bytes] = []
    names = outputs if request.outputs is None else request.outputs
    for name in names:
        array = outputs[name]
        entry: dict[str, Any] = {
            "name": name,
            "shape": array.shape,
            "datatype": name_array(array),
        }
        if request.binary if request.outputs is None else request.outputs[name]:
            content = to_bytes(array)
            entry["parameters"] = {"binary_data_size": len(content)}
            raw.append(content)
        else:
            entry["data"] = list_texts(array.ravel()) if array.dtype.kind in "OSU" else array.ravel()
        described.append(entry)
    body = orjson.dumps(
        {
            "model_name": model_name,
            "model_version": model_version,
            "id": request.id,
            **({"parameters": {UNKNOWN_PARAMETER: unknown}} if unknown else {}),
            "outputs": described,
        },
        default=to_json,
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
    if not raw:
        return ResponseBody(body, None)
    return ResponseBody(b"".join([body, *raw]), len(body))


def to_bytes(array: NDArray[Any]) -> bytes:
    """Encode an array as V2 binary data: little-endian, row-major."""
    if array.dtype.kind in "OSU":
        return encode_texts(array)
    content: bytes = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return content


def refuse_extensions(parameters: Container[str], where: str) -> None:
    """Refuse parameters from unsupported protocol extensions, which change a request's meaning.

    Args:
        parameters: Parameters on a request, an input or an output.
        where: Field name in messages.

    Raises:
        InvalidRequestError: There is such a parameter; the message names it.
    """
    for name in _REFUSED_PARAMETERS:
        if name in parameters:
            raise InvalidRequestError(f"{where}.{name}: this protocol extension is not supported")


def get_reader(
    name: str, datatype: Any, readers: Mapping[str, InputReader], rows: RowReader | None
) -> InputReader | ColumnReader | None:
    """Return the reader for an input or a column; None for a column that is ignored.

    Args:
        name: The request's name for it.
        datatype: The request's datatype.
        readers: The model's inputs.
        rows: Reads columns; None when the request has the model's inputs.

    Raises:
        InvalidRequestError: The input is unknown, or the datatype is wrong.
    """
    if rows is not None:
        return rows.get_reader(name, datatype)
    reader = readers.get(name)
    if reader is None:
        raise InvalidRequestError(f"input {shorten(name)}: unknown, expected {join(readers)}")
    reader.check_datatype(datatype)
    return reader


def _read_names(tensors: Sequence[Any]) -> list[str]:
    names: dict[str, None] = {}
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, dict):
            raise InvalidRequestError(f"inputs[{index}]: must be an object, got {name_type(tensor)}")
        name = tensor.get("name")
        if not isinstance(name, str):
            raise InvalidRequestError(f"inputs[{index}].name: must be a string, got {_describe_value(tensor, 'name')}")
        if name in names:
            raise InvalidRequestError(f"input {shorten(name)}: given twice")
        names[name] = None
    return list(names)


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{field}: must be text, got half of a surrogate pair: {shorten(text)}") from None


def _read_length(value: bytes | str, limit: int) -> int:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    # int() accepts signs, blanks, underscores and non-ASCII digits.
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) > limit:
        raise InvalidRequestError(
            f"header Inference-Header-Content-Length: must be 0 to {limit}, the length of the body, got {shorten(text)}"
        )
    return int(text)


def _read_size(tensor: Mapping[str, Any], name: str) -> int | None:
    parameters = tensor.get("parameters")
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise InvalidRequestError(f"input {name!r}: parameters must be an object, got {name_type(parameters)}")
    refuse_extensions(parameters, f"input {name!r}: parameters")
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise InvalidRequestError(f"input {name!r}: binary_data_size must be a number of bytes, got {shorten(size)}")
    return size


def _read_flag(parameters: Mapping[str, Any], name: str, default: bool, where: str) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{where}.{name}: must be true or false, got {shorten(value)}")
    return value


def _read_outputs(value: Any, names: Sequence[str], binary: bool) -> Mapping[str, bool] | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise InvalidRequestError(f"outputs: must be a list, got {name_type(value)}")
    wanted: dict[str, bool] = {}
    for index, output in enumerate(value):
        if not isinstance(output, dict):
            raise InvalidRequestError(f"outputs[{index}]: must be an object, got {name_type(output)}")
        name = output.get("name")
        if not isinstance(name, str) or name not in names:
            raise InvalidRequestError(f"output {shorten(name)}: unknown, expected {join(names)}")
        if name in wanted:
            raise InvalidRequestError(f"output {name!r}: requested twice")
        where = f"outputs[{index}].parameters"
        parameters = read_parameters(output, where)
        refuse_extensions(parameters, where)
        wanted[name] = _read_flag(parameters, "binary_data", binary, where)
    return wanted


def _describe_value(holder: Mapping[str, Any], name: str) -> str:
    return name_type(holder[name]) if name in holder else "none"
