"""Clients of a model server for tests that send a lot: HTTP/1.1 on raw sockets, gRPC with bytes as messages.

No library of HTTP is between a test and the wire, so that what no library would send can be sent too.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import numpy as np
import orjson

Headers = Sequence[tuple[str, str]]
INFER = "ModelInfer"
_SERVICE = "/inference.GRPCInferenceService/"
_JSON = (("Content-Type", "application/json"),)


def _load_messages() -> ModuleType:
    # By its file: the package's __init__ costs four seconds and half a gigabyte in the client's process.
    locations = importlib.util.find_spec("kserve").submodule_search_locations  # type: ignore[union-attr]
    file = Path(locations[0]) / "protocol" / "grpc" / "grpc_predict_v2_pb2.py"  # type: ignore[index]
    spec = importlib.util.spec_from_file_location("grpc_predict_v2_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


messages: Any = _load_messages()


@dataclass(frozen=True)
class Answer:
    """A response.

    Args:
        status: HTTP status; 0 when the connection was closed without a response.
        body: The body's bytes, or the bytes of a gRPC message.
        headers: Names in lower case.
        code: gRPC's status name, such as OK; empty for HTTP.
        details: gRPC's message.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    code: str = ""
    details: str = ""

    def json(self) -> Any:
        return orjson.loads(self.body)


class Connection:
    """One HTTP/1.1 connection, kept alive and opened again when the server has closed it."""

    def __init__(self, port: int, host: str = "127.0.0.1", *, timeout: float = 30) -> None:
        self.host, self.port, self.timeout = host, port, timeout
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None or self._reader.at_eof() or self._writer.is_closing():
            await self.close()
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        return self._reader, self._writer

    async def close(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def request(self, method: str, target: str, body: bytes = b"", headers: Headers = _JSON) -> Answer:
        """Send a request and read its response; a connection that the server closed before is opened again."""
        lines = [f"{method} {target} HTTP/1.1".encode("utf-8", "surrogateescape"), b"Host: localhost"]
        lines += [f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in headers]
        if not any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers):
            lines.append(b"Content-Length: %d" % len(body))
        return await self.send(b"\r\n".join([*lines, b"", body]), is_head=method == "HEAD")

    async def post(self, target: str, value: Any, headers: Headers = _JSON) -> Answer:
        return await self.request("POST", target, json.dumps(value).encode(), headers)

    async def get(self, target: str) -> Answer:
        return await self.request("GET", target, b"", ())

    async def send(self, content: bytes, *, is_head: bool = False, last: bool = False) -> Answer:
        """Send bytes and read one response.

        Args:
            content: The whole request.
            is_head: The response has no body.
            last: Close the sending side.

        Raises:
            asyncio.TimeoutError: No response in time.
        """
        for attempt in (1, 2):
            fresh = self._reader is None or self._reader.at_eof()
            reader, writer = await self.open()
            try:
                writer.write(content)
                if last:
                    _finish(writer)
                answer = await asyncio.wait_for(self._read(reader, is_head), self.timeout)
            except (ConnectionError, asyncio.IncompleteReadError, _NotConnectedError):
                await self.close()
                if fresh or attempt == 2:
                    return Answer(0)
                continue
            except BaseException:
                await self.close()
                raise
            if last or answer.headers.get("connection", "").lower() == "close":
                await self.close()
            return answer
        raise AssertionError("not reached")

    async def _read(self, reader: asyncio.StreamReader, is_head: bool) -> Answer:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ", 2)[1])
            if status >= 200:
                break
        headers = {}
        for line in head[1:]:
            name, found, value = line.partition(":")
            if found:
                headers[name.strip().lower()] = value.strip()
        if is_head or status in (204, 304):
            return Answer(status, b"", headers)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return Answer(status, await self._read_chunks(reader), headers)
        if "content-length" in headers:
            return Answer(status, await reader.readexactly(int(headers["content-length"])), headers)
        return Answer(status, await reader.read(), {**headers, "connection": "close"})

    async def _read_chunks(self, reader: asyncio.StreamReader) -> bytes:
        content = b""
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            content += await reader.readexactly(size)
            await reader.readexactly(2)
            if not size:
                return content

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class GrpcConnection:
    """One gRPC channel that sends and receives bytes."""

    def __init__(self, port: int, host: str = "127.0.0.1", *, timeout: float = 30) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        # A subchannel of its own: several channels to one address would share one connection.
        options.append(("grpc.use_local_subchannel_pool", 1))
        self.timeout = timeout
        self._channel = grpc.aio.insecure_channel(f"{host}:{port}", options=options)
        self._methods: dict[str, Any] = {}

    async def call(
        self, method: str, message: bytes, *, timeout: float | None = None, metadata: Sequence[tuple[str, Any]] = ()
    ) -> Answer:
        """Send a message to a method of the inference service (or to a whole path)."""
        path = method if method.startswith("/") else _SERVICE + method
        if path not in self._methods:
            self._methods[path] = self._channel.unary_unary(path)
        try:
            body = await self._methods[path](
                message, timeout=timeout or self.timeout, metadata=tuple(metadata), wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            return Answer(0, code=error.code().name, details=error.details() or "")
        return Answer(0, body, code="OK")

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> GrpcConnection:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class _NotConnectedError(Exception):
    """The server has closed the connection already."""


def _finish(writer: asyncio.StreamWriter) -> None:
    try:
        writer.write_eof()
    except OSError as error:
        raise _NotConnectedError from error


Arrays = dict[str, "np.ndarray[Any, Any]"]
PROTOCOLS = ("v1", "v1-named", "v2", "v2-nested", "binary", "binary-out", "grpc", "grpc-raw")
DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float32": "FP32",
    "float64": "FP64",
}  # fmt: skip
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


