"""The V2 protocol by gRPC: messages read and written, and a real server with a real client."""

from __future__ import annotations

import asyncio
import shutil
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from prometheus_client import CollectorRegistry

from kfp_mindspore.formats.bundle import MODEL_FILE, ModelBundle, TensorSpec
from mindsporeserver.errors import InvalidRequestError
from mindsporeserver.grpc import HealthService, InferenceService, decode, encode
from mindsporeserver.protocols.tensors import InputReader

# The protocol's own table: FP16 has no typed contents.
FIELDS = {
    "bool": ("BOOL", "bool_contents"),
    "int8": ("INT8", "int_contents"),
    "int16": ("INT16", "int_contents"),
    "int32": ("INT32", "int_contents"),
    "int64": ("INT64", "int64_contents"),
    "uint8": ("UINT8", "uint_contents"),
    "uint16": ("UINT16", "uint_contents"),
    "uint32": ("UINT32", "uint_contents"),
    "uint64": ("UINT64", "uint64_contents"),
    "float16": ("FP16", ""),
    "float32": ("FP32", "fp32_contents"),
    "float64": ("FP64", "fp64_contents"),
}
MODEL: Any = SimpleNamespace(name="m", version="3")
ONE = {"x": InputReader(TensorSpec("x", "float32", (-1, 2)), finite=True)}
TWO = {**ONE, "n": InputReader(TensorSpec("n", "int8", (-1,)), finite=True)}


def make_tensor(name: str = "x", shape: Any = (1, 2), datatype: str = "FP32", **contents: Any) -> Any:
    typed = {"contents": pb.InferTensorContents(**contents)} if contents else {}
    return pb.ModelInferRequest.InferInputTensor(name=name, shape=list(shape), datatype=datatype, **typed)


def make_request(*tensors: Any, raw: Any = (), **fields: Any) -> Any:
    return pb.ModelInferRequest(inputs=tensors, raw_input_contents=raw, **fields)


TAIL = struct.pack("<2f", 1, 2.5)
TYPED = make_tensor(fp32_contents=[1, 2.5])
PLAIN = make_tensor()


@pytest.mark.parametrize("dtype", FIELDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_response_parses_as_request(dtype: str, data: Any) -> None:
    datatype, field = FIELDS[dtype]
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=4)))
    raw = data.draw(st.booleans())
    asked = make_request(PLAIN, raw=[TAIL] if raw else [], id="7")
    answer = pb.ModelInferResponse.FromString(encode(asked, {"x": array}, ("x",), MODEL).SerializeToString())
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "3", "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("x", datatype, list(array.shape))
    assert [found.name for found, _ in output.contents.ListFields()] == ([] if raw or not field else [field])
    tensor = make_tensor("x", output.shape, output.datatype)
    if not answer.raw_output_contents:
        tensor.contents.CopyFrom(output.contents)
    reader = InputReader(TensorSpec("x", dtype, (-1,) * array.ndim), finite=False)
    found = decode(make_request(tensor, raw=answer.raw_output_contents), {"x": reader})["x"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    if array.dtype.kind == "f" and not raw:
        # A list of Python's floats loses the payload of a NaN.
        np.testing.assert_array_equal(found, array)
    else:
        assert found.tobytes() == array.tobytes()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5), st.booleans())
def test_texts_are_typed_or_raw(texts: list[bytes], raw: bool) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    answer = encode(make_request(PLAIN, raw=[TAIL] if raw else []), {"t": array}, ("t",), MODEL)
    (output,) = answer.outputs
    assert output.datatype == "BYTES"
    tensor = make_tensor("t", output.shape, "BYTES")
    if not raw:
        assert list(output.contents.bytes_contents) == texts
        tensor.contents.CopyFrom(output.contents)
    reader = InputReader(TensorSpec("t", "bytes", (-1,)), finite=True)
    assert decode(make_request(tensor, raw=answer.raw_output_contents), {"t": reader})["t"].tolist() == texts


def test_all_outputs_are_raw_when_one_must_be() -> None:
    outputs: dict[str, Any] = {"h": np.ones(2, np.float16), "f": np.ones(2, np.float32), "s": np.array(["ü"], object)}
    answer = encode(make_request(TYPED), outputs, ("f", "h", "s"), MODEL)
    assert [output.name for output in answer.outputs] == ["f", "h", "s"]
    assert list(answer.raw_output_contents) == [b"\0\0\x80?" * 2, b"\0<" * 2, b"\x02\0\0\0\xc3\xbc"]
    answer = encode(make_request(TYPED), outputs, ("s",), MODEL)
    assert (list(answer.outputs[0].contents.bytes_contents), len(answer.raw_output_contents)) == (["ü".encode()], 0)


