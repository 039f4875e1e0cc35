"""The log that a real server writes, by each protocol and to each kind of place."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service
from tests.support.http_server import Handler, Server
from tests.support.models.table_models import export_table, make_rows, write_csv
from tests.support.remote.object_store import BUCKET, ObjectStore
from tests.support.training.jobs import eventually

pytestmark = pytest.mark.mindspore

TYPE = "org.kubeflow.serving.inference."
KEY = "pepper"
ROWS = [
    {"age": 41, "income": 3.25, "garden": True, "city": "Oslo", "customer": "Ada"},
    {"age": 30, "income": 1.5, "garden": False, "city": "Rome", "customer": "Bob"},
]
FORMS = ("v1", "v2", "binary", "grpc")


def make_flag(url: Any, **options: Any) -> str:
    return "--logger=" + json.dumps({"url": str(url), **options})


def read_events(path: Path, count: int) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]] | None:
        files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path] if path.exists() else []
        events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return events if len(events) >= count else None

    found: list[dict[str, Any]] = eventually(read, 30)
    assert len(found) == count
    return found


def find(events: list[dict[str, Any]], request_id: str) -> tuple[Any, Any]:
    """Return the bodies of a request and its response."""
    by_type = {event["type"]: event["data"] for event in events if event["id"] == request_id}
    return by_type.get(f"{TYPE}request"), by_type.get(f"{TYPE}response")


def make_tensors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = {"age": "INT64", "income": "FP64", "garden": "BOOL", "city": "BYTES", "customer": "BYTES"}
    return [
        {"name": name, "shape": [len(rows)], "datatype": kind, "data": [row[name] for row in rows]}
        for name, kind in kinds.items()
    ]


def encode_tensor(tensor: dict[str, Any]) -> bytes:
    if tensor["datatype"] == "BYTES":
        texts = [text.encode() for text in tensor["data"]]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    dtype = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?", "FP32": "<f4"}[tensor["datatype"]]
    return np.array(tensor["data"], dtype).tobytes()


def ask(server: Any, model: str, form: str, tensors: list[dict[str, Any]], rows: Any, request_id: str) -> Any:
    """Send one request in a form; return the outputs' data."""
    headers = {"x-request-id": request_id}
    if form == "v1":
        status, found, _ = server.request(f"/v1/models/{model}:predict", {"instances": rows}, headers)
        assert status == 200, found
        return found
    if form == "grpc":
        inputs = [
            pb.ModelInferRequest.InferInputTensor(name=one["name"], datatype=one["datatype"], shape=one["shape"])
            for one in tensors
        ]
        request = pb.ModelInferRequest(
            model_name=model, id=request_id, inputs=inputs, raw_input_contents=map(encode_tensor, tensors)
        )
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            answer = GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
        return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
    body: Any = {"inputs": tensors}
    if form == "binary":
        contents = [encode_tensor(tensor) for tensor in tensors]
        heads = [
            {**{key: one[key] for key in one if key != "data"}, "parameters": {"binary_data_size": len(content)}}
            for one, content in zip(tensors, contents, strict=True)
        ]
        head = json.dumps({"inputs": heads, "parameters": {"binary_data_output": True}}).encode()
        headers["Inference-Header-Content-Length"] = str(len(head))
        body = head + b"".join(contents)
    status, found, sent = server.request(f"/v2/models/{model}/infer", body, headers)
    assert status == 200, found
    if form == "v2":
        return found["outputs"][0]["data"]
    length = next(int(value) for name, value in sent.items() if name.lower() == "inference-header-content-length")
    return np.frombuffer(found[length:], np.float32).tolist()


