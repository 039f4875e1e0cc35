"""Permitted responses of a server: no failure of its own, and success only for unambiguous requests."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import Any

import numpy as np

from kfp_mindspore.formats.bundle import TensorSpec
from tests.fuzz.cases import Case
from tests.fuzz.row_oracle import check_rows
from tests.fuzz.targets import Target, read_json
from tests.support.serving.serving_client import (
    _CONTENTS,
    DATATYPES,
    Answer,
    Arrays,
    messages,
    read_message,
    read_v1,
    read_v2,
)

# 501: not offered; 503: overload.
_ALLOWED_FAILURES = (501, 503)
_BAD_CODES = ("UNKNOWN", "INTERNAL", "DATA_LOSS", "CANCELLED", "ABORTED", "DEADLINE_EXCEEDED")


class UnreadableError(Exception):
    """A request that a careful server refuses."""


def judge(case: Case, answer: Answer, target: Target | None) -> str:
    """Return the fault of a response; empty for none."""
    if case.is_grpc:
        if answer.code in _BAD_CODES:
            return f"gRPC {answer.code}: {answer.details[:200]}"
        if answer.code not in ("OK", "UNAVAILABLE") and not answer.details:
            return f"gRPC {answer.code} without a message"
    elif not case.path:
        # The server may close the connection on bytes that are not HTTP.
        return f"status {answer.status}" if answer.status >= 500 and answer.status not in _ALLOWED_FAILURES else ""
    elif answer.status == 0:
        return "the connection was closed without an answer"
    elif answer.status >= 500 and answer.status not in _ALLOWED_FAILURES:
        return f"status {answer.status}: {answer.body[:200]!r}"
    elif 400 <= answer.status < 500 and case.method != "HEAD":
        return _check_error(answer)
    good = answer.code == "OK" if case.is_grpc else answer.status == 200
    if good and case.kind == "rows":
        return check_rows(case, answer)
    if good and target is not None and _is_inference(case):
        return check_answer(case, answer, target)
    return ""


def check_answer(case: Case, answer: Answer, target: Target) -> str:
    """Compare a response with the outputs of the independently parsed request."""
    try:
        inputs, outputs, request_id = _READERS[case.kind](case, target)
        arrays = _fit(inputs, target)
    except UnreadableError as error:
        return f"accepted, although {error}"
    except RecursionError:
        # Python's parser has a lower limit of nesting. Such values are in fields that are not read.
        return ""
    expected = target.compute(arrays)
    try:
        if case.kind == "v1":
            found = read_v1(answer, list(expected))
        else:
            found = read_message(answer) if case.is_grpc else read_v2(answer)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return f"the answer cannot be read ({error!r}): {answer.body[:200]!r}"
    if outputs:
        expected = {name: array for name, array in expected.items() if name in outputs}
    if request_id:
        echoed = _read_id(case, answer)
        if echoed != request_id:
            return f"id {request_id[:50]!r} came back as {echoed!r:.60}"
    return compare(found, expected, arrays)


def compare(found: Arrays, expected: Arrays, inputs: Arrays) -> str:
    """Return a difference of outputs above 1e-5 of the inputs' size; empty for none."""
    if set(found) != set(expected):
        return f"outputs {sorted(found)} instead of {sorted(expected)}"
    scale = max(1.0, *(float(np.abs(array.astype(np.float64)).max(initial=0)) for array in inputs.values()))
    for name, array in expected.items():
        if found[name].shape != array.shape:
            return f"output {name!r}: shape {found[name].shape} instead of {array.shape}"
        with np.errstate(all="ignore"):
            # Where float32 overflows there is no right number.
            finite = np.isfinite(array.astype(np.float32)) & (np.abs(array) < 1e37)
            difference = np.abs(found[name].astype(np.float64) - array)[finite].max(initial=0)
        if not difference <= 1e-5 * scale:
            return f"output {name!r}: differs by {difference:.3g}"
    return ""


def _is_inference(case: Case) -> bool:
    if case.is_grpc:
        return case.path == "ModelInfer"
    # The response to a cloud event is one, by kserve's code.
    events = any(name.lower().startswith("ce-") or "cloudevents" in value for name, value in case.headers)
    return case.kind in _READERS and not events and b'"specversion"' not in case.body


