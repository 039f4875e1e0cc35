"""The HTTP application: responses of kserve's application, documented differences, and limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kfp_mindspore.formats.bundle import ModelBundle
from mindsporeserver.connection import EXTENSION

pytestmark = pytest.mark.mindspore

DOCS = Path(__file__).parents[3] / "docs" / "serving.md"
V1, V2 = "/v1/models/digits:predict", "/v2/models/digits/infer"
JSON = {"content-type": "application/json"}
IMAGE = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
ROW = IMAGE[0].tolist()
Request = tuple[str, bytes, dict[str, str]]


class World:
    """Our application, and kserve's own with a model behind its codec and with one as its documentation writes it."""

    def __init__(self, models: Path) -> None:
        from mindsporeserver.app import Application
        from mindsporeserver.bodies import RequestLimits
        from mindsporeserver.models.inference_executor import InferenceExecutor
        from mindsporeserver.models.model import MindSporeModel, ModelSettings
        from mindsporeserver.models.repository import Repository, Sources
        from mindsporeserver.observability.logs import RequestLog
        from mindsporeserver.observability.metrics import ServerMetrics
        from mindsporeserver.state import ServerState
        from mindsporeserver.telemetry import Telemetry

        self.loop = asyncio.new_event_loop()
        self.registry = CollectorRegistry()
        self.graphs = InferenceExecutor()
        metrics = ServerMetrics(self.registry)
        settings = ModelSettings(max_batch=4)

        def open_model(name: str, bundle: ModelBundle, version: str) -> MindSporeModel:
            return MindSporeModel(
                name, bundle, version=version, settings=settings, executor=self.graphs, metrics=metrics
            )

        def make_repository() -> Repository:
            return Repository(
                Sources({"digits": models / "free", "pair": models / "pair", "sequence": models / "sequence"}),
                open_model,
                metrics,
            )

        self.repository = make_repository()
        self.run(self.repository.load_all())

        def build(repository: Repository | None = None, *, is_fixed: bool = False, **limits: Any) -> Application:
            telemetry = Telemetry(RequestLog("none"), metrics)
            state = ServerState(repository or self.repository, self.graphs, metrics, telemetry, is_fixed=is_fixed)
            return Application(state, RequestLimits(**limits))

        self.build = build
        self.ours = build()
        self.unloaded = build(make_repository())
        self.kserve = build_kserve_application(*map(self._wrap_model, ("digits", "pair", "sequence")))
        self.stock = build_kserve_application(self._build_stock_model(models / "free"))

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 900))

    def ask(self, application: Any, request: Request, method: str = "POST") -> httpx.Response:
        path, body, headers = request

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return await client.request(method, path, content=body, headers=headers)

        found: httpx.Response = self.run(send())
        return found

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"mindsporeserver_{name}_total", labels) or 0.0

    def close(self) -> None:
        self.run(self.repository.close())
        self.graphs.close()
        self.loop.close()

    def _wrap_model(self, name: str) -> Any:
        """Return our model as a kserve.Model: kserve decodes and encodes, so its responses are the reference."""
        import kserve
        from kserve.protocol.infer_type import InferOutput, InferRequest, InferResponse

        from mindsporeserver.protocols.v1 import decode, encode

        served = self.repository.get_model(name)

        class Model(kserve.Model):  # type: ignore[misc]
            async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
                if not isinstance(payload, InferRequest):
                    outputs, _ = await served.infer(decode(payload, served.readers))
                    return json.loads(encode(outputs))
                arrays = {
                    tensor.name: tensor.as_numpy().astype(served.readers[tensor.name].dtype)
                    for tensor in payload.inputs
                }
                outputs, _ = await served.infer(arrays)
                wanted = {output.name for output in payload.request_outputs or ()} or set(outputs)
                return InferResponse(
                    response_id=payload.id or "",
                    model_name=name,
                    model_version="1",
                    infer_outputs=[
                        InferOutput(key, list(array.shape), "INT32" if array.dtype.kind == "i" else "FP32", array)
                        for key, array in outputs.items()
                        if key in wanted
                    ],
                    use_binary_outputs=payload.use_binary_outputs,
                    requested_outputs=payload.request_outputs,
                )

        model = Model(name)
        model.ready = True
        return model

    def _build_stock_model(self, bundle: Path) -> Any:
        import kserve
        import mindspore
        from kserve.utils.utils import get_predict_input, get_predict_response

        graphs = self.graphs

        class Predictor(kserve.Model):  # type: ignore[misc]
            def load(self) -> bool:
                self.graph = graphs.call(mindspore.load, str(bundle / "model.mindir")).result()
                self.ready = True
                return self.ready

            def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
                images = get_predict_input(payload).astype(np.float32)
                return get_predict_response(payload, graphs.call(self.compute, images).result(), self.name)

            def compute(self, images: Any) -> Any:
                # A new one each time: one that raised is of no use afterwards.
                return mindspore.nn.GraphCell(self.graph)(mindspore.Tensor(images)).asnumpy()

        model = Predictor("digits")
        model.load()
        return model


def build_kserve_application(*models: Any) -> Any:
    import fastapi
    from kserve.model_repository import ModelRepository
    from kserve.protocol.dataplane import DataPlane
    from kserve.protocol.model_repository_extension import ModelRepositoryExtension
    from kserve.protocol.rest.server import RESTServer

    repository = ModelRepository()
    for model in models:
        repository.update(model)
    rest = RESTServer("kserve.model_server:app", DataPlane(repository), ModelRepositoryExtension(repository), 8080)
    application = fastapi.FastAPI()
    rest._register_endpoints(application)
    rest._add_exception_handlers(application)
    return application


