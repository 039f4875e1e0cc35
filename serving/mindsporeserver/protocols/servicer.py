"""The Open Inference Protocol (V2) over gRPC: kserve's servicer with typed and raw contents, versions and codes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.servicer import InferenceServicer

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from mindsporeserver.errors import ClientGoneError, InvalidRequestError, RequestError
from mindsporeserver.protocols.asgi import record_request
from mindsporeserver.protocols.tensors import InputReader, check_names, join, name_array, shorten
from mindsporeserver.protocols.v2 import to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mindsporeserver.models.model import MindSporeModel
    from mindsporeserver.models.repository import Repository
    from mindsporeserver.observability.logs import RequestLog
    from mindsporeserver.observability.tracing import Span, Tracer
    from mindsporeserver.workers.control import Control

    Arrays = dict[str, NDArray[Any]]

_SERVICE = "GRPCInferenceService"
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


class Servicer(InferenceServicer):  # type: ignore[misc]
    """Answers gRPC.

    Args:
        dataplane: kserve's, for what is not answered here.
        repository: What is served.
        control: Loads and unloads, here or in all workers.
        log: Writes a line a request.
        tracer: Makes spans, or None.
    """

    def __init__(
        self,
        dataplane: Any,
        repository: Repository,
        control: Control,
        log: RequestLog,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(dataplane, None)
        self._repository = repository
        self._control = control
        self._log = log
        self._tracer = tracer

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelInferResponse:
        """Compute the outputs of a request; they come in the form that the inputs had, FP16 always raw."""
        started = time.monotonic()
        span, ticket, model = None, None, None
        name = request.model_name
        try:
            model = self._repository.find(name, request.model_version)
            model.metrics.count_request("grpc")
            span = self._start_span(model, context)
            model.admit()
            inputs = decode(request, model.readers)
            names = _read_outputs(request, model.output_names)
            remaining = context.time_remaining()
            deadline = None if remaining is None else started + remaining
            outputs, ticket = await model.infer(inputs, deadline=deadline)
            response = encode(request, outputs, names, model)
        except asyncio.CancelledError:
            # The client has gone, or its deadline has.
            if model is not None:
                gone = ClientGoneError()
                model.metrics.count_failure(gone.reason)
                self._record(name, gone.status, gone.code, started, request.id, None, gone.message, span)
            raise
        except RequestError as error:
            if model is not None:
                model.metrics.count_failure(error.reason)
            self._record(name, error.status, error.code, started, request.id, None, error.message, span)
            await context.abort(grpc.StatusCode[error.code], error.message)
            raise
        if span is not None or self._log.wants(200):
            self._record(name, 200, "OK", started, request.id, ticket, "", span)
        return response

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:
        """Tell whether the models of the start are loaded."""
        return pb.ServerReadyResponse(ready=self._repository.loaded)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:
        """Tell whether a model, or a version of it, is served."""
        model = await self._find(request.name, request.version, context)
        return pb.ModelReadyResponse(ready=model.ready)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> pb.ModelMetadataResponse:
        """Describe a model's inputs and outputs, from its signature."""
        model = await self._find(request.name, request.version, context)
        found = model.describe()
        if not request.version:
            found["versions"] = self._repository.list_versions(request.name)
        return pb.ModelMetadataResponse(**found)

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Any
    ) -> pb.RepositoryModelLoadResponse:
        """Load a model, or load it again."""
        try:
            await self._control.load(request.model_name)
        except KfpMindSporeError as error:
            await _abort(context, error)
        return pb.RepositoryModelLoadResponse(model_name=request.model_name, isLoaded=True)

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> pb.RepositoryModelUnloadResponse:
        """Unload a model."""
        try:
            await self._control.unload(request.model_name)
        except KfpMindSporeError as error:
            await _abort(context, error)
        return pb.RepositoryModelUnloadResponse(model_name=request.model_name, isUnloaded=True)

    async def _find(self, name: str, version: str, context: Any) -> MindSporeModel:
        try:
            return self._repository.find(name, version)
        except RequestError as error:
            await context.abort(grpc.StatusCode[error.code], error.message)
            raise

    def _start_span(self, model: MindSporeModel, context: grpc.aio.ServicerContext) -> Span | None:
        if self._tracer is None:
            return None
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        return self._tracer.start(f"infer {model.name}", metadata)

    def _record(
        self,
        name: str,
        status: int,
        code: str,
        started: float,
        request_id: str,
        ticket: Any,
        reason: str,
        span: Span | None,
    ) -> None:
        if span is None and not self._log.wants(status):
            return
        record_request(
            self._log,
            span,
            protocol="grpc",
            model=name,
            status=status,
            seconds=time.monotonic() - started,
            request_id=request_id,
            ticket=ticket,
            reason=reason,
            grpc_status=code,
        )


