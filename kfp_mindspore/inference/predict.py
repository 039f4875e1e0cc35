"""A served model's predictions as NumPy arrays, by the protocol V2."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.rows import RowLayout, parse_layout
from kfp_mindspore.formats.tensors import BYTES, TensorSpec, is_ragged
from kfp_mindspore.inference import rest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pandas import DataFrame

    Arrays = dict[str, NDArray[Any]]

ROWS = 64

_BYTES = "BYTES"
# The V2 protocol's data types.
_DATATYPES = {
    "object": _BYTES,
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}


def predict(
    url: str,
    name: str,
    inputs: NDArray[Any] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | DataFrame,
    *,
    target: str = "",
    rows: int = ROWS,
    timeout: float = 60.0,
) -> Arrays:
    """Return a service's outputs for any sample count.

    Args:
        url: The service's HTTP address, which describes the model.
        name: Model name in the service's URLs.
        inputs: Samples by input name, or the samples for a model with one input: arrays with shape (N, …), converted to
            the model's data types. For a table's model also a DataFrame, a list of dicts, or arrays by column name.
        target: Address to send the requests to, such as a canary's; default `url`.
        rows: Samples per request.
        timeout: Timeout for each request in seconds.

    Returns:
        Arrays with shape (N, …) by output name. Texts are `str`; values that are not UTF-8 are bytes.

    Raises:
        UserError: An input is missing, unknown, empty, has another length or cannot be converted.
        RequestError: A request failed, or the model does not accept the samples.
    """
    url = url.rstrip("/")
    model = rest.request_json("GET", f"{url}/v2/models/{name}", timeout=timeout)
    specs, outputs = (_read_specs(model.get(kind, ())) for kind in ("inputs", "outputs"))
    if not specs or not outputs:
        raise rest.ServiceRequestError(f"{url}: model {name} describes no inputs or outputs")
    given: Any = _to_columns(inputs) if hasattr(inputs, "columns") and not isinstance(inputs, Mapping) else inputs
    layout = parse_layout(model.get("rows"))
    if isinstance(given, list) and not given:
        raise UserError("inputs: must have at least one row")
    arrays = None if layout is None else _pack_rows(given, layout, [spec.name for spec in specs])
    if arrays is None:
        is_rows = isinstance(given, list) and isinstance(given[0], Mapping)
        arrays = _convert_inputs(_transpose(given) if is_rows else given, specs, name)
    address = target.rstrip("/") or url
    answers = predict_parts(lambda part: predict_v2(address, name, part, outputs, timeout, layout), arrays, rows)
    for spec in outputs:
        if spec.dtype == BYTES:
            texts = answers[spec.name]
            texts.ravel()[:] = [_decode(value) for value in texts.flat]
    return answers


def predict_parts(
    send: Callable[[Mapping[str, NDArray[Any]]], Arrays], inputs: Mapping[str, NDArray[Any]], rows: int | None
) -> Arrays:
    """Send samples in requests with at most `rows` samples, None for one request, and return all outputs."""
    import numpy as np

    if rows is None:
        return send(inputs)
    count = len(next(iter(inputs.values())))
    parts = [
        send({key: array[start : start + rows] for key, array in inputs.items()}) for start in range(0, count, rows)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def predict_v2(
    url: str,
    name: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: tuple[TensorSpec, ...],
    timeout: float,
    layout: RowLayout | None = None,
) -> Arrays:
    """Return a service's outputs by name.

    With a layout, lists with unequal lengths are sent by the table's columns, each list as JSON text: a tensor's rows
    have one length.

    Raises:
        RequestError: The request failed, or the response has not these outputs.
    """
    if layout is not None and any(map(is_ragged, inputs.values())):
        inputs = {key: _encode_lists(array) for key, array in unpack_inputs(inputs, layout).items()}
    tensors = [
        {
            "name": key,
            "shape": list(array.shape),
            "datatype": _get_datatype(array),
            "data": to_json(array.ravel()),
        }
        for key, array in inputs.items()
    ]
    answered = rest.infer_v2(url, name, tensors, timeout=timeout)
    missing = [spec.name for spec in outputs if spec.name not in answered]
    if missing:
        raise rest.ServiceRequestError(f"outputs: {', '.join(missing)} missing, got {', '.join(answered) or 'none'}")
    arrays = {}
    for spec in outputs:
        tensor = answered[spec.name]
        values = to_array(tensor.get("data"), spec)
        shape: Any = tensor.get("shape")
        try:
            arrays[spec.name] = values.reshape(shape)
        except (TypeError, ValueError):
            raise rest.ServiceRequestError(
                f"output {spec.name}: {values.size} values do not fill shape {shape}"
            ) from None
    return arrays


def to_json(array: NDArray[Any]) -> list[Any]:
    """Return an array as JSON; bytes as base 64."""
    if array.dtype != object:
        values: list[Any] = array.tolist()
        return values
    return [
        {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else to_json(value) for value in array
    ]


def to_array(values: Any, spec: TensorSpec) -> NDArray[Any]:
    """Return JSON values as an array.

    Raises:
        RequestError: They are not values with this data type.
    """
    import numpy as np

    try:
        if spec.dtype == BYTES:
            texts = np.array(values, object)
            texts.ravel()[:] = [_to_bytes(value) for value in texts.ravel()]
            return texts
        return np.asarray(values, dtype=np.dtype(spec.dtype))
    except (TypeError, ValueError) as error:
        raise rest.ServiceRequestError(f"output {spec.name}: not an array of {spec.dtype} ({error})") from None


def unpack_inputs(inputs: Mapping[str, NDArray[Any]], layout: RowLayout) -> Arrays:
    """Return the table's columns in a model's inputs."""
    from kfp_mindspore.transform.rows import RowPacker

    return RowPacker(layout).unpack(inputs)


def _encode_lists(array: NDArray[Any]) -> NDArray[Any]:
    """Return lists as JSON texts, another array as it is."""
    import numpy as np

    if not is_ragged(array):
        return array
    texts = np.empty(len(array), object)
    texts[:] = [json.dumps(row.tolist()).encode() for row in array]
    return texts


def _decode(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        return base64.b64decode(value["b64"])
    raise TypeError(f"{value!r} is neither a text nor base 64")


def _get_datatype(array: NDArray[Any]) -> str:
    name = _DATATYPES.get(array.dtype.name)
    if name is None:
        raise UserError(f"dtype {array.dtype.name} has no name in the V2 protocol")
    return name


def _read_specs(tensors: Any) -> tuple[TensorSpec, ...]:
    """Return the tensors in a model's V2 metadata."""
    names = {datatype: dtype for dtype, datatype in _DATATYPES.items()} | {_BYTES: BYTES}
    return tuple(TensorSpec(tensor["name"], names[tensor["datatype"]], tuple(tensor["shape"])) for tensor in tensors)