@pytest.fixture(scope="module")
def world(models: Path) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        # kserve reads the command line when it is imported.
        patch.setattr(sys, "argv", ["server"])
        world = World(models)
    yield world
    world.close()


def make_json(path: str, value: Any, **headers: str) -> Request:
    return path, json.dumps(value).encode(), {**JSON, **headers}


def make_v2(*tensors: dict[str, Any], path: str = V2, **fields: Any) -> Request:
    return make_json(path, {"inputs": list(tensors), **fields})


def describe(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": "INT32" if array.dtype.kind == "i" else "FP32"}


def make_tensor(name: str, array: np.ndarray[Any, Any], nested: bool = False, **changes: Any) -> dict[str, Any]:
    data = array.tolist() if nested else array.ravel().tolist()
    tensor = {**describe(name, array), "data": data, **changes}
    return {key: value for key, value in tensor.items() if value is not ...}


def make_binary(path: str, arrays: dict[str, np.ndarray[Any, Any]], raw: Sequence[str], **fields: Any) -> Request:
    tensors = [
        {**describe(name, array), "parameters": {"binary_data_size": array.nbytes}}
        if name in raw
        else make_tensor(name, array)
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": tensors, **fields}).encode()
    tail = b"".join(array.tobytes() for name, array in arrays.items() if name in raw)
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return path, head + tail, headers


def split(response: httpx.Response) -> tuple[Any, bytes]:
    length = int(response.headers.get("inference-header-content-length", len(response.content)))
    return drop_nulls(json.loads(response.content[:length])), response.content[length:]


def drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    return [drop_nulls(item) for item in value] if isinstance(value, list) else value


def is_same(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, bool | str | None) or isinstance(second, bool | str | None):
        return type(first) is type(second) and bool(first == second)
    return bool(np.float32(first) == np.float32(second))


def compare(world: World, request: Request, expected: int = 200) -> tuple[Any, bytes]:
    theirs, ours = world.ask(world.kserve, request), world.ask(world.ours, request)
    assert theirs.status_code == expected, theirs.text
    assert ours.status_code == theirs.status_code, ours.text
    assert (
        ours.headers["content-type"].partition(";")[0]
        == theirs.headers.get("content-type", "application/octet-stream").partition(";")[0]
    )
    (head, tail), (their_head, their_tail) = split(ours), split(theirs)
    assert is_same(head, their_head), (head, their_head)
    assert tail == their_tail
    return head, tail


PAIR = {"values": np.array([[1, 2.5, 3], [4, 5, 6]], np.float32), "index": np.array([7, -8], np.int32)}
TEXTS = {"ids": np.array([[1, 2, 3, 49, 0]], np.int32), "mask": np.array([[1, 1, 0.5, 1, 0]], np.float32)}
P1, P2 = "/v1/models/pair:predict", "/v2/models/pair/infer"
S1, S2 = "/v1/models/sequence:predict", "/v2/models/sequence/infer"
GOOD: dict[str, Request] = {
    "V1 lists": make_json(V1, {"instances": [ROW, ROW]}),
    "V1 objects": make_json(V1, {"instances": [{"image": ROW}]}),
    "V1 inputs": make_json(V1, {"inputs": [ROW]}),
    "V1 more fields": make_json(V1, {"signature_name": "a", "instances": [ROW]}),
    "V1 integers": make_json(V1, {"instances": np.ones((1, 1, 8, 8), int).tolist()}),
    "V1 more rows than a batch": make_json(V1, {"instances": [ROW] * 11}),
    "V1 several inputs": make_json(P1, {"instances": [{"values": [1, 2, 3], "index": 4}]}),
    "V1 free length": make_json(S1, {"instances": [{"ids": [1, 2, 3], "mask": [1, 0, 1]}]}),
    "V2 flat": make_v2(make_tensor("image", IMAGE)),
    "V2 nested": make_v2(make_tensor("image", IMAGE, nested=True)),
    "V2 id": make_v2(make_tensor("image", IMAGE), id="42"),
    "V2 parameters": make_v2(make_tensor("image", IMAGE, parameters={"a": 1}), parameters={"b": "c"}),
    "V2 nulls": make_v2(make_tensor("image", IMAGE), id=None, parameters=None, outputs=None),
    "V2 outputs": make_v2(make_tensor("image", IMAGE), outputs=[{"name": "output"}]),
    "V2 no outputs named": make_v2(make_tensor("image", IMAGE), outputs=[]),
    "V2 binary output": make_v2(make_tensor("image", IMAGE), parameters={"binary_data_output": True}),
    "V2 several inputs": make_v2(*(make_tensor(name, array) for name, array in PAIR.items()), path=P2),
    "V2 in another order": make_v2(*(make_tensor(name, PAIR[name]) for name in ("index", "values")), path=P2),
    "V2 one of two outputs": make_v2(
        *(make_tensor(name, array) for name, array in PAIR.items()), path=P2, outputs=[{"name": "output_1"}]
    ),
    "V2 one of two outputs as bytes": make_v2(
        *(make_tensor(name, array) for name, array in PAIR.items()),
        path=P2,
        outputs=[{"name": "output_0", "parameters": {"binary_data": True}}, {"name": "output_1"}],
    ),
    "V2 free length": make_v2(*(make_tensor(name, array) for name, array in TEXTS.items()), path=S2),
    "binary": make_binary(V2, {"image": IMAGE}, ["image"]),
    "binary id": make_binary(V2, {"image": IMAGE}, ["image"], id="a"),
    "binary both ways": make_binary(V2, {"image": IMAGE}, ["image"], parameters={"binary_data_output": True}),
    "binary without bytes": make_binary(V2, {"image": IMAGE}, []),
    "binary and JSON": make_binary(P2, PAIR, ["index"]),
    "binary several": make_binary(P2, PAIR, ["index", "values"], parameters={"binary_data_output": True}),
    "binary but one": make_binary(
        P2,
        PAIR,
        ["index", "values"],
        outputs=[
            {"name": "output_1", "parameters": {"binary_data": True}},
            {"name": "output_0", "parameters": {"binary_data": False}},
        ],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_responses_equal_those_of_kserves_application(world: World, name: str) -> None:
    head, _ = compare(world, GOOD[name])
    assert "predictions" in head or head["outputs"]


@st.composite
def good_requests(draw: Any) -> Request:
    model = draw(st.sampled_from(["digits", "pair", "sequence"]))
    rows = draw(st.integers(1, 9))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    scale = draw(st.sampled_from([1, 1e-20, 1e20]))
    if model == "digits":
        arrays = {"image": (random.random((rows, 1, 8, 8)) * scale).astype(np.float32)}
    elif model == "pair":
        index = random.integers(-(1 << 31), (1 << 31) - 1, rows, dtype=np.int32)
        arrays = {"values": (random.normal(size=(rows, 3)) * scale).astype(np.float32), "index": index}
    else:
        length = draw(st.integers(1, 64))
        arrays = {
            "ids": random.integers(0, 50, (rows, length), dtype=np.int32),
            "mask": random.random((rows, length)).astype(np.float32),
        }
    names = list(arrays)
    protocol = draw(st.sampled_from(["v1", "v2", "binary"]))
    if protocol == "v1":
        if len(names) == 1 and draw(st.booleans()):
            return make_json(f"/v1/models/{model}:predict", {"instances": arrays[names[0]].tolist()})
        columns = [arrays[name].tolist() for name in names]
        instances = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return make_json(f"/v1/models/{model}:predict", {"instances": instances})
    fields: dict[str, Any] = {}
    # Its length moves the bytes after it, so that numbers begin anywhere.
    fields["id"] = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9))
    outputs = ["output_0", "output_1"] if model == "pair" else ["output"]
    if draw(st.booleans()):
        wanted = draw(st.lists(st.sampled_from(outputs), min_size=1, unique=True))
        fields["outputs"] = [{"name": name} for name in wanted]
        for output in fields["outputs"]:
            if draw(st.booleans()):
                output["parameters"] = {"binary_data": draw(st.booleans())}
    elif draw(st.booleans()):
        fields["parameters"] = {"binary_data_output": draw(st.booleans())}
    path = f"/v2/models/{model}/infer"
    order = draw(st.permutations(names))
    arrays = {name: arrays[name] for name in order}
    if protocol == "v2":
        nested = draw(st.booleans())
        return make_v2(*(make_tensor(name, array, nested) for name, array in arrays.items()), path=path, **fields)
    return make_binary(path, arrays, draw(st.lists(st.sampled_from(names), unique=True)), **fields)


@settings(max_examples=120, deadline=None)
@given(request=good_requests())
def test_valid_requests_get_response_of_kserves_application(world: World, request: Request) -> None:
    compare(world, request)


@settings(max_examples=30, deadline=None)
@given(requests=st.lists(good_requests(), min_size=2, max_size=12))
def test_concurrent_requests_get_responses_of_single_ones(world: World, requests: list[Request]) -> None:
    alone = [world.ask(world.ours, request) for request in requests]

    async def send_all() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=world.ours)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await asyncio.gather(
                *(client.post(path, content=body, headers=headers) for path, body, headers in requests)
            )

    for first, second in zip(alone, world.run(send_all()), strict=True):
        assert second.status_code == 200
        (head, tail), (other_head, other_tail) = split(first), split(second)
        collect, other = list(walk(head)), list(walk(other_head))
        assert [value for value in collect if isinstance(value, str)] == [v for v in other if isinstance(v, str)]
        numbers = [[value for value in values if not isinstance(value, str)] for values in (collect, other)]
        np.testing.assert_allclose(numbers[0], numbers[1], rtol=1e-5, atol=1e-5)
        assert len(tail) == len(other_tail)


def walk(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [item for key, item in sorted(value.items())]
    if isinstance(value, list):
        for item in value:
            yield from walk(item)
    else:
        yield value


HEAD = GOOD["binary"][1][:-256]
OCTETS = "application/octet-stream"


def lie(length: str, body: bytes = GOOD["binary"][1]) -> Request:
    return V2, body, {"content-type": OCTETS, "inference-header-content-length": length}


def sized(size: int, tail: int = 256) -> Request:
    tensor = {**describe("image", IMAGE), "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return lie(str(len(head)), head + bytes(tail))


# A row of the table in docs/serving.md, requests that it means, and the status of a hand-written kserve.Model and ours.
WRONG: dict[str, tuple[list[Request], int, int]] = {
    "V1 body that is a list": ([make_json(V1, [ROW])], 500, 400),
    "ragged lists, texts, a wrong shape, no rows": (
        [
            make_json(V1, {"instances": [[[1, 2], [3]]]}),
            make_json(V1, {"instances": ["a", "b"]}),
            make_json(V1, {"instances": [[1, 2, 3]]}),
            make_json(V1, {"instances": []}),
        ],
        500,
        400,
    ),
    "V2: `data` that does not fill `shape`, no inputs": (
        [make_v2(make_tensor("image", IMAGE, shape=[2, 1, 8, 8])), make_v2()],
        500,
        400,
    ),
    "V2: bad JSON, a list, a missing field": (
        [
            (V2, b"{", JSON),
            make_json(V2, [1]),
            make_v2(make_tensor("image", IMAGE, shape=...)),
            make_v2(make_tensor("image", IMAGE, datatype=...)),
            make_v2(make_tensor("image", IMAGE, data=...)),
        ],
        422,
        400,
    ),
    "V2: unknown input name, another datatype, an input twice": (
        [
            make_v2(make_tensor("picture", IMAGE)),
            make_v2(make_tensor("image", IMAGE, datatype="FP64")),
            make_v2(make_tensor("image", IMAGE), make_tensor("image", IMAGE)),
        ],
        200,
        400,
    ),
    "V2 binary: `Inference-Header-Content-Length: abc`, a negative or too small body": (
        [lie("abc"), sized(-4), sized(256, 128), sized(256, 0)],
        500,
        400,
    ),
    "V2 binary: `binary_data_size` beyond the body": ([sized(300)], 200, 400),
    "V2 `outputs` by the signature's names": (
        [make_v2(make_tensor("image", IMAGE), outputs=[{"name": "output"}])],
        400,
        200,
    ),
    "a version in the path": (
        [make_v2(make_tensor("image", IMAGE), path="/v2/models/digits/versions/1/infer")],
        501,
        200,
    ),
    "compressed body": (
        [(V1, gzip.compress(json.dumps({"instances": [ROW]}).encode()), {**JSON, "content-encoding": "gzip"})],
        400,
        200,
    ),
    "load of a model that is nowhere": ([("/v2/repository/models/nowhere/load", b"", {})], 503, 404),
}
# Rows without a status; each has a test of its own.
OTHER = {
    "V2 without `id`": "test_id_is_clients",
    "V2 `outputs` named, with `binary_data_output` for all": "test_form_of_all_outputs_holds_for_named_ones",
    "the model is not loaded yet": "test_model_that_is_not_loaded_is_503",
    "numbers in JSON": "test_numbers_are_shortest_text",
    "TLS with the default port": "tests/unit/mindsporeserver/test_tls.py",
}


def read_table() -> dict[str, tuple[str, str]]:
    text = DOCS.read_text().partition("### Differences from a hand-written kserve.Model")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: (row[1], row[2]) for row in rows[2:]}


@pytest.mark.parametrize("row", WRONG)
def test_documented_differences_from_kserve_model(world: World, row: str) -> None:
    requests, theirs, ours = WRONG[row]
    for request in requests:
        found = world.ask(world.stock, request)
        assert found.status_code == theirs, (request, found.text)
        found = world.ask(world.ours, request)
        assert found.status_code == ours, (request, found.text)
        assert ours < 400 or json.loads(found.content)["error"]
    documented = read_table()[row]
    assert documented[0] == str(theirs)
    assert documented[1].startswith(str(ours))


def test_documented_table_is_whole() -> None:
    assert set(read_table()) == {*WRONG, *OTHER}


@pytest.mark.parametrize("name", ["V1 lists", "V1 more rows than a batch", "V2 flat", "binary"])
def test_values_equal_those_of_kserve_model(world: World, name: str) -> None:
    request = GOOD[name]
    theirs, ours = split(world.ask(world.stock, request))[0], split(world.ask(world.ours, request))[0]
    for answer in (theirs, ours):
        if "outputs" in answer:
            answer["outputs"][0].pop("name")
            answer.pop("id")
            answer.pop("model_version", None)
    numbers = [[value for value in walk(answer) if not isinstance(value, str)] for answer in (theirs, ours)]
    np.testing.assert_allclose(numbers[0], numbers[1], atol=1e-5)


def test_id_is_clients(world: World) -> None:
    for request, expected in ((GOOD["V2 id"], "42"), (GOOD["V2 flat"], "")):
        assert json.loads(world.ask(world.ours, request).content)["id"] == expected
    assert len(json.loads(world.ask(world.stock, GOOD["V2 flat"]).content)["id"]) > 30


def test_form_of_all_outputs_holds_for_named_ones(world: World) -> None:
    tensors = [make_tensor(name, array) for name, array in PAIR.items()]
    outputs = [{"name": "output_0", "parameters": {"binary_data": False}}, {"name": "output_1"}]
    request = make_v2(*tensors, path=P2, parameters={"binary_data_output": True}, outputs=outputs)
    ours, theirs = world.ask(world.ours, request), world.ask(world.kserve, request)
    head, tail = split(ours)
    assert ["data" in output for output in head["outputs"]] == [True, False]
    assert tail == (PAIR["index"] + 1).tobytes()
    assert "inference-header-content-length" not in theirs.headers


def test_numbers_are_shortest_text(world: World) -> None:
    ours, theirs = (world.ask(application, GOOD["V1 lists"]).content for application in (world.ours, world.stock))
    assert len(ours) < 0.8 * len(theirs)
    first, second = (np.array(json.loads(content)["predictions"]) for content in (ours, theirs))
    assert np.array_equal(first.astype(np.float32), second.astype(np.float32))


def test_model_that_is_not_loaded_is_503(world: World) -> None:
    for path, body, headers in (GOOD["V1 lists"], GOOD["V2 flat"]):
        found = world.ask(world.unloaded, (path, body, {**headers, "x-request-id": "7"}))
        assert (found.status_code, found.headers["retry-after"], found.headers["x-request-id"]) == (503, "1", "7")
        assert json.loads(found.content) == {"error": "Model with name digits is not ready."}
    ready: Request = ("/v2/health/ready", b"", {})
    assert world.ask(world.stock, ready, "GET").status_code == 200
    world.repository.loaded = False
    try:
        assert world.ask(world.ours, ready, "GET").status_code == 503
    finally:
        world.repository.loaded = True
    assert world.ask(world.ours, ready, "GET").status_code == 200


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/models/cats:predict", "Model with name cats does not exist."),
        ("/v2/models/cats/infer", "Model with name cats does not exist."),
        ("/v2/models/cats/versions/1/infer", "Model with name cats does not exist."),
        ("/v2/models/digits/versions/2/infer", "Model with name digits has no version 2."),
        ("/v2/models/..%2Fdigits/infer", ""),
    ],
)
def test_unknown_models_and_versions(world: World, path: str, message: str) -> None:
    found = world.ask(world.ours, make_json(path, {"instances": [ROW]}, **{"x-request-id": "a b"}))
    assert found.status_code == 404
    if message:
        assert json.loads(found.content) == {"error": message}
        assert found.headers["x-request-id"] == "a b"


