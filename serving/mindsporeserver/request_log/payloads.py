"""Logged bodies as JSON: binary tensors and gRPC's messages become V2 JSON, language models' texts token counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from kfp_mindspore.formats.bundle import TensorSpec
from mindsporeserver.protocols.tensors import DATATYPES, InputReader, list_texts
from mindsporeserver.protocols.v1 import to_json

_DTYPES = {datatype: dtype for dtype, datatype in DATATYPES.items()}


class HTTPBody(NamedTuple):
    """A V1 or V2 body.

    Args:
        content: JSON, JSON followed by tensors, or a structured CloudEvent.
        json_length: The JSON's length if tensors follow it, else None.
        is_event: Whether it is a structured CloudEvent.
    """

    content: bytes
    json_length: int | None = None
    is_event: bool = False


class Message(NamedTuple):
    """A gRPC message, whose tensors are inputs or outputs."""

    message: Any


# A value is a language model's body.
Payload = HTTPBody | Message | Mapping[str, Any]


def read_value(payload: Payload) -> Any:
    """Return a body as JSON types and arrays, which `dump` writes."""
    if isinstance(payload, Message):
        return _read_message(payload.message)
    if not isinstance(payload, HTTPBody):
        return payload
    if payload.is_event:
        return orjson.loads(payload.content).get("data")
    if payload.json_length is None:
        return orjson.loads(payload.content)
    value = orjson.loads(memoryview(payload.content)[: payload.json_length])
    position = payload.json_length
    for kind in ("inputs", "outputs"):
        for tensor in value.get(kind) or ():
            size = tensor.get("parameters", {}).pop("binary_data_size", None)
            if size is not None:
                content = payload.content[position : position + size]
                tensor["data"] = _read_raw(content, tensor["datatype"], tensor["shape"])
                position += size
            if not tensor.get("parameters", True):
                del tensor["parameters"]
    return value


def dump(value: Any) -> bytes:
    """Return a value as one line of JSON."""
    return orjson.dumps(value, default=to_json, option=orjson.OPT_SERIALIZE_NUMPY)


def dump_payload(payload: Payload) -> bytes:
    """Return a body that is logged unchanged as one line of JSON."""
    if isinstance(payload, HTTPBody) and payload.json_length is None and not payload.is_event:
        # Line breaks in valid JSON are white space: strings have them escaped.
        return payload.content.replace(b"\n", b" ").replace(b"\r", b" ")
    return dump(read_value(payload))


def count_tokens(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a language model's request or response without texts: numbers, finish reasons and token counts."""
    kept = {key: value for key, value in body.items() if isinstance(value, (bool, int, float)) or key == "model"}
    if choices := body.get("choices"):
        kept["choices"] = [{key: choice.get(key) for key in ("index", "finish_reason")} for choice in choices]
    return {**kept, **({"usage": body["usage"]} if "usage" in body else {})}


def _read_message(message: Any) -> dict[str, Any]:
    """Return a ModelInferRequest or ModelInferResponse as V2 JSON."""
    fields = {field.name for field in message.DESCRIPTOR.fields}
    kind = "inputs" if "inputs" in fields else "outputs"
    raw: Sequence[bytes] = message.raw_input_contents if kind == "inputs" else message.raw_output_contents
    tensors = []
    for index, tensor in enumerate(getattr(message, kind)):
        entry = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
        if raw:
            entry["data"] = _read_raw(raw[index], tensor.datatype, entry["shape"])
        else:
            values = next((list(values) for _, values in tensor.contents.ListFields()), [])
            entry["data"] = _to_texts(values) if tensor.datatype == "BYTES" else values
        tensors.append(entry)
    return {"model_name": message.model_name, "id": message.id, kind: tensors}


def _read_raw(content: bytes, datatype: str, shape: Sequence[int]) -> Any:
    """Return binary data as a flat list or array."""
    if datatype != "BYTES":
        return np.frombuffer(content, np.dtype(_DTYPES[datatype]).newbyteorder("<"))
    spec = TensorSpec("data", _DTYPES[datatype], tuple(shape))
    return list_texts(InputReader(spec, finite=False).read_raw(content, list(shape)).ravel())


def _to_texts(values: Sequence[bytes]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return list_texts(array)