def _encode_texts(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of bytes objects; texts become UTF-8."""
    encoded = array.astype(object)
    for index, value in enumerate(encoded.flat):
        if not isinstance(value, (str, bytes)):
            raise UserError(f"inputs: {name}: must be texts or bytes, got {value!r:.80}")
        encoded.flat[index] = value.encode() if isinstance(value, str) else value
    return encoded


def read_layout(url: str, name: str, *, timeout: float) -> RowLayout | None:
    """Return the columns by which a service accepts rows; None when it accepts the model's inputs only.

    Raises:
        RequestError: The request failed.
    """
    return parse_layout(rest.request_json("GET", f"{url}/v2/models/{name}", timeout=timeout).get("rows"))


def _pack_rows(inputs: Any, layout: RowLayout, names: Sequence[str]) -> Arrays | None:
    """Return a model's inputs for rows or arrays by column names; None for inputs by their own names.

    Raises:
        UserError: The message names row and column.
    """
    from kfp_mindspore.transform.rows import RowPacker

    packer = RowPacker(layout)
    if isinstance(inputs, list) and isinstance(inputs[0], Mapping):
        return packer.pack_rows(inputs) if packer.accepts(inputs[0]) else None
    if isinstance(inputs, Mapping) and set(inputs) != set(names) and packer.accepts(inputs):
        return packer.pack_columns(inputs)
    return None


def _to_columns(frame: Any) -> Arrays:
    """Return a DataFrame's columns as arrays by name, with None for missing values that are not NaN."""
    columns = {}
    for name in frame.columns:
        array = frame[name].to_numpy()
        if array.dtype == object:
            array = array.copy()
            array[frame[name].isna().to_numpy()] = None
        columns[str(name)] = array
    return columns


def _transpose(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or row.keys() != rows[0].keys():
            found = ", ".join(row) if isinstance(row, Mapping) else type(row).__name__
            raise UserError(f"inputs: row {index}: must have {', '.join(rows[0])}, got {found}")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _convert_inputs(inputs: NDArray[Any] | Mapping[str, Any], specs: tuple[TensorSpec, ...], model: str) -> Arrays:
    """Return arrays with one length by input name, with the model's data types."""
    import numpy as np

    names = [spec.name for spec in specs]
    if not isinstance(inputs, Mapping):
        if len(names) != 1:
            raise UserError(f"inputs: model {model} needs arrays by name: {', '.join(names)}")
        inputs = {names[0]: inputs}
    if sorted(inputs) != sorted(names):
        raise UserError(f"inputs: model {model} has {', '.join(names)}, got {', '.join(inputs)}")
    arrays = {}
    for spec in specs:
        try:
            # NumPy's own type for bytes drops trailing zeros.
            array = np.asarray(inputs[spec.name], object if spec.dtype == BYTES else None)
        except ValueError as error:
            if spec.shape[1:2] != (-1,):
                raise UserError(f"inputs: {spec.name}: rows must have the same shape: {error}") from None
            array = np.empty(len(inputs[spec.name]), object)
            array[:] = [np.asarray(row) for row in inputs[spec.name]]
        if spec.dtype == BYTES:
            arrays[spec.name] = _encode_texts(array, spec.name)
            continue
        dtype = np.dtype(spec.dtype)
        if is_ragged(array) and spec.shape[1:2] == (-1,):
            array = array.copy()
            array[:] = [_cast(row, dtype, spec.name) for row in array]
            arrays[spec.name] = array
            continue
        arrays[spec.name] = _cast(array, dtype, spec.name)
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise UserError(f"inputs: must have the same number of samples, at least 1, got {sorted(lengths)}")
    return arrays


def _cast(array: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    import numpy as np

    if array.size and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise UserError(f"inputs: {name}: must be {dtype.name}, got {array.dtype}")
    return array.astype(dtype, copy=False)