@pytest.mark.parametrize("name", ["V1 lists", "V2 id", "binary both ways"])
def test_request_id_comes_back(world: World, name: str) -> None:
    path, body, headers = GOOD[name]
    assert "x-request-id" not in world.ask(world.ours, GOOD[name]).headers
    for content, status in ((body, 200), (b"{", 400)):
        found = world.ask(world.ours, (path, content, {**headers, "x-request-id": "id-42"}))
        assert (found.status_code, found.headers["x-request-id"]) == (status, "id-42")


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", lambda body: gzip.compress(body[:40]) + gzip.compress(body[40:])),
        ("gzip", lambda body: gzip.compress(b"") * 1023 + gzip.compress(body)),
        ("deflate", zlib.compress),
        ("Deflate", lambda body: (bare := zlib.compressobj(wbits=-15)).compress(body) + bare.flush()),
        ("identity", bytes),
    ],
    ids=["gzip", "several members", "most members", "zlib", "bare deflate", "identity"],
)
def test_compressed_bodies_are_inflated(world: World, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    for name in ("V1 lists", "V2 flat", "binary"):
        path, body, headers = GOOD[name]
        found = world.ask(world.ours, (path, compress(body), {**headers, "content-encoding": encoding}))
        assert (found.status_code, found.content) == (200, world.ask(world.ours, GOOD[name]).content)
    assert world.ours.bodies.buffered_bytes == 0


@pytest.mark.parametrize(
    ("encoding", "body", "status", "message"),
    [
        ("br", b"{}", 415, "Content-Encoding: must be gzip, deflate or identity, got 'br'"),
        ("gzip, identity", b"{}", 415, "got 'gzip, identity'"),
        ("gzip", b"{}", 400, "body: not valid gzip data"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-1], 400, "body: not valid gzip data: incomplete"),
        ("deflate", zlib.compress(b"{}")[:-1], 400, "body: not valid deflate data: incomplete"),
        ("gzip", gzip.compress(bytes(100_000)), 413, "at most 50000 bytes once it is inflated"),
        ("gzip", gzip.compress(bytes(30_000)) * 2, 413, "at most 50000 bytes once it is inflated"),
        ("gzip", gzip.compress(b"") * 1025, 413, "body: must have at most 1024 compressed members"),
        ("gzip", gzip.compress(b"{}") + b"rest", 400, "body: not valid gzip data"),
    ],
    ids=[
        *("another", "two", "no gzip", "cut gzip", "cut deflate", "large", "large in sum", "many members"),
        "data after the last member",
    ],
)
def test_compressed_bodies_that_are_refused(
    world: World, encoding: str, body: bytes, status: int, message: str
) -> None:
    application = world.build(max_bytes=50_000)
    found = world.ask(application, (V1, body, {**JSON, "content-encoding": encoding}))
    assert (found.status_code, message in found.json()["error"]) == (status, True), found.text
    assert application.bodies.buffered_bytes == 0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "content", [bytes(5 << 20), random.Random(1).randbytes(1 << 20) + b"a" * 70_000], ids=["zeros", "noise"]
)
def test_large_compressed_bodies_are_inflated_whole(content: bytes, count: int) -> None:
    from mindsporeserver.bodies import BodyReader, RequestLimits

    size = -(-len(content) // count)
    body = b"".join(gzip.compress(content[start : start + size]) for start in range(0, len(content), size))
    assert asyncio.run(BodyReader(RequestLimits()).inflate(body, "gzip")) == content


def test_inflation_ends_at_deadline(world: World) -> None:
    application = world.build()
    headers = {**JSON, "content-encoding": "gzip", "x-envoy-expected-rq-timeout-ms": "1"}
    found = world.ask(application, (V1, gzip.compress(bytes(30 << 20)), headers))
    assert (found.status_code, "deadline of the request passed" in found.text) == (503, True)
    assert application.bodies.buffered_bytes == 0


def test_inflation_ends_when_its_client_leaves(world: World) -> None:
    application = world.build()
    connection = SimpleNamespace(task=None, is_lost=False)
    client = Client(content_encoding="gzip")
    client.scope["extensions"] = {EXTENSION: connection}
    client.say(gzip.compress(bytes(30 << 20)), more=False)

    async def leave() -> None:
        asking = asyncio.create_task(client.ask(application))
        while application.bodies.buffered_bytes < 1 << 20:
            await asyncio.sleep(0)
        connection.is_lost = True
        connection.task.cancel()
        await asking

    world.run(leave())
    assert (client.status, application.bodies.buffered_bytes) == (0, 0)


CLOUD = {"ce-specversion": "1.0", "ce-id": "36077800", "ce-source": "io.test", "ce-type": "digits"}


def test_cloud_events(world: World) -> None:
    expected = split(world.ask(world.ours, GOOD["V1 lists"]))[0]
    path, body, headers = GOOD["V1 lists"]
    found = world.ask(world.ours, (path, body, {**headers, **CLOUD}))
    assert found.status_code == 200
    assert found.headers["ce-specversion"] == "1.0"
    assert is_same(json.loads(found.content), expected)
    event = {key[3:]: value for key, value in CLOUD.items()}
    event |= {"time": "2026-01-01T00:00:00Z", "data": json.loads(body)}
    structured = {"content-type": "application/cloudevents+json"}
    found = world.ask(world.ours, (path, json.dumps(event).encode(), structured))
    assert found.status_code == 200
    assert is_same(json.loads(found.content)["data"], expected)
    for value in (b"{", b'{"instances": 3}', b"[]"):
        assert world.ask(world.ours, (path, value, {**headers, **CLOUD})).status_code == 400
        assert world.ask(world.ours, (path, value, structured | CLOUD)).status_code == 400
    # The library reads an event without a known ce-specversion by Python's json module.
    for value in (b"[" * 10_000, b'"\\ud800"'):
        found = world.ask(world.ours, (path, value, headers | {"ce-id": "1"}))
        assert (found.status_code, found.json()["error"][:20]) == (400, "body: not valid JSON")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/models",
        "/v1/models/digits",
        "/v2/models/digits/ready",
        "/v2/models",
        "/v2/health/live",
        "/v2/health/ready",
    ],
)
def test_other_routes_are_kserves(world: World, path: str) -> None:
    ours, theirs = (world.ask(application, (path, b"", {}), "GET") for application in (world.ours, world.kserve))
    assert (ours.status_code, ours.content) == (200, theirs.content)
    head = world.ask(world.ours, (path, b"", {}), "HEAD")
    assert (head.status_code, head.content, head.headers) == (200, b"", ours.headers)
    assert world.ask(world.ours, (path, b"", {}), "DELETE").status_code == 405