def _check_error(answer: Answer) -> str:
    if answer.status == 400 and answer.body == b"Invalid HTTP request received.":
        # The HTTP parser refuses it before the application gets a request.
        return ""
    try:
        text = read_json(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status} without an `error` in JSON: {answer.body[:150]!r}"
    return "" if isinstance(text, str) and text.strip() else f"status {answer.status} with an empty `error`"


def _fit(inputs: dict[str, Any], target: Target) -> Arrays:
    arrays = {}
    specs = {spec.name: spec for spec in target.signature.inputs}
    if set(inputs) != set(specs):
        raise UnreadableError(f"the inputs are {sorted(map(str, inputs))!r:.100}")
    for name, array in inputs.items():
        spec = specs[name]
        wanted = spec.shape[1:]
        if array.ndim != len(spec.shape) or array.shape[1:] != wanted or not len(array):
            raise UnreadableError(f"input {name!r} has the shape {array.shape}")
        if spec.dtype.startswith("float") and not np.isfinite(array.astype(spec.dtype)).all():
            raise UnreadableError(f"input {name!r} holds what is not finite in {spec.dtype}")
        arrays[name] = array.astype(spec.dtype)
    if len({len(array) for array in arrays.values()}) != 1:
        raise UnreadableError("the inputs have different numbers of rows")
    return arrays


def _make_array(values: Any, spec: TensorSpec) -> np.ndarray[Any, Any]:
    """Make an array of nested lists of JSON numbers; 1 and 1.0 are both numbers, but only 1 is an integer."""
    kinds = (int,) if "int" in spec.dtype else (int, float)
    stack = [values]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif type(value) not in kinds:
            raise UnreadableError(f"input {spec.name!r} holds {value!r:.40}")
    try:
        if "int" not in spec.dtype:
            return np.array(values, np.float64)
        array = np.array(values, object)
        if any(isinstance(value, list) for value in array.ravel()):
            raise ValueError("ragged")
        limits = np.iinfo(spec.dtype)
        if any(not limits.min <= value <= limits.max for value in array.ravel()):
            raise UnreadableError(f"input {spec.name!r} holds more than {spec.dtype}")
        return array.astype(spec.dtype)
    except (ValueError, OverflowError) as error:
        raise UnreadableError(f"input {spec.name!r} is no array: {error}") from None


def _inflate(case: Case) -> bytes:
    codings = [value.strip().lower() for name, value in case.headers if name.lower() == "content-encoding"]
    try:
        match codings:
            case [] | ["identity"]:
                return case.body
            case ["gzip" | "x-gzip"]:
                return gzip.decompress(case.body)
            case ["deflate"]:
                return zlib.decompress(case.body)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableError(f"it is not {codings[0]}: {error}") from None
    raise UnreadableError(f"its content codings are {codings!r:.60}")


def _load(content: bytes) -> Any:
    try:
        return read_json(content)
    except ValueError as error:
        raise UnreadableError(f"it is no JSON: {error}") from None


def _read_v1_request(case: Case, target: Target) -> tuple[dict[str, Any], set[str], str]:
    value = _load(_inflate(case))
    # kserve's own servers accept `inputs` for `instances`.
    rows, specs = (
        value.get("instances", value.get("inputs")) if isinstance(value, dict) else None,
        target.signature.inputs,
    )
    if not isinstance(rows, list):
        raise UnreadableError("there is no list of instances")
    if all(isinstance(row, dict) for row in rows):
        names = {spec.name for spec in specs}
        if any(set(row) != names for row in rows):
            raise UnreadableError("a row has other inputs")
        return {spec.name: _make_array([row[spec.name] for row in rows], spec) for spec in specs}, set(), ""
    if len(specs) > 1:
        raise UnreadableError("a row names no inputs")
    return {specs[0].name: _make_array(rows, specs[0])}, set(), ""


