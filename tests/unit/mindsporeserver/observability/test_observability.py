"""Metrics, log and traces of a real server after a known number of requests."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kfp_mindspore.formats.bundle import TRANSFORM_FILE, ModelBundle, write_bundle
from mindsporeserver.observability.metrics import UNKNOWN_MODEL

pytestmark = pytest.mark.mindspore

V1, V2 = "/v1/models/digits:predict", "/v2/models/digits/infer"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

_GRPC = """
import asyncio, os, sys
from kfp_mindspore.compat.protobuf import load_generated
import grpc
pb = load_generated("kserve.protocol.grpc.grpc_predict_v2_pb2", "serving")

def make(name, rows, shape, pixel=b"\\0"):
    request = pb.ModelInferRequest(model_name="digits", id=name)
    request.inputs.add(name="image", datatype="FP32", shape=shape)
    request.raw_input_contents.append(pixel * (rows * 256))
    return request

async def main(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        if len(sys.argv) == 3:
            metadata = [("traceparent", sys.argv[2])]
            shapes = {"g1": [5, 1, 8, 8], "g2": [5, 8, 8]}
            calls = [infer(make(name, 5, shape), metadata=metadata) for name, shape in shapes.items()]
        else:
            # The transform holds a request with huge pixels.
            calls = [infer(make("gone", 1, [1, 1, 8, 8], pixel=b"\\x7f"))]
            while not os.path.exists(sys.argv[3]):
                await asyncio.sleep(0.01)
            calls[0].cancel()
        for call in calls:
            print((await call.code()).name)

asyncio.run(main(sys.argv[1]))
"""

_TRANSFORM = """
import os, time
from kfp_mindspore.transform import Transform

class Holding(Transform):
    def preprocess(self, inputs):
        if inputs["image"].max() > 1e30:
            open({held!r}, "w").close()
            while os.path.exists({held!r}):
                time.sleep(0.01)
        return inputs

transform = Holding()
"""


@dataclass
class Observed:
    """Metrics, log and traces after the requests of `send_requests`."""

    first: dict[tuple[str, ...], float]
    last: dict[tuple[str, ...], float]
    cancelled: float
    headers: dict[str, dict[str, str]]
    log: list[str]
    receiver: Any
    bundle: ModelBundle


def at(name: str, **labels: str) -> tuple[str, ...]:
    """Return the key of one of the model's series."""
    pairs = sorted({"model_name": "digits", **labels}.items())
    return (f"mindsporeserver_{name}", *(part for pair in pairs for part in pair))


def scrape(server: Any) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
        text = response.read().decode()
    return {
        (sample.name, *(part for item in sorted(sample.labels.items()) for part in item)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def make_rows(count: int) -> list[Any]:
    return np.zeros((count, 1, 8, 8)).tolist()


def send_requests(server: Any) -> dict[str, dict[str, str]]:
    """Send the requests that the tests count; return the headers of the responses by request id."""
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "image",
                    "shape": [4, 1, 8, 8],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 1024},
                }
            ]
        }
    ).encode()
    tensor = {"name": "image", "shape": [2, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 128}
    v1, v2 = {"instances": make_rows(1)}, {"id": "in the body", "inputs": [tensor]}
    requests: list[tuple[int, str, str, Any, dict[str, str]]] = [
        (200, "a1", V1, v1, {}),
        (200, "a2", V1, v1, {"traceparent": f"00-{TRACE}-{PARENT}-01"}),
        (200, "a3", V1, {"instances": make_rows(3)}, {}),
        (200, "b1", V2, v2, {}),
        (200, "c1", V2, head + bytes(1024), {"Inference-Header-Content-Length": str(len(head))}),
        (400, "d1", V1, {"instances": [[1.0]]}, {}),
        (400, "d2 status=200 \u00e9", V2, {"inputs": [{**tensor, "name": "nobody"}]}, {}),
        (415, "d3", V1, v1, {"Content-Encoding": "br"}),
    ]
    headers = {}
    for expected, name, path, body, more in requests:
        status, _, found = server.request(path, body, {"X-Request-Id": name, **more})
        assert status == expected, name
        headers[name] = {key.lower(): value for key, value in found.items()}
    assert server.request(V2, v2)[0] == 200  # the id in the body serves where there is no header
    # The name of an unknown model must not become a label; probes and scrapes must not be logged.
    status, _, found = server.request("/v1/models/what-a-client-likes:predict", v1, {"X-Request-Id": "e1"})
    assert status == 404
    headers["e1"] = {key.lower(): value for key, value in found.items()}
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits", "/v2/models/digits/ready"):
        assert server.request(path)[0] == 200
    assert send_grpc_requests(server) == ["OK", "INVALID_ARGUMENT"]
    return headers


def send_grpc_requests(server: Any, *arguments: str) -> list[str]:
    """Send two requests, or with the file of a held one this, cancelled; return the codes of the responses."""
    command = [sys.executable, "-c", _GRPC, str(server.grpc_port), f"00-{TRACE}-{PARENT}-01", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def holding(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose transform holds a request with huge pixels until its file `held` is removed."""
    directory = tmp_path_factory.mktemp("holding")
    bundle = ModelBundle.open(models / "free")
    with write_bundle(directory / "bundle") as writer:
        shutil.copy(bundle.mindir, writer.directory)
        (writer.directory / TRANSFORM_FILE).write_text(_TRANSFORM.format(held=str(directory / "held")))
        writer.sign(bundle.signature)
    return directory / "bundle"


@pytest.fixture(scope="module")
def observed(otlp: Any, holding: Path, start_server: Callable[..., Any]) -> Iterator[Observed]:
    with otlp.Receiver() as receiver, pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        # Nothing is sent before the end: closing must.
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
        server = start_server(
            holding, "digits", "--allow_model_code=true", "--log_requests=all", "--log_format=json", "--tracing=true"
        )
        server.wait("/v2/health/ready")
        first = scrape(server)
        headers = send_requests(server)
        last = scrape(server)
        held = holding.with_name("held")
        assert send_grpc_requests(server, str(held)) == ["CANCELLED"]
        held.unlink()
        cancelled = scrape(server)[at("request_failures_total", reason="cancelled")]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        yield Observed(
            first,
            last,
            cancelled,
            headers,
            server.log.read_text().splitlines(),
            receiver,
            ModelBundle.open(holding),
        )


def test_metrics_count_each_request(observed: Observed) -> None:
    expected = {
        at("requests_total", protocol="v1"): 5,
        at("requests_total", protocol="v2"): 3,
        at("requests_total", protocol="v2-binary"): 1,
        at("requests_total", protocol="grpc"): 2,
        **{
            at("request_failures_total", reason=name): 0
            for name in ("overload", "deadline", "cancelled", "not_ready", "unsupported", "error")
        },
        at("request_failures_total", reason="invalid"): 4,
        at("requests_total", model_name=UNKNOWN_MODEL, protocol="v1"): 1,
        at("request_failures_total", model_name=UNKNOWN_MODEL, reason="invalid"): 1,
        at("request_seconds_count"): 7,
        at("loads_total", result="ok"): 1,
        at("loads_total", result="failed"): 0,
        at("queue_seconds_count"): 7,
        at("queue_seconds_bucket", le="10.0"): 7,
        at("batch_rows_count"): 7,
        at("batch_rows_sum"): 1 + 1 + 3 + 2 + 4 + 2 + 5,
        at("batch_rows_bucket", le="1.0"): 2,
        at("batch_rows_bucket", le="2.0"): 4,
        at("batch_rows_bucket", le="4.0"): 6,
        at("batch_rows_bucket", le="8.0"): 7,
        at("inference_seconds_count"): 7,
        at("in_flight"): 0,
        at("warm_shapes"): 7,  # 1, 2, 4 … 64 rows
        at("model_bytes"): sum(entry["size"] for entry in observed.bundle.signature.files.values()),
    }
    found = {key: value for key, value in observed.last.items() if key[0].startswith("mindsporeserver_")}
    assert {key: found.get(key) for key in expected} == expected
    assert all(0 < found[at(f"{name}_seconds_sum")] < 10 for name in ("queue", "inference", "request"))
    # The same series before the first request, all but the gauges and the load at 0, and no label sent by a client.
    known = {key for key in found if UNKNOWN_MODEL not in key}
    assert known == {key for key in observed.first if key[0].startswith("mindsporeserver_")}
    assert {key[key.index("model_name") + 1] for key in found if "model_name" in key} == {"digits", UNKNOWN_MODEL}
    quiet = {"warm_shapes", "model_bytes", "loads_total", "device_info"}
    assert not any(value for key, value in observed.first.items() if "mindspore" in key[0] and key[0][16:] not in quiet)
    assert observed.last[("process_resident_memory_bytes",)] > 0


def test_cancelled_request_is_counted(observed: Observed) -> None:
    assert observed.cancelled == 1


def test_each_request_is_logged_once(observed: Observed) -> None:
    lines = [json.loads(line) for line in observed.log]  # the whole of it is JSON
    requests = {line["request_id"]: line for line in lines if line["logger"] == "mindsporeserver.requests"}
    counts = Counter(line["request_id"] for line in lines if line["logger"] == "mindsporeserver.requests")
    assert set(counts.values()) == {1}
    assert set(requests) == {*observed.headers, "g1", "g2", "gone", "in the body"}
    assert {name: line["status"] for name, line in requests.items()} == {
        **dict.fromkeys(("a1", "a2", "a3", "b1", "c1", "in the body", "g1"), 200),
        **dict.fromkeys(("d1", "d2 status=200 \u00e9", "g2"), 400),
        "d3": 415,
        "e1": 404,
        "gone": 499,
    }
    assert {name: line["protocol"] for name, line in requests.items()} == {
        **dict.fromkeys(("a1", "a2", "a3", "d1", "d3", "e1"), "v1"),
        **dict.fromkeys(("b1", "in the body", "d2 status=200 \u00e9"), "v2"),
        "c1": "v2-binary",
        **dict.fromkeys(("g1", "g2", "gone"), "grpc"),
    }
    assert {name: line["rows"] for name, line in requests.items() if line["rows"]} == {
        "a1": 1,
        "a2": 1,
        "a3": 3,
        "b1": 2,
        "c1": 4,
        "in the body": 2,
        "g1": 5,
    }
    for line in requests.values():
        if line["status"] == 200:
            assert line["seconds"] > line["queue_seconds"] + line["compute_seconds"] > 0
            assert (line["level"], line["reason"], len(line["trace_id"])) == ("INFO", "", 32)
        else:
            assert line["level"] == "WARNING"
            assert line["reason"]
    assert requests["a2"]["trace_id"] == requests["g1"]["trace_id"] == TRACE
    assert "'nobody'" in requests["d2 status=200 \u00e9"]["reason"]
    # Nothing else speaks of requests, probes or scrapes.
    others = " ".join(line["message"] for line in lines if line["logger"] != "mindsporeserver.requests")
    assert not any(word in others for word in ("health", "predict", "infer", "metrics", "refused"))


def test_response_repeats_request_id(observed: Observed) -> None:
    for name, headers in observed.headers.items():
        assert headers["x-request-id"] == name


def test_spans_are_exported_when_server_ends(otlp: Any, observed: Observed) -> None:
    spans = [span for span in observed.receiver.spans if span.name not in ("queue", "compute")]
    found = {otlp.read_attributes(span)["mindsporeserver.request_id"]: span for span in spans}
    assert len(spans) == len(found)
    assert set(found) == {*observed.headers, "g1", "g2", "gone", "in the body"}
    for name, span in found.items():
        continued = name in ("a2", "g1", "g2")
        assert (span.trace_id.hex() == TRACE) is continued
        assert span.parent_span_id.hex() == (PARENT if continued else "")
        attributes = otlp.read_attributes(span)
        status = attributes["mindsporeserver.status"]
        if name in ("g1", "g2", "gone"):
            assert span.name == "/inference.GRPCInferenceService/ModelInfer"
        else:
            assert attributes["http.response.status_code"] == status
        children = {child.name: child for child in observed.receiver.spans if child.parent_span_id == span.span_id}
        assert set(children) == ({"queue", "compute"} if status == 200 else set())
        if status == 200:
            queue, compute = children["queue"], children["compute"]
            assert span.start_time_unix_nano <= queue.start_time_unix_nano
            assert queue.end_time_unix_nano == compute.start_time_unix_nano
            assert compute.end_time_unix_nano <= span.end_time_unix_nano
    assert observed.receiver.resource["service.name"] == "mindsporeserver"