def test_unknown_routes(world: World) -> None:
    for path in ("/v3", "/v2/models/digits/infer/more", "/docs", "/v2/health"):
        found = world.ask(world.ours, (path, b"", {}), "GET")
        assert (found.status_code, found.json()) == (404, {"error": "Not Found"})
        assert world.ask(world.ours, (path, b"", {}), "HEAD").status_code == 404
    assert world.ask(world.ours, (V2, b"", {}), "HEAD").status_code == 405
    assert world.ask(world.ours, ("/v2/models/", b"", {}), "GET").json() == {"models": ["digits", "pair", "sequence"]}


def test_server_metadata_names_this_server(world: World) -> None:
    found = world.ask(world.ours, ("/v2", b"", {}), "GET").json()
    assert (found["name"], found["version"]) == ("mindsporeserver", version("kfp-mindspore"))
    assert {"binary_tensor_data", "model_repository_extension"} <= set(found["extensions"])


def test_explain_is_not_supported(world: World) -> None:
    for name, status in (("digits", 501), ("cats", 404)):
        assert (
            world.ask(world.ours, make_json(f"/v1/models/{name}:explain", {"instances": [ROW]})).status_code == status
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [("classification", 3), ("class_count", 3), ("shared_memory_region", "r"), ("shared_memory_byte_size", 256)],
)
def test_parameters_of_unsupported_extensions_are_refused(world: World, field: str, value: Any) -> None:
    extension = {"parameters": {field: value}}
    for request in (
        make_v2(make_tensor("image", IMAGE), **extension),
        make_v2(make_tensor("image", IMAGE, **extension)),
        make_v2(make_tensor("image", IMAGE), outputs=[{"name": "output", **extension}]),
    ):
        found = world.ask(world.ours, request)
        assert (found.status_code, f"{field}: this protocol extension" in found.text) == (400, True), found.text