def _read_v2_request(case: Case, target: Target) -> tuple[dict[str, Any], set[str], str]:
    content, lengths = _inflate(case), [text for name, text in case.headers if name.lower() == _LENGTH]
    tail = b""
    if lengths:
        if len(set(lengths)) > 1 or not re.fullmatch(r"[ \t]*[0-9]{1,18}[ \t]*", lengths[0]):
            raise UnreadableError(f"its header's length is {lengths!r:.60}")
        length = int(lengths[0])
        if length > len(content):
            raise UnreadableError("its header is longer than the body")
        content, tail = content[:length], content[length:]
    value = _load(content)
    if not isinstance(value, dict) or not isinstance(value.get("inputs"), list):
        raise UnreadableError("there is no list of inputs")
    specs, inputs = {spec.name: spec for spec in target.signature.inputs}, {}
    for tensor in value["inputs"]:
        if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str) or tensor["name"] not in specs:
            raise UnreadableError(f"an input is {tensor!r:.60}")
        spec = specs[tensor["name"]]
        if spec.name in inputs:
            raise UnreadableError(f"input {spec.name!r} is there twice")
        array, tail = _read_tensor(tensor, spec, tail)
        inputs[spec.name] = array
    if tail:
        raise UnreadableError(f"{len(tail)} bytes follow the data")
    wanted = value.get("outputs")
    names = {output["name"] for output in wanted} if isinstance(wanted, list) else set()
    request_id = value.get("id")
    return inputs, names, request_id if isinstance(request_id, str) else ""


def _read_tensor(tensor: dict[str, Any], spec: TensorSpec, tail: bytes) -> tuple[np.ndarray[Any, Any], bytes]:
    shape, dtype = tensor.get("shape"), np.dtype(spec.dtype)
    if tensor.get("datatype") != DATATYPES[spec.dtype]:
        raise UnreadableError(f"input {spec.name!r} has the datatype {tensor.get('datatype')!r:.40}")
    if not isinstance(shape, list) or any(type(size) is not int or size < 1 for size in shape):
        raise UnreadableError(f"input {spec.name!r} has the shape {shape!r:.60}")
    parameters = tensor.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None and tensor.get("data") is not None:
        raise UnreadableError(f"input {spec.name!r} has both numbers and bytes")
    try:
        if size is None:
            return _make_array(tensor.get("data"), spec).reshape(shape), tail
        if type(size) is not int or not 0 <= size <= len(tail):
            raise UnreadableError(f"input {spec.name!r} has {size!r:.40} bytes of {len(tail)}")
        return np.frombuffer(tail[:size], dtype).reshape(shape), tail[size:]
    except (ValueError, OverflowError) as error:
        raise UnreadableError(f"input {spec.name!r} does not have its shape: {error}") from None


def _read_grpc_request(case: Case, target: Target) -> tuple[dict[str, Any], set[str], str]:
    message = messages.ModelInferRequest.FromString(case.body)
    specs, inputs = {spec.name: spec for spec in target.signature.inputs}, {}
    raw = list(message.raw_input_contents)
    if raw and len(raw) != len(message.inputs):
        raise UnreadableError(f"{len(raw)} raw contents are there for {len(message.inputs)} inputs")
    for index, tensor in enumerate(message.inputs):
        spec = specs.get(tensor.name)
        if spec is None or tensor.name in inputs or tensor.datatype != DATATYPES[spec.dtype]:
            raise UnreadableError(f"an input is {tensor.name!r:.40}, {tensor.datatype!r:.40}")
        filled = [field.name for field, _ in tensor.contents.ListFields()]
        if filled != ([] if raw else [_CONTENTS[tensor.datatype]]):
            raise UnreadableError(f"input {spec.name!r} has {filled} beside {len(raw)} raw contents")
        try:
            if raw:
                array = np.frombuffer(raw[index], spec.dtype)
            else:
                array = np.array(getattr(tensor.contents, filled[0]), spec.dtype)
            inputs[spec.name] = array.reshape(tuple(tensor.shape))
        except (ValueError, OverflowError) as error:
            raise UnreadableError(f"input {spec.name!r} does not have its shape: {error}") from None
        if any(size < 1 for size in tensor.shape):
            raise UnreadableError(f"input {spec.name!r} has the shape {list(tensor.shape)}")
    return inputs, {output.name for output in message.outputs}, message.id


def _read_id(case: Case, answer: Answer) -> Any:
    if case.is_grpc:
        return messages.ModelInferResponse.FromString(answer.body).id
    length = int(answer.headers.get(_LENGTH, len(answer.body)))
    return json.loads(answer.body[:length]).get("id")


_LENGTH = "inference-header-content-length"
_READERS = {
    "v1": _read_v1_request,
    "v2": _read_v2_request,
    "binary": _read_v2_request,
    "grpc": _read_grpc_request,
}
