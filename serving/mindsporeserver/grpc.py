"""The Open Inference Protocol (V2) over gRPC, with kserve's messages, Triton's repository and the health service."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from kfp_mindspore.compat.protobuf import load_generated
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from mindsporeserver import triton
from mindsporeserver.access import Access, Needs
from mindsporeserver.errors import (
    ClientGoneError,
    InternalError,
    InvalidRequestError,
    RequestError,
    ShuttingDownError,
)
from mindsporeserver.protocols.rows import RowReader, describe_unknown
from mindsporeserver.protocols.tensors import InputReader, check_names, join, name_array, shorten
from mindsporeserver.protocols.v2 import UNKNOWN_PARAMETER, get_reader, refuse_extensions, to_bytes
from mindsporeserver.request_log.payloads import Message
from mindsporeserver.state import ServerState, read_deadline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mindsporeserver.models.served_model import TensorModel

    Arrays = dict[str, NDArray[Any]]

logger = logging.getLogger(__name__)

pb: Any = load_generated("kserve.protocol.grpc.grpc_predict_v2_pb2", "serving")
_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
# The protocol has no typed contents for FP16.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# As the HTTP routes: health needs no token.
_NEEDS = {
    **dict.fromkeys(("ServerLive", "ServerReady", "ModelReady"), Needs.NOTHING),
    **dict.fromkeys(
        ("RepositoryModelLoad", "RepositoryModelUnload", "ModelStatistics"), Needs.TOKEN | Needs.MANAGEMENT
    ),
}
_MESSAGES = {
    **{
        method.name: (getattr(pb, method.input_type.name), getattr(pb, method.output_type.name))
        for method in _SERVICE.methods
    },
    **triton.METHODS,
    "RepositoryModelLoad": (triton.RepositoryModelRequest, pb.RepositoryModelLoadResponse),
    "RepositoryModelUnload": (triton.RepositoryModelRequest, pb.RepositoryModelUnloadResponse),
}
_Method = Callable[[Any, Any], Awaitable[Any]]
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class InferenceService:
    """`inference.GRPCInferenceService` methods.

    Args:
        state: What is served.
        timeout_seconds: How long a request may wait for the graph; 0 for no limit.
        access: The port's access rules; default none.
    """

    def __init__(self, state: ServerState, timeout_seconds: float = 0.0, access: Access | None = None) -> None:
        self._state = state
        self._access = access or Access()
        self._timeout_seconds = timeout_seconds
        self._calls: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._is_over = False
        self._ended = asyncio.Event()

    def close(self) -> None:
        """Hold further calls until `end`; calls in flight go on.

        A client that waits for a held call sends no other one to a server that has stopped.
        """
        self._is_closed = True

    def end(self) -> None:
        """End held calls with UNAVAILABLE."""
        self._ended.set()

    async def drain(self, seconds: float) -> None:
        """Wait for the calls in flight, and end those that take longer with UNAVAILABLE.

        Args:
            seconds: How long to wait.
        """
        if self._calls:
            await asyncio.wait(self._calls, timeout=seconds)
        self._is_over = True
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=1.0)

    def build_handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for all methods; bytes that are not a message are answered with INVALID_ARGUMENT."""
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._wrap(getattr(self, name), request, _NEEDS.get(name, Needs.TOKEN)),
                response_serializer=response.SerializeToString,
            )
            for name, (request, response) in _MESSAGES.items()
        }
        return grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)

    def _wrap(self, function: _Method, kind: Any, needs: Needs) -> _Method:
        parse = kind.FromString

        async def handle(content: bytes, context: Any) -> Any:
            call = asyncio.current_task()
            assert call is not None
            if self._is_closed:
                await self._ended.wait()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
            self._calls.add(call)
            try:
                self._access.check(needs, _get_authorization(context))
                return await function(parse(content), context)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a valid {kind.DESCRIPTOR.name} message")
            except RequestError as error:
                await context.abort(grpc.StatusCode[error.code], error.message)
            except KfpMindSporeError as error:
                missing = isinstance(error, NotFoundError)
                code = grpc.StatusCode.NOT_FOUND if missing else grpc.StatusCode.FAILED_PRECONDITION
                await context.abort(code, error.message)
            except Exception as error:
                logger.exception("%s failed", function.__name__)
                await context.abort(grpc.StatusCode.INTERNAL, InternalError(error).message)
            finally:
                self._calls.discard(call)

        return handle

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Compute a request's outputs; they have the inputs' form, FP16 is always raw."""
        telemetry, started = self._state.telemetry, time.monotonic()
        try:
            model = self._state.repository.get_graph_model(request.model_name, request.model_version)
        except RequestError as error:
            telemetry.start("grpc", request.model_name).fail(error)
            raise
        record = telemetry.start("grpc", model)
        record.request_id = request.id
        try:
            with model.admit():
                inputs = decode(request, model.readers, model.rows)
                names = _read_outputs(request, model.output_names)
                remaining = context.time_remaining()
                deadline = read_deadline(started, self._timeout_seconds, None)
                if remaining is not None:
                    deadline = min(started + remaining, deadline or started + remaining)
                parameters = {
                    name: getattr(value, field)
                    for name, value in request.parameters.items()
                    if (field := value.WhichOneof("parameter_choice"))
                }
                outputs, record.ticket = await model.infer(inputs, deadline=deadline, parameters=parameters)
                response = encode(request, outputs, names, model)
                if record.unknown:
                    response.parameters[UNKNOWN_PARAMETER].string_param = describe_unknown(record.unknown)
        except asyncio.CancelledError:
            if self._is_over:
                record.fail(ShuttingDownError())
                raise ShuttingDownError from None
            # The client has cancelled the call, or its deadline is over.
            record.fail(ClientGoneError())
            raise
        except RequestError as error:
            record.fail(error)
            raise
        except Exception as error:
            record.fail(InternalError(error))
            raise
        record.finish()
        if (log := self._state.log) is not None and (request_id := log.choose_id(request.id)):
            context.set_trailing_metadata((("x-request-id", request_id),))
            size = request.ByteSize() + response.ByteSize()
            log.add(request_id, model, time.monotonic() - started, Message(request), Message(response), size)
        return response

    async def ServerLive(self, request: Any, context: Any) -> Any:
        """Return whether the graph thread runs."""
        return pb.ServerLiveResponse(live=self._state.is_alive())

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Return whether the startup models are loaded."""
        return pb.ServerReadyResponse(ready=self._state.is_ready())

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Return the server's name, version and extensions."""
        return pb.ServerMetadataResponse(**self._state.describe())

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Return whether a model, or one version, is served."""
        model = self._state.repository.get_model(request.name, request.version)
        return pb.ModelReadyResponse(ready=model.ready)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Return a model's inputs and outputs, from its signature."""
        described = self._state.describe_model(request.name, request.version)
        # The message has no field for the device or for a table's columns; HTTP has both, ModelConfig the columns.
        for name in ("rows", "parameters"):
            described.pop(name, None)
        return pb.ModelMetadataResponse(**described)

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        """Load a model, or load it again; the response is kserve's, Triton's has no fields."""
        name = triton.get_model_name(request)
        await self._state.load(name)
        return pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        """Unload a model."""
        name = triton.get_model_name(request)
        await self._state.unload(name)
        return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        """Return the models, loaded or not."""
        return triton.encode_index(await self._state.repository.index(), only_ready=request.ready)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        """Return a model's configuration in Triton's form."""
        return triton.encode_config(self._state.repository.get_graph_model(request.name, request.version))

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        """Return a model's statistics, or all models' if the request names none."""
        repository = self._state.repository
        names = [request.name] if request.name else list(repository.models)
        return triton.encode_statistics([repository.get_model(name, request.version) for name in names])