def test_response_has_no_null(world: World) -> None:
    assert b"null" not in world.ask(world.ours, GOOD["V2 flat"]).content


def test_versions_and_index(world: World) -> None:
    found = world.ask(world.ours, ("/v2/models/digits/versions/1", b"", {}), "GET")
    assert (found.status_code, found.json()["versions"]) == (200, ["1"])
    found = world.ask(world.ours, ("/v2/models/digits/versions/1/ready", b"", {}), "GET")
    assert (found.status_code, found.json()) == (200, {"name": "digits", "ready": True})
    for path in ("/v2/models/digits/versions/9", "/v2/models/digits/versions/9/ready"):
        assert world.ask(world.ours, (path, b"", {}), "GET").status_code == 404
    for method in ("GET", "POST"):
        found = world.ask(world.ours, ("/v2/repository/index", b"{}", {}), method)
        assert [entry["name"] for entry in found.json()] == ["digits", "pair", "sequence"]


def test_index_lists_only_ready_models_on_request(world: World) -> None:
    index = "/v2/repository/index"
    for body, count in ((b'{"ready": true}', 0), (b'{"ready": false}', 3), (b"", 3)):
        assert len(world.ask(world.unloaded, (index, body, {})).json()) == count
        assert len(world.ask(world.ours, (index, body, {})).json()) == 3
    for body in (b'{"ready": 1}', b"[]", b"{"):
        assert world.ask(world.ours, (index, body, {})).status_code == 400