@pytest.mark.parametrize(
    ("request_", "readers", "message"),
    [
        (make_request(), ONE, "input 'x': missing, got none"),
        (make_request(TYPED), TWO, "input 'n': missing, got 'x'"),
        (make_request(make_tensor("y", fp32_contents=[1, 2])), ONE, "input 'y': unknown, expected 'x'"),
        (make_request(make_tensor("", fp32_contents=[1, 2])), ONE, "input '': unknown, expected 'x'"),
        (make_request(TYPED, TYPED), ONE, "input 'x': given twice"),
        (make_request(PLAIN, PLAIN, raw=[TAIL, TAIL]), ONE, "input 'x': given twice"),
        (make_request(make_tensor(datatype="FP64", fp64_contents=[1, 2])), ONE, "datatype must be FP32, got 'FP64'"),
        (make_request(make_tensor(datatype="", fp32_contents=[1, 2])), ONE, "datatype must be FP32, got ''"),
        (make_request(make_tensor(datatype="BYTES", bytes_contents=[b"a"])), ONE, "need a model with a transform"),
        (make_request(PLAIN), ONE, "data of shape [1, 2] must contain 2 values, got 0"),
        (make_request(make_tensor(fp64_contents=[1, 2])), ONE, "FP32 must be in fp32_contents, got fp64_contents"),
        (
            make_request(make_tensor(fp32_contents=[1, 2], int_contents=[3])),
            ONE,
            "FP32 must be in fp32_contents, got int_contents",
        ),
        (make_request(make_tensor(fp32_contents=[1, 2, 3])), ONE, "must contain 2 values, got 3"),
        (make_request(make_tensor(shape=[2], fp32_contents=[1, 2])), ONE, "shape must be (-1, 2), got (2,)"),
        (make_request(make_tensor(shape=[-1, 2], fp32_contents=[1, 2])), ONE, "shape must be (-1, 2), got (-1, 2)"),
        (make_request(make_tensor(shape=[1 << 62, 2], fp32_contents=[1])), ONE, "values, got 1"),
        (make_request(make_tensor(fp32_contents=[1, float("nan")])), ONE, "must contain finite numbers"),
        (make_request(TYPED, raw=[TAIL]), ONE, "has both contents and raw_input_contents"),
        (make_request(PLAIN, raw=[TAIL, TAIL]), ONE, "raw_input_contents: must be as many as inputs, 1, got 2"),
        (make_request(raw=[TAIL]), ONE, "raw_input_contents: must be as many as inputs, 0, got 1"),
        (make_request(PLAIN, raw=[TAIL[:-1]]), ONE, "must have 8 bytes, got 7"),
        (make_request(PLAIN, raw=[b""]), ONE, "must have 8 bytes, got 0"),
        (
            make_request(TYPED, make_tensor("n", [1], "INT8", int_contents=[128])),
            TWO,
            "input 'n': values must be -128 to 127 (int8), got 128 to 128",
        ),
    ],
)
def test_messages_that_are_refused(request_: Any, readers: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(request_, readers)
    assert message in caught.value.message


def test_float16_has_no_typed_contents() -> None:
    readers = {"x": InputReader(TensorSpec("x", "float16", (-1, 2)), finite=True)}
    with pytest.raises(InvalidRequestError, match="FP16 has no typed contents in this protocol; send raw_input"):
        decode(make_request(make_tensor(datatype="FP16", fp32_contents=[1, 2])), readers)
    found = decode(make_request(make_tensor(datatype="FP16"), raw=[b"\0<\0@"]), readers)["x"]
    assert found.tolist() == [[1, 2]]


class GrpcWorld:
    """A server of real models on a port of its own, and a channel to it, in one event loop."""

    def __init__(self, models: Path, scratch: Path) -> None:
        from mindsporeserver.models.batcher import Limits
        from mindsporeserver.models.inference_executor import InferenceExecutor
        from mindsporeserver.models.model import MindSporeModel, ModelSettings
        from mindsporeserver.models.repository import Repository, Sources
        from mindsporeserver.observability.logs import RequestLog
        from mindsporeserver.observability.metrics import ServerMetrics
        from mindsporeserver.state import ServerState
        from mindsporeserver.telemetry import Telemetry

        for name in ("free", "pair"):
            shutil.copytree(models / name, scratch / name)
        self.loop = asyncio.new_event_loop()
        self.registry, self.graphs = CollectorRegistry(), InferenceExecutor()
        metrics = ServerMetrics(self.registry)
        model_settings = ModelSettings(max_batch=4, limits=Limits(max_queue=8))

        def open_model(name: str, bundle: ModelBundle, version: str) -> MindSporeModel:
            return MindSporeModel(
                name, bundle, version=version, settings=model_settings, executor=self.graphs, metrics=metrics
            )

        self.directory = scratch
        self.repository = Repository(Sources({"late": scratch / "free"}, scratch), open_model, metrics)
        for name in ("free", "pair"):
            self.run(self.repository.load(name))
        self.repository.loaded = True

        async def start() -> None:
            self.server = grpc.aio.server()
            state = ServerState(self.repository, self.graphs, metrics, Telemetry(RequestLog("none"), metrics))
            self.service, self.health = InferenceService(state), HealthService()
            self.server.add_generic_rpc_handlers((self.service.build_handlers(),))
            await self.health.add_to(self.server, is_serving=False)
            port = self.server.add_insecure_port("127.0.0.1:0")
            await self.server.start()
            self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            self.stub = GRPCInferenceServiceStub(self.channel)

        self.run(start())

    def run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await asyncio.wait_for(awaitable, 300)

        return self.loop.run_until_complete(wait())

    def call(self, method: str, request: Any, **options: Any) -> Any:
        async def call() -> Any:
            return await getattr(self.stub, method)(request, **options)

        return self.run(call())

    def refuse(self, method: str, request: Any, **options: Any) -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            self.call(method, request, **options)
        return caught.value.code().name, caught.value.details() or ""

    def count(self, reason: str, name: str = "free") -> float:
        labels = {"model_name": name, "reason": reason}
        return self.registry.get_sample_value("mindsporeserver_request_failures_total", labels) or 0.0

    def close(self) -> None:
        async def stop() -> None:
            await self.channel.close()
            await self.server.stop(0)
            await self.repository.close()

        self.run(stop())
        self.graphs.close()
        self.loop.close()


@pytest.fixture(scope="module")
def world(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcWorld]:
    with pytest.MonkeyPatch.context() as patch:
        # kserve reads the command line when it is imported.
        patch.setattr(sys, "argv", ["server"])
        world = GrpcWorld(models, tmp_path_factory.mktemp("grpc"))
    yield world
    world.close()


IMAGE = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 1, 8, 8)
DIGIT = make_tensor("image", (2, 1, 8, 8), fp32_contents=IMAGE.ravel().tolist())
RAW_DIGIT = make_tensor("image", (2, 1, 8, 8))