@pytest.fixture(scope="module")
def digits(models: Path, start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that logs everything in a file."""
    log = tmp_path_factory.mktemp("log") / "deep" / "all.jsonl"
    server = start_server(models / "free", "digits", make_flag(log, attributes={"namespace": "team"}))
    server.wait("/v2/health/ready")
    return server, log


def test_each_protocol_logs_the_bodies(digits: Any) -> None:
    server, log = digits
    pixels = np.arange(128).reshape(2, 1, 8, 8) / 128
    name = server.request("/v2/models/digits")[1]["inputs"][0]["name"]
    tensor = {"name": name, "shape": [2, 1, 8, 8], "datatype": "FP32", "data": pixels.ravel().tolist()}
    answers = {form: ask(server, "digits", form, [tensor], pixels.tolist(), f"id-{form}") for form in FORMS}
    events = read_events(log, 8)
    for form in FORMS:
        request, response = find(events, f"id-{form}")
        if form == "v1":
            assert (request, response) == ({"instances": pixels.tolist()}, answers["v1"])
            continue
        assert [(one["name"], one["shape"], one["datatype"]) for one in request["inputs"]] == [
            (name, [2, 1, 8, 8], "FP32")
        ]
        np.testing.assert_allclose(request["inputs"][0]["data"], tensor["data"], atol=1e-7)
        np.testing.assert_allclose(response["outputs"][0]["data"], answers[form], atol=1e-6)
    event = events[0]
    assert (event["specversion"], event["datacontenttype"], event["inferenceservicename"]) == (
        *("1.0", "application/json"),
        "digits",
    )
    assert (event["namespace"], event["component"], event["endpoint"]) == ("team", "predictor", "default")
    assert event["time"].endswith("Z")


def test_client_learns_the_id_and_refused_requests_are_not_logged(digits: Any) -> None:
    server, log = digits
    before = len(log.read_text().splitlines()) if log.exists() else 0
    zeros = {"instances": np.zeros((1, 1, 8, 8)).tolist()}
    assert server.request("/v1/models/digits:predict", {"instances": [[1]]})[0] == 400
    _, _, headers = server.request("/v1/models/digits:predict", zeros)
    made = next(value for name, value in headers.items() if name.lower() == "x-request-id")
    pretty = json.dumps(zeros, indent=1).encode()
    assert (
        server.request(
            "/v1/models/digits:predict",
            pretty,
            {"ce-id": "chosen", "ce-specversion": "1.0", "ce-type": "t", "ce-source": "s"},
        )[0]
        == 200
    )
    events = read_events(log, before + 4)[before:]
    assert [event["id"] for event in events] == [made, made, "chosen", "chosen"]
    assert find(events, "chosen")[0] == zeros


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    write_csv(root / "table.csv", make_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))
        export_table(root, "mean", {"missing": "mean", "ids": ["id"]})
    return root / "mean"


def test_columns_are_left_out_and_hashed(table: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    flag = make_flag(tmp_path / "log", omit=["income"], hash=["city", "age"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINDSPORESERVER_LOG_KEY", KEY)
        server = start_server(table, "mean", flag)
    server.wait("/v2/health/ready", 120)
    for form in FORMS:
        ask(server, "mean", form, make_tensors(ROWS), ROWS, form)
    # Tensors of the columns, packed by the client.
    packed = {one["name"]: one for one in server.request("/v2/models/mean")[1]["inputs"]}
    inputs = []
    for name, one in packed.items():
        data = ["Oslo"] if one["datatype"] == "BYTES" else [1.0] * int(np.prod([abs(size) for size in one["shape"]]))
        inputs.append({"name": name, "shape": [1, *one["shape"][1:]], "datatype": one["datatype"], "data": data})
    assert server.request("/v2/models/mean/infer", {"inputs": inputs}, {"x-request-id": "packed"})[0] == 200
    events = read_events(tmp_path / "log", 10)

    def digest(value: str) -> str:
        return hmac.new(KEY.encode(), value.encode(), hashlib.sha256).hexdigest()

    cities, ages = [digest("Oslo"), digest("Rome")], [digest("41"), digest("30")]
    for form in FORMS:
        request, response = find(events, form)
        assert response.get("predictions") or response["outputs"]
        if form == "v1":
            assert request == {
                "instances": [
                    {"age": age, "garden": row["garden"], "city": city}
                    for row, city, age in zip(ROWS, cities, ages, strict=True)
                ]
            }
            continue
        found = {one["name"]: (one["shape"], one["datatype"], one["data"]) for one in request["inputs"]}
        assert found == {
            "age": ([2], "BYTES", ages),
            "garden": ([2], "BOOL", [True, False]),
            "city": ([2], "BYTES", cities),
        }
    assert not {"income", *set(packed) - {"city", "garden", "age"}} & {
        one["name"] for one in find(events, "packed")[0]["inputs"]
    }
    assert "Ada" not in (text := json.dumps(events))
    assert "Oslo" not in text


@pytest.mark.parametrize("field", ["omit", "hash"])
def test_unknown_column_is_refused_at_load(
    models: Path, start_server: Callable[..., Any], tmp_path: Path, field: str
) -> None:
    server = start_server(models / "free", "digits", make_flag(tmp_path, **{field: ["salary"]}))
    assert server.process.wait(120) == 2
    assert f"model digits: logger.{field}: must be one of " in server.log.read_text()
    assert "got 'salary'" in server.log.read_text()


class Endpoint:
    """An endpoint that answers as it is told.

    Args:
        status: Status of its answers.
        seconds: How long it takes for each.
    """

    def __init__(self, status: int = 202, seconds: float = 0.0) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        outer, self.released = self, threading.Event()

        class Recorder(Handler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.read_body()
                outer.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                outer.released.wait(seconds)
                self.respond(status)

        self.server = Server(Recorder)


@pytest.fixture
def make_endpoint() -> Iterator[Callable[..., Endpoint]]:
    made: list[Endpoint] = []

    def make(**options: Any) -> Endpoint:
        made.append(Endpoint(**options))
        return made[-1]

    yield make
    for endpoint in made:
        endpoint.released.set()
        endpoint.server.close()


def count(server: Any, result: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
        found = re.search(rf'mindsporeserver_log_events_total{{result="{result}"}} (\S+)', response.read().decode())
    assert found is not None
    return int(float(found[1]))


def predict(server: Any, times: int) -> float:
    """Send requests one after another; return their seconds."""
    body = {"instances": np.zeros((1, 1, 8, 8)).tolist()}
    start = time.monotonic()
    for _ in range(times):
        assert server.request("/v1/models/digits:predict", body)[0] == 200
    return time.monotonic() - start


def test_endpoint_gets_events_as_from_kserves_agent(
    models: Path, start_server: Callable[..., Any], make_endpoint: Callable[..., Endpoint]
) -> None:
    endpoint = make_endpoint()
    server = start_server(models / "free", "digits", make_flag(f"{endpoint.server.url}/events?a=b", mode="response"))
    server.wait("/v2/health/ready")
    _, found, _ = server.request(
        "/v1/models/digits:predict", {"instances": np.zeros((1, 1, 8, 8)).tolist()}, {"x-request-id": "one"}
    )
    eventually(lambda: endpoint.received, 30)
    ((headers, body),) = endpoint.received
    assert json.loads(body) == found
    assert headers["content-type"] == "application/json"
    wanted = {"specversion": "1.0", "id": "one", "type": f"{TYPE}response", "inferenceservicename": "digits"}
    assert {name: headers[f"ce-{name}"] for name in wanted} == wanted
    eventually(lambda: (count(server, "written"), count(server, "lost")) == (1, 0), 10)


@pytest.mark.parametrize("endpoint_options", [None, {"status": 500}, {"seconds": 60}], ids=["down", "500", "slow"])
def test_broken_endpoint_slows_no_request_and_loses_events(
    models: Path,
    start_server: Callable[..., Any],
    make_endpoint: Callable[..., Endpoint],
    digits: Any,
    endpoint_options: dict[str, Any] | None,
) -> None:
    url = "http://127.0.0.1:9" if endpoint_options is None else make_endpoint(**endpoint_options).server.url
    server = start_server(models / "free", "digits", make_flag(url))
    server.wait("/v2/health/ready")
    predict(server, 5)
    predict(digits[0], 5)
    # An endpoint that takes a minute: waiting for it would take 50.
    assert predict(server, 50) < 10 * predict(digits[0], 50) + 5
    if endpoint_options == {"seconds": 60}:
        # A batch is given up after 5 s.
        eventually(lambda: count(server, "lost") >= 5, 30)
    else:
        eventually(lambda: count(server, "lost") == 110, 30)
    assert count(server, "written") == 0
    server.wait_for_log("the log of requests lost ")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0


def test_object_store_gets_lines(models: Path, start_server: Callable[..., Any]) -> None:
    store = ObjectStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", store.key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", store.secret)
        patch.setenv("AWS_ENDPOINT_URL", store.url)
        server = start_server(models / "free", "digits", make_flag(f"s3://{BUCKET}/log", attributes={"namespace": "n"}))
    try:
        server.wait("/v2/health/ready")
        predict(server, 20)
        # The end writes what waits.
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        keys = store.list("log/n/predictor/")
        lines = [json.loads(line) for key in keys for line in store.get(key).splitlines()]
        assert len(lines) == 40
        assert len({line["id"] for line in lines}) == 20
    finally:
        store.close()


def test_service_on_this_machine_logs_a_sample(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = InferenceClient(LocalServingBackend(tmp_path / "home"))
    status = client.deploy(Service("digits", models / "free", logger={"url": "log", "sample": 0.5, "mode": "request"}))
    try:
        assert status.options["logger"]["url"] == str(tmp_path / "log")
        client.predict("digits", np.zeros((1, 1, 8, 8), np.float32))
        for _ in range(59):
            client.predict("digits", np.zeros((1, 1, 8, 8), np.float32))
    finally:
        client.delete("digits")
    lines = [json.loads(line) for file in (tmp_path / "log").iterdir() for line in file.read_text().splitlines()]
    # Of 60 with a probability of 1/2: beyond these once in ten million runs.
    assert 9 <= len(lines) <= 51
    assert {line["type"] for line in lines} == {f"{TYPE}request"}
    assert {(line["inferenceservicename"], line["namespace"]) for line in lines} == {("digits", status.namespace)}