@pytest.mark.parametrize("parameters", [{"config": "{}"}, {"file:1/model.mindir": "AAAA"}, ["x"]])
def test_model_is_loaded_as_it_is_on_disk(world: World, parameters: Any) -> None:
    found = world.ask(world.ours, make_json("/v2/repository/models/digits/load", {"parameters": parameters}))
    assert (found.status_code, "load with overrides is not supported" in found.text) == (400, True)


def test_models_that_other_processes_serve_too_are_fixed(world: World) -> None:
    application = world.build(is_fixed=True)
    for action in ("load", "unload"):
        found = world.ask(application, (f"/v2/repository/models/digits/{action}", b"", {}))
        assert (found.status_code, "the models of a server with --workers are fixed" in found.text) == (409, True)


@pytest.mark.parametrize(
    "path", ["/v2/repository/models/{}/load", "/v2/repository/models/{}/unload", V2.replace("digits", "{}")]
)
def test_long_name_is_not_found_by_short_message(world: World, path: str) -> None:
    for length in (255, 256, 9000):
        found = world.ask(world.ours, (path.format("a" * length), b"{}", JSON))
        assert (found.status_code, len(found.content) < 300) == (404, True), found.text


def test_server_that_shuts_down_is_not_ready_and_closes_connections(world: World) -> None:
    application = world.build()
    application._state.is_draining = True
    found = world.ask(application, (V1, WHOLE, JSON))
    assert (found.status_code, found.headers["connection"]) == (200, "close")
    assert world.ask(application, ("/v2/health/ready", b"", {}), "GET").status_code == 503
    assert world.ask(application, ("/v2/health/live", b"", {}), "GET").status_code == 200