def ask_digits(*, raw: bool = False, **fields: Any) -> Any:
    request = make_request(RAW_DIGIT, raw=[IMAGE.tobytes()]) if raw else make_request(DIGIT)
    request.MergeFrom(pb.ModelInferRequest(**{"model_name": "free", **fields}))
    return request


@pytest.mark.mindspore
def test_typed_and_raw_requests_get_same_in_their_own_form(world: GrpcWorld) -> None:
    typed = world.call("ModelInfer", ask_digits(id="42"))
    raw = world.call("ModelInfer", ask_digits(raw=True, model_version="1"))
    assert (typed.id, typed.model_name, typed.model_version, raw.id) == ("42", "free", "1", "")
    assert not typed.raw_output_contents
    assert not raw.outputs[0].HasField("contents")
    for answer in (typed, raw):
        assert [(output.name, output.datatype, list(output.shape)) for output in answer.outputs] == [
            ("output", "FP32", [2, 10])
        ]
    first = np.array(typed.outputs[0].contents.fp32_contents, np.float32)
    np.testing.assert_allclose(first, np.frombuffer(raw.raw_output_contents[0], np.float32), atol=1e-5)


@pytest.mark.mindspore
def test_only_requested_outputs_are_returned(world: GrpcWorld) -> None:
    tensors = [
        make_tensor("index", [1], "INT32", int_contents=[7]),
        make_tensor("values", [1, 3], fp32_contents=[1, 2, 3]),
    ]
    wanted = [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in ("output_1", "output_0")]
    for count in (1, 2):
        answer = world.call("ModelInfer", make_request(*tensors, model_name="pair", outputs=wanted[:count]))
        assert [output.name for output in answer.outputs] == ["output_1", "output_0"][:count]
        assert list(answer.outputs[0].contents.int_contents) == [8]
    for outputs, message in (
        ([wanted[0], wanted[0]], "outputs: each may be requested once"),
        ([pb.ModelInferRequest.InferRequestedOutputTensor(name="x")], "output 'x': unknown, expected 'output_0'"),
    ):
        code, details = world.refuse("ModelInfer", make_request(*tensors, model_name="pair", outputs=outputs))
        assert (code, message in details) == ("INVALID_ARGUMENT", True)


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"model_name": "cats"}, "NOT_FOUND", "Model with name cats does not exist."),
        ({"model_name": "../free"}, "NOT_FOUND", "Model with name ../free does not exist."),
        ({"model_version": "2"}, "NOT_FOUND", "Model with name free has no version 2."),
        ({"model_name": "late"}, "UNAVAILABLE", "Model with name late is not ready."),
        ({"inputs": [DIGIT]}, "INVALID_ARGUMENT", "given twice"),
    ],
)
def test_codes(world: GrpcWorld, fields: dict[str, Any], code: str, message: str) -> None:
    request = make_request(DIGIT, model_name="free")
    request.MergeFrom(pb.ModelInferRequest(**fields))
    found, details = world.refuse("ModelInfer", request)
    assert (found, message in details) == (code, True), details