class HealthService:
    """`grpc.health.v1`: NOT_SERVING until the models are loaded, and again once a shutdown begins."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()

    async def add_to(self, server: grpc.aio.Server, *, is_serving: bool) -> None:
        """Register the service with the first status."""
        await self.set_serving(is_serving)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, is_serving: bool) -> None:
        """Set the server's and the inference service's status."""
        for service in (health.OVERALL_HEALTH, _SERVICE.full_name):
            await self._servicer.set(service, _SERVING if is_serving else _NOT_SERVING)


def add_reflection(server: grpc.aio.Server) -> None:
    """Let clients read the services' messages from the server."""
    from grpc_reflection.v1alpha import reflection

    names = (_SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


def decode(request: Any, readers: Mapping[str, InputReader], rows: RowReader | None = None) -> Arrays:
    """Read a ModelInferRequest's inputs, raw or typed: the model's own, or with `rows` one per column.

    Raises:
        InvalidRequestError: Naming the input, what was expected and what was found.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequestError(
            f"raw_input_contents: must be as many as inputs, {len(request.inputs)}, got {len(raw)}"
        )
    refuse_extensions(request.parameters, "parameters")
    inputs: Arrays = {}
    names: list[str] = [tensor.name for tensor in request.inputs]
    if rows is not None and not rows.accepts(names):
        rows = None
    for index, tensor in enumerate(request.inputs):
        name = tensor.name
        if name in names[:index]:
            raise InvalidRequestError(f"input {shorten(name)}: given twice")
        reader = get_reader(name, tensor.datatype, readers, rows)
        if reader is None:
            continue
        refuse_extensions(tensor.parameters, f"input {name!r}: parameters")
        shape = list(tensor.shape)
        if raw:
            if tensor.HasField("contents"):
                raise InvalidRequestError(f"input {name!r}: has both contents and raw_input_contents")
            inputs[name] = reader.read_raw(raw[index], shape)
        else:
            inputs[name] = reader.read_flat(_list_contents(tensor, name), shape)
    if rows is not None:
        return rows.pack(inputs, names)
    if len(inputs) != len(readers):
        check_names(inputs, readers)
    return inputs


def encode(request: Any, outputs: Arrays, names: tuple[str, ...], model: TensorModel) -> Any:
    """Return a ModelInferResponse.

    Args:
        request: The request.
        outputs: By name.
        names: Which outputs are sent.
        model: What computed them.
    """
    response = pb.ModelInferResponse(model_name=model.name, model_version=model.version, id=request.id)
    # One form for all outputs: a response with raw contents has no others.
    raw = bool(request.raw_input_contents) or any(name_array(outputs[name]) == "FP16" for name in names)
    for name in names:
        array = outputs[name]
        datatype = name_array(array)
        tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            response.raw_output_contents.append(to_bytes(array))
        elif datatype == "BYTES":
            texts = array.ravel().tolist()
            tensor.contents.bytes_contents.extend(
                text if isinstance(text, bytes) else str(text).encode() for text in texts
            )
        else:
            getattr(tensor.contents, _CONTENTS[datatype]).extend(array.ravel().tolist())
    return response


def _get_authorization(context: Any) -> bytes | None:
    found = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), None)
    return found.encode() if isinstance(found, str) else found


def _list_contents(tensor: Any, name: str) -> list[Any]:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidRequestError(
            f"input {name!r}: {tensor.datatype} has no typed contents in this protocol; send raw_input_contents"
        )
    others = [found.name for found, _ in tensor.contents.ListFields() if found.name != field]
    if others:
        raise InvalidRequestError(f"input {name!r}: {tensor.datatype} must be in {field}, got {', '.join(others)}")
    return list(getattr(tensor.contents, field))


def _read_outputs(request: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    if not request.outputs:
        return names
    wanted = tuple(output.name for output in request.outputs)
    for output in request.outputs:
        if output.name not in names:
            raise InvalidRequestError(f"output {shorten(output.name)}: unknown, expected {join(names)}")
        refuse_extensions(output.parameters, f"output {output.name!r}: parameters")
    if len(set(wanted)) < len(wanted):
        raise InvalidRequestError(f"outputs: each may be requested once, got {join(wanted)}")
    return wanted