class Client:
    """One who sends a request in pieces: the `receive` and `send` of an ASGI server."""

    def __init__(self, path: str = V1, **headers: str) -> None:
        pairs = [(key.replace("_", "-").encode(), value.encode()) for key, value in {**JSON, **headers}.items()]
        self.scope = {"type": "http", "method": "POST", "path": path, "headers": pairs}
        self.pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    def say(self, content: bytes, more: bool = True) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": content, "more_body": more})

    def leave(self) -> None:
        self.pieces.put_nowait({"type": "http.disconnect"})

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message["body"]

    async def ask(self, application: Any) -> Client:
        await application(self.scope, self.pieces.get, self.send)
        return self


WHOLE = json.dumps({"instances": [ROW]}).encode()


def test_body_in_pieces(world: World) -> None:
    client = Client()
    for start in range(0, len(WHOLE), 7):
        client.say(WHOLE[start : start + 7])
    client.say(b"", more=False)
    world.run(client.ask(world.ours))
    assert client.status == 200
    assert is_same(json.loads(client.body), json.loads(world.ask(world.ours, (V1, WHOLE, JSON)).content))


def test_body_that_is_too_large(world: World) -> None:
    application = world.build(max_bytes=len(WHOLE))
    assert world.ask(application, (V1, WHOLE, JSON)).status_code == 200
    found = world.ask(application, (V1, WHOLE + b" ", JSON))
    assert (found.status_code, found.headers["connection"]) == (413, "close")
    assert found.json() == {"error": f"body: must have at most {len(WHOLE)} bytes"}
    client = Client()
    client.say(b" " * 100)
    client.say(b" " * len(WHOLE))
    # The response precedes the rest of the body.
    world.run(client.ask(application))
    assert (client.status, client.headers[b"connection"]) == (413, b"close")


def test_body_that_does_not_arrive_in_time(world: World) -> None:
    application = world.build(body_seconds=0.05)
    client = Client()
    client.say(WHOLE[:20])
    world.run(client.ask(application))
    assert (client.status, client.headers[b"connection"]) == (408, b"close")
    assert json.loads(client.body) == {"error": "body: must arrive within 0.05 s"}
    assert world.ask(application, (V1, WHOLE, JSON)).status_code == 200


def test_client_that_leaves_before_its_body_is_whole(world: World) -> None:
    before = world.count("request_failures", model_name="digits", reason="cancelled")
    for pieces in ([b"{"], []):
        client = Client()
        for piece in pieces:
            client.say(piece)
        client.leave()
        world.run(client.ask(world.ours))
        assert client.status == 0
    assert world.count("request_failures", model_name="digits", reason="cancelled") == before + 2


def test_bodies_of_all_clients_together(world: World) -> None:
    application = world.build(max_buffered_bytes=2 * len(WHOLE))

    async def story() -> None:
        slow = [Client(), Client()]
        for client in slow:
            client.say(WHOLE[:-1])
        tasks = [asyncio.create_task(client.ask(application)) for client in slow]
        while any(not client.pieces.empty() for client in slow):
            await asyncio.sleep(0)
        third = Client()
        third.say(WHOLE[:10])
        await third.ask(application)
        assert (third.status, third.headers[b"retry-after"]) == (503, b"1")
        assert "bytes are queued, the limit is" in json.loads(third.body)["error"]
        slow[0].say(WHOLE[-1:], more=False)
        await tasks[0]
        fourth = Client()
        fourth.say(WHOLE[:10])
        fourth.say(WHOLE[10:], more=False)
        await fourth.ask(application)
        slow[1].leave()
        await tasks[1]
        assert (slow[0].status, slow[1].status, fourth.status) == (200, 0, 200)
        assert application.bodies.buffered_bytes == 0

    world.run(story())


@pytest.mark.parametrize(
    ("value", "status"),
    [("1", 503), ("0", 200), ("60000", 200), ("soon", 200), ("-1", 200), ("9" * 30, 200), ("", 200)],
)
def test_clients_own_time_limit(world: World, value: str, status: int) -> None:
    # The graph is busy for longer than the timeout of one millisecond, and than a busy machine takes to send.
    held = threading.Event()
    if status == 503:
        world.graphs.put(lambda: (held.wait(1), None)[1])
    found = world.ask(world.ours, (V1, WHOLE, {**JSON, "x-envoy-expected-rq-timeout-ms": value}))
    assert found.status_code == status, found.text
    if status == 503:
        assert found.headers["retry-after"] == "1"
        assert "deadline of the request passed" in found.json()["error"]