@pytest.mark.mindspore
def test_full_queue_deadline_and_cancelled_call(world: GrpcWorld, eventually: Any) -> None:
    held = threading.Event()
    world.graphs.put(lambda: (held.wait(30), None)[1])
    before = {reason: world.count(reason) for reason in ("overload", "cancelled")}

    async def story() -> None:
        loop = asyncio.get_running_loop()
        calls = [world.stub.ModelInfer(ask_digits()) for _ in range(3)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        model = world.repository.get_model("free")
        while model._batcher.rows < 6:
            await asyncio.sleep(0.001)
        late = world.stub.ModelInfer(ask_digits(), timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await late
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # Its rows are released at once, before the graph is free.
        while model._batcher.rows > 6:
            await asyncio.sleep(0.001)
        calls.append(world.stub.ModelInfer(ask_digits()))
        tasks.append(asyncio.ensure_future(calls[-1]))
        while model._batcher.rows < 8:
            await asyncio.sleep(0.001)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.stub.ModelInfer(ask_digits())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "8 rows are queued, the limit is 8" in (caught.value.details() or "")
        calls[0].cancel()
        await loop.run_in_executor(None, lambda: None)
        while world.count("cancelled") < before["cancelled"] + 2:
            await asyncio.sleep(0.001)
        held.set()
        for answer in [await task for task in tasks[1:]]:
            assert list(answer.outputs[0].shape) == [2, 10]
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        answer = await world.stub.ModelInfer(ask_digits())
        assert answer.outputs[0].name == "output"
        assert model._batcher.rows == 0

    try:
        world.run(story())
    finally:
        held.set()
    assert world.count("overload") == before["overload"] + 1


METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]


@pytest.mark.mindspore
def test_defect_is_internal_without_its_message(world: GrpcWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: Any, **options: Any) -> Any:
        raise KeyError("a secret")

    before = world.count("error")
    monkeypatch.setattr(world.repository.get_model("free"), "infer", fail)
    expected = ("INTERNAL", "the server failed with KeyError; its log has the trace")
    assert world.refuse("ModelInfer", ask_digits()) == expected
    assert world.count("error") == before + 1
    monkeypatch.setattr(world.repository, "get_model", lambda *_: {}["a secret"])
    assert world.refuse("ModelReady", pb.ModelReadyRequest(name="free")) == expected


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_clients_mistake(world: GrpcWorld, method: str) -> None:
    async def call(content: bytes) -> Any:
        return await world.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(content)

    for content in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x07" * 50, ask_digits().SerializeToString()[:-3]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            world.run(call(content))
        assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), caught.value
        if content == b"\xff":
            assert "is not a valid" in (caught.value.details() or "") or "not a valid" in (caught.value.details() or "")
    assert world.call("ModelInfer", ask_digits()).outputs[0].name == "output"