def make_tensors(inputs: Arrays, *, nested: bool = False) -> list[dict[str, Any]]:
    """Return V2's JSON form of arrays."""
    return [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": DATATYPES[array.dtype.name],
            "data": array.tolist() if nested else array.ravel().tolist(),
        }
        for name, array in inputs.items()
    ]


def make_binary(inputs: Arrays, **fields: Any) -> tuple[bytes, list[tuple[str, str]]]:
    """Return a V2 body with binary data, and its headers."""
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": DATATYPES[array.dtype.name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    head = json.dumps({"inputs": tensors, **fields}).encode()
    body = head + b"".join(array.tobytes() for array in inputs.values())
    return body, [("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", str(len(head)))]


def make_message(model: str, inputs: Arrays, *, raw: bool, request_id: str = "") -> Any:
    """Return a ModelInferRequest with typed or raw contents."""
    message = messages.ModelInferRequest(model_name=model, id=request_id)
    for name, array in inputs.items():
        datatype = DATATYPES[array.dtype.name]
        tensor = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            message.raw_input_contents.append(array.tobytes())
        else:
            getattr(tensor.contents, _CONTENTS[datatype]).extend(array.ravel().tolist())
    return message


def read_v1(answer: Answer, names: Sequence[str]) -> Arrays:
    """Read the predictions of a V1 response as float64."""
    rows = answer.json()["predictions"]
    if len(names) == 1 and not (rows and isinstance(rows[0], dict)):
        return {names[0]: np.array(rows, np.float64)}
    return {name: np.array([row[name] for row in rows], np.float64) for name in names}


def read_v2(answer: Answer) -> Arrays:
    """Read the outputs of a V2 response, JSON or binary."""
    length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    head, offset, arrays = orjson.loads(answer.body[:length]), length, {}
    for output in head["outputs"]:
        dtype = _find_dtype(output["datatype"])
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            array = np.array(output["data"], np.float64 if dtype.kind == "f" else dtype)
        else:
            array = np.frombuffer(answer.body[offset : offset + size], dtype)
            offset += size
        arrays[output["name"]] = array.reshape(output["shape"])
    return arrays


def read_message(answer: Answer) -> Arrays:
    """Read the outputs of a gRPC response."""
    response = messages.ModelInferResponse.FromString(answer.body)
    arrays = {}
    for index, output in enumerate(response.outputs):
        dtype = _find_dtype(output.datatype)
        if response.raw_output_contents:
            array = np.frombuffer(response.raw_output_contents[index], dtype)
        else:
            array = np.array(getattr(output.contents, _CONTENTS[output.datatype]), dtype)
        arrays[output.name] = array.reshape(tuple(output.shape))
    return arrays


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to be sent, again and again.

    Args:
        protocol: One of PROTOCOLS.
        target: Path or method.
        body: The body or the message.
        headers: HTTP's.
    """

    protocol: str
    target: str
    body: bytes
    headers: Headers


class Client:
    """Sends requests to one model in every protocol.

    Args:
        port: The server's port for HTTP.
        grpc_port: Its port for gRPC; 0 when it has none.
        model: The model's name.
        outputs: Names of its outputs.
        timeout: Seconds to wait for a response.
    """

    def __init__(
        self, port: int, grpc_port: int, model: str, outputs: Sequence[str] = ("output",), timeout: float = 30
    ) -> None:
        self.model, self.outputs = model, outputs
        self.http = Connection(port, timeout=timeout)
        self.grpc = GrpcConnection(grpc_port, timeout=timeout) if grpc_port else None

    def prepare(self, protocol: str, inputs: Arrays) -> Prepared:
        """Write a request in one of PROTOCOLS."""
        if protocol.startswith("grpc"):
            message = make_message(self.model, inputs, raw=protocol == "grpc-raw")
            return Prepared(protocol, INFER, message.SerializeToString(), ())
        if protocol.startswith("v1"):
            columns = {name: array.tolist() for name, array in inputs.items()}
            if protocol == "v1-named" or len(columns) > 1:
                rows: Any = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            else:
                (rows,) = columns.values()
            return Prepared(protocol, f"/v1/models/{self.model}:predict", orjson.dumps({"instances": rows}), _JSON)
        target = f"/v2/models/{self.model}/infer"
        if protocol.startswith("v2"):
            tensors = make_tensors(inputs, nested=protocol == "v2-nested")
            return Prepared(protocol, target, orjson.dumps({"inputs": tensors}), _JSON)
        fields = {"parameters": {"binary_data_output": True}} if protocol == "binary-out" else {}
        body, headers = make_binary(inputs, **fields)
        return Prepared(protocol, target, body, headers)

    async def send(self, request: Prepared) -> tuple[Answer, Arrays | None]:
        """Send a request; return the response, and its outputs if it succeeded."""
        if request.protocol.startswith("grpc"):
            assert self.grpc is not None
            answer = await self.grpc.call(request.target, request.body)
            return answer, read_message(answer) if answer.code == "OK" else None
        answer = await self.http.request("POST", request.target, request.body, request.headers)
        if answer.status != 200:
            return answer, None
        return answer, read_v1(answer, self.outputs) if request.protocol.startswith("v1") else read_v2(answer)

    async def ask(self, protocol: str, inputs: Arrays) -> tuple[Answer, Arrays | None]:
        """Write a request in one of PROTOCOLS and send it."""
        return await self.send(self.prepare(protocol, inputs))

    async def close(self) -> None:
        await self.http.close()
        if self.grpc is not None:
            await self.grpc.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _find_dtype(datatype: str) -> np.dtype[Any]:
    return np.dtype(next(name for name, found in DATATYPES.items() if found == datatype))