def build_handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    """Return what answers the service's methods; bytes that are no message are the client's mistake, not UNKNOWN."""
    service = pb.DESCRIPTOR.services_by_name[_SERVICE]
    handlers = {}
    for method in service.methods:
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            _parse_first(getattr(servicer, method.name), getattr(pb, method.input_type.name)),
            response_serializer=getattr(pb, method.output_type.name).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _parse_first(function: Callable[[Any, Any], Awaitable[Any]], kind: Any) -> Callable[[bytes, Any], Awaitable[Any]]:
    parse = kind.FromString

    async def handle(content: bytes, context: Any) -> Any:
        try:
            request = parse(content)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a valid {kind.DESCRIPTOR.name} message")
            raise
        return await function(request, context)

    return handle


def decode(request: pb.ModelInferRequest, readers: Mapping[str, InputReader]) -> Arrays:
    """Read a request's inputs, raw or typed.

    Raises:
        InvalidRequestError: Naming the input, what was expected and what was found.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequestError(
            f"raw_input_contents: must be as many as inputs, {len(request.inputs)}, got {len(raw)}"
        )
    inputs: Arrays = {}
    for index, tensor in enumerate(request.inputs):
        name = tensor.name
        reader = readers.get(name)
        if reader is None:
            raise InvalidRequestError(f"input {shorten(name)}: unknown, expected {join(readers)}")
        if name in inputs:
            raise InvalidRequestError(f"input {name!r}: given twice")
        reader.check_datatype(tensor.datatype)
        shape = list(tensor.shape)
        if raw:
            if tensor.HasField("contents"):
                raise InvalidRequestError(f"input {name!r}: has both contents and raw_input_contents")
            inputs[name] = reader.read_raw(raw[index], shape)
        else:
            inputs[name] = reader.read_flat(_list_contents(tensor, name), shape)
    if len(inputs) != len(readers):
        check_names(inputs, readers)
    return inputs


def encode(
    request: pb.ModelInferRequest, outputs: Arrays, names: tuple[str, ...], model: MindSporeModel
) -> pb.ModelInferResponse:
    """Return the outputs that were asked for.

    Args:
        request: What is answered.
        outputs: By name.
        names: Which of them.
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


def _read_outputs(request: pb.ModelInferRequest, names: tuple[str, ...]) -> tuple[str, ...]:
    if not request.outputs:
        return names
    wanted = tuple(output.name for output in request.outputs)
    for name in wanted:
        if name not in names:
            raise InvalidRequestError(f"output {shorten(name)}: unknown, expected {join(names)}")
    if len(set(wanted)) < len(wanted):
        raise InvalidRequestError(f"outputs: each may be asked for once, got {join(wanted)}")
    return wanted


async def _abort(context: Any, error: KfpMindSporeError) -> None:
    code = grpc.StatusCode.NOT_FOUND if isinstance(error, NotFoundError) else grpc.StatusCode.FAILED_PRECONDITION
    await context.abort(code, error.message)