def test_servers_time_limit_and_none(world: World) -> None:
    assert world.ask(world.build(timeout_seconds=1e-9), (V1, WHOLE, JSON)).status_code == 503
    assert world.ask(world.build(timeout_seconds=0), (V1, WHOLE, JSON)).status_code == 200
    # A client cannot raise the server's limit.
    unlimited = (V1, WHOLE, {**JSON, "x-envoy-expected-rq-timeout-ms": "0"})
    assert world.ask(world.build(timeout_seconds=1e-9), unlimited).status_code == 503


def test_large_bodies_are_read_beside_event_loop(world: World) -> None:
    images = np.random.default_rng(1).random((900, 1, 8, 8), np.float32)
    body = json.dumps({"instances": images.tolist()}).encode()
    assert len(body) > 256 << 10
    found = world.ask(world.ours, (V1, body, JSON))
    raw = world.ask(world.ours, make_binary(V2, {"image": images.repeat(2, axis=0)[:1000]}, ["image"]))
    assert (found.status_code, raw.status_code) == (200, 200)
    first = np.array(found.json()["predictions"], np.float32).repeat(2, axis=0)[:1000]
    second = np.array(raw.json()["outputs"][0]["data"], np.float32).reshape(1000, 10)
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert world.ask(world.ours, (V1, body[:-1], JSON)).status_code == 400


def test_more_rows_than_queue_holds(world: World) -> None:
    images = np.zeros((1025, 1, 8, 8), np.float32)
    found = world.ask(world.ours, make_binary(V2, {"image": images}, ["image"]))
    assert (found.status_code, "at most 1024 rows, got 1025" in found.text) == (413, True)


def test_requests_are_counted(world: World) -> None:
    def count() -> list[float]:
        protocols = ("v1", "v2", "v2-binary")
        return [world.count("requests", model_name="digits", protocol=protocol) for protocol in protocols]

    before = count()
    for name in ("V1 lists", "V2 flat", "V2 flat", "binary"):
        world.ask(world.ours, GOOD[name])
    assert [after - earlier for after, earlier in zip(count(), before, strict=True)] == [1, 2, 1]
    invalid = world.count("request_failures", model_name="digits", reason="invalid")
    world.ask(world.ours, (V1, b"{", JSON))
    assert world.count("request_failures", model_name="digits", reason="invalid") == invalid + 1


def test_metrics_have_requested_format(world: World) -> None:
    plain = world.ask(world.ours, ("/metrics", b"", {}), "GET")
    assert plain.headers["content-type"].startswith("text/plain")
    assert re.search(r'mindsporeserver_requests_total\{model_name="digits",protocol="v1"\} [1-9]', plain.text)
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    assert world.ask(world.ours, ("/metrics", b"", accept), "GET").text.rstrip().endswith("# EOF")


def test_defect_is_json_500_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*arguments: Any, **options: Any) -> Any:
        raise KeyError("a secret")

    monkeypatch.setattr(world.repository.get_model("digits"), "infer", fail)
    before = world.count("request_failures", model_name="digits", reason="error")
    found = world.ask(world.ours, (V1, WHOLE, JSON))
    assert (found.status_code, found.json()) == (
        500,
        {"error": "the server failed with KeyError; its log has the trace"},
    )
    assert found.headers["content-type"] == "application/json"
    assert world.count("request_failures", model_name="digits", reason="error") == before + 1
    assert world.ours.bodies.buffered_bytes == 0
    assert "a secret" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "attribute"),
    [
        ("GET", "/", "is_alive"),
        ("GET", "/v2", "describe"),
        ("GET", "/v2/health/live", "is_alive"),
        ("GET", "/v2/health/ready", "is_ready"),
        ("GET", "/v2/models", "repository"),
        ("GET", "/v2/models/digits", "describe_model"),
        ("GET", "/v2/models/digits/ready", "repository"),
        ("GET", "/metrics", "metrics"),
        ("POST", "/v2/repository/index", "repository"),
        ("POST", "/v2/repository/models/digits/load", "load"),
        ("POST", "/v2/repository/models/digits/unload", "unload"),
        ("POST", "/v2/models/absent/infer", "telemetry"),
        ("POST", "/v1/models/digits:explain", "repository"),
    ],
)
def test_defect_is_json_500_in_every_route(world: World, method: str, path: str, attribute: str) -> None:
    application = world.build()

    class Broken:
        routes: ClassVar[dict[str, Any]] = {}

        def __call__(self, *arguments: Any) -> Any:
            raise KeyError("a secret")

        def __getattr__(self, name: str) -> Any:
            raise KeyError("a secret")

    setattr(application._state, attribute, Broken())
    found = world.ask(application, (path, b"", {}), method)
    assert (found.status_code, found.json()) == (
        500,
        {"error": "the server failed with KeyError; its log has the trace"},
    )


def test_inconsistent_raw_bytes_are_400(world: World) -> None:
    for request in (lie("0"), lie(str(len(HEAD) - 1)), sized(256, 300), sized(1 << 40)):
        assert world.ask(world.ours, request).status_code == 400
    poison = struct.pack("<f", float("nan")) * 64
    path, body, headers = GOOD["binary"]
    found = world.ask(world.ours, (path, body[:-256] + poison, headers))
    assert (found.status_code, "finite" in found.text) == (400, True)