@pytest.mark.mindspore
def test_method_that_is_none(world: GrpcWorld) -> None:
    async def call() -> Any:
        return await world.channel.unary_unary("/inference.GRPCInferenceService/ModelExplain")(b"")

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        world.run(call())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.mindspore
def test_health_and_metadata(world: GrpcWorld) -> None:
    assert world.call("ServerLive", pb.ServerLiveRequest()).live
    assert world.call("ServerReady", pb.ServerReadyRequest()).ready
    metadata = world.call("ServerMetadata", pb.ServerMetadataRequest())
    assert (metadata.name, "model_repository_extension" in metadata.extensions) == ("mindsporeserver", True)
    for version in ("", "1"):
        assert world.call("ModelReady", pb.ModelReadyRequest(name="pair", version=version)).ready
        found = world.call("ModelMetadata", pb.ModelMetadataRequest(name="pair", version=version))
        assert (found.name, list(found.versions), found.platform) == ("pair", ["1"], "mindspore_mindir")
        assert [(spec.name, spec.datatype, list(spec.shape)) for spec in found.inputs] == [
            ("values", "FP32", [-1, 3]),
            ("index", "INT32", [-1]),
        ]
    for method, kind in (("ModelReady", pb.ModelReadyRequest), ("ModelMetadata", pb.ModelMetadataRequest)):
        assert world.refuse(method, kind(name="cats"))[0] == "NOT_FOUND"
        assert world.refuse(method, kind(name="pair", version="2"))[0] == "NOT_FOUND"
        assert world.refuse(method, kind(name="late"))[0] == "UNAVAILABLE"
    world.repository.loaded = False
    try:
        assert not world.call("ServerReady", pb.ServerReadyRequest()).ready
    finally:
        world.repository.loaded = True


@pytest.mark.mindspore
def test_loading_and_unloading(world: GrpcWorld, models: Path) -> None:
    for name in ("nowhere", "../free", "", "a" * 256, "a" * 9000):
        code, details = world.refuse("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name))
        assert (code, "no such directory" in details, str(world.directory) in details) == ("NOT_FOUND", True, False)
        assert len(details) < 250
        for method, kind in (("ModelReady", pb.ModelReadyRequest), ("ModelMetadata", pb.ModelMetadataRequest)):
            code, details = world.refuse(method, kind(name=name, version="1" * 9000))
            assert (code, len(details) < 250) == ("NOT_FOUND", True)
    code, details = world.refuse("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="nowhere"))
    assert (code, "not loaded" in details) == ("NOT_FOUND", True)
    broken = Path(shutil.copytree(models / "free", world.directory / "broken"))
    (broken / MODEL_FILE).write_bytes(b"")
    code, details = world.refuse("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="broken"))
    assert (code, MODEL_FILE in details) == ("FAILED_PRECONDITION", True)
    unloaded = world.call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="pair"))
    assert (unloaded.model_name, unloaded.isUnloaded) == ("pair", True)
    assert world.refuse("ModelReady", pb.ModelReadyRequest(name="pair"))[0] == "NOT_FOUND"
    loaded = world.call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="pair"))
    assert (loaded.model_name, loaded.isLoaded) == ("pair", True)
    assert world.call("ModelReady", pb.ModelReadyRequest(name="pair")).ready


@pytest.mark.mindspore
@pytest.mark.parametrize("field", ["classification", "shared_memory_region"])
def test_parameters_of_unsupported_extensions_are_refused(world: GrpcWorld, field: str) -> None:
    parameters = {field: pb.InferParameter(int64_param=3)}
    tensor = make_tensor("image", (2, 1, 8, 8), fp32_contents=IMAGE.ravel().tolist())
    tensor.parameters[field].CopyFrom(parameters[field])
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="output", parameters=parameters)
    for request in (
        ask_digits(parameters=parameters),
        ask_digits(outputs=[output]),
        make_request(tensor, model_name="free"),
    ):
        code, details = world.refuse("ModelInfer", request)
        assert (code, f"{field}: this protocol extension" in details) == ("INVALID_ARGUMENT", True)


@pytest.mark.mindspore
def test_standard_health_service(world: GrpcWorld) -> None:
    stub = health_pb2_grpc.HealthStub(world.channel)

    async def check(service: str) -> str:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    for is_serving, status in ((False, "NOT_SERVING"), (True, "SERVING")):
        world.run(world.health.set_serving(is_serving))
        assert [world.run(check(name)) for name in ("", "inference.GRPCInferenceService")] == [status] * 2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        world.run(check("unknown"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.mindspore
def test_calls_that_outlive_shutdown_end_unavailable(world: GrpcWorld) -> None:
    """Last: the service is stopped afterwards."""
    held = threading.Event()
    world.graphs.put(lambda: (held.wait(30), None)[1])

    async def run() -> None:
        task = asyncio.ensure_future(world.stub.ModelInfer(ask_digits()))
        while not world.service._calls:
            await asyncio.sleep(0.001)
        await world.service.drain(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await task
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    try:
        world.run(run())
    finally:
        held.set()
