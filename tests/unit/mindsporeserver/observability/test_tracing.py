"""Spans received by a real OTLP receiver over HTTP, and unresponsive collectors."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kfp_mindspore.errors import UserError
from mindsporeserver.observability.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT_HEADER = f"00-{TRACE}-{PARENT}-01"
PREDICT, INFER = "/v1/models/digits:predict", "/v2/models/digits/versions/3/infer"


@pytest.fixture
def receiver(otlp: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A receiver named by the environment."""
    with otlp.Receiver() as started:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
        yield started


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Tracing]]:
    """Return a function that builds a Tracing with variables of the environment."""
    built: list[Tracing] = []
    # Set by Tracing itself.
    for name in ("OTEL_SEMCONV_STABILITY_OPT_IN", "OTEL_SERVICE_NAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def build(**variables: str) -> Tracing:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        built.append(Tracing("digits"))
        return built[-1]

    yield build
    for tracing in built:
        tracing.close(0.1)


def request(
    tracing: Tracing,
    path: str = PREDICT,
    status: int = 200,
    headers: dict[str, str] | None = None,
    method: str = "POST",
    stages: dict[str, float] | None = None,
) -> str:
    """Send a request to a traced ASGI application; return the id of its trace, if it is sampled."""
    trace_id = ""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        nonlocal trace_id
        if (span := tracing.get_span()) is not None:
            trace_id = f"{span.get_span_context().trace_id:032x}"
            if stages:
                tracing.add_stages(span, time.monotonic() - 0.05, **stages)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        pass

    found = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path, "headers": found}
    scope |= {"query_string": b"", "server": ("127.0.0.1", 8080), "client": ("127.0.0.1", 5)}
    asyncio.run(tracing.wrap(answer)(scope, receive, send))
    return trace_id


def test_request_is_span_within_trace_of_its_caller(otlp: Any, receiver: Any, build: Any) -> None:
    tracing = build()
    before = time.time_ns()
    headers = {"traceparent": PARENT_HEADER, "tracestate": "a=b"}
    assert request(tracing, headers=headers, stages={"queue": 0.002, "compute": 0.005}) == TRACE
    tracing.close()
    spans = {span.name: span for span in receiver.spans}
    assert set(spans) == {"POST /v1/models/{model_name}:predict", "queue", "compute"}
    found = spans["POST /v1/models/{model_name}:predict"]
    assert (found.trace_id.hex(), found.parent_span_id.hex(), found.trace_state) == (TRACE, PARENT, "a=b")
    assert found.kind == SpanMessage.SPAN_KIND_SERVER
    assert found.status.code == Status.STATUS_CODE_UNSET
    assert before <= found.start_time_unix_nano < found.end_time_unix_nano <= time.time_ns()
    attributes = otlp.read_attributes(found)
    expected = {"http.request.method": "POST", "http.route": "/v1/models/{model_name}:predict"}
    assert attributes.items() >= {**expected, "http.response.status_code": 200}.items()
    queue, compute = spans["queue"], spans["compute"]
    assert {queue.parent_span_id, compute.parent_span_id} == {found.span_id}
    assert queue.end_time_unix_nano - queue.start_time_unix_nano == 2_000_000
    assert compute.end_time_unix_nano - compute.start_time_unix_nano == 5_000_000
    assert queue.end_time_unix_nano == compute.start_time_unix_nano


@pytest.mark.parametrize(("status", "is_error"), [(400, False), (404, False), (500, True), (503, True)])
def test_only_failures_of_server_are_errors(otlp: Any, receiver: Any, build: Any, status: int, is_error: bool) -> None:
    tracing = build()
    request(tracing, INFER, status)
    tracing.close()
    (span,) = receiver.spans
    attributes = otlp.read_attributes(span)
    assert (attributes["http.route"], attributes["http.response.status_code"]) == (
        "/v2/models/{model_name}/infer",
        status,
    )
    assert span.status.code == (Status.STATUS_CODE_ERROR if is_error else Status.STATUS_CODE_UNSET)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/metrics"), ("GET", "/v2/health/ready"), ("GET", PREDICT), ("POST", "/v2/repository/index")],
)
def test_other_requests_have_no_span(receiver: Any, build: Any, method: str, path: str) -> None:
    tracing = build()
    assert request(tracing, path, method=method) == ""
    tracing.close()
    assert not receiver.requests


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        "0" * 100_000,
    ],
)
def test_invalid_header_starts_new_trace(
    receiver: Any, build: Any, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    tracing = build()
    request(tracing, headers={"traceparent": header, "tracestate": "a=b,a=b," * 500})
    tracing.close()
    (span,) = receiver.spans
    assert span.parent_span_id == b""
    assert span.trace_id.hex() not in (TRACE, "0" * 32)
    assert not caplog.records  # a client could fill the log


def test_request_of_caller_that_does_not_sample_has_no_span(receiver: Any, build: Any) -> None:
    tracing = build()
    assert request(tracing, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}) == ""
    tracing.close()
    assert not receiver.requests


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {"service.name": "digits"}),
        ({"OTEL_SERVICE_NAME": "mine"}, {"service.name": "mine"}),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,deployment.environment.name=test"},
            {"service.name": "theirs", "deployment.environment.name": "test"},
        ),
    ],
)
def test_service_name_of_environment(
    receiver: Any, build: Any, variables: dict[str, str], expected: dict[str, str]
) -> None:
    tracing = build(**variables)
    request(tracing)
    tracing.close()
    assert receiver.resource.items() >= expected.items()
    assert receiver.resource["service.instance.id"]
    assert receiver.resource["service.version"]


def test_exporter_is_configured_by_environment(receiver: Any, build: Any) -> None:
    tracing = build(
        OTEL_EXPORTER_OTLP_HEADERS="x-key=secret",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_BSP_SCHEDULE_DELAY="1",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    request(tracing)
    deadline = time.monotonic() + 60
    while not receiver.requests and time.monotonic() < deadline:  # without close: it sends by itself
        time.sleep(0.005)
    assert receiver.headers[0]["x-key"] == "secret"
    assert receiver.headers[0]["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("variable", [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_tracing_is_disabled_by_environment(receiver: Any, build: Any, variable: tuple[str, str]) -> None:
    tracing = build(**dict([variable]))
    request(tracing)
    tracing.close()
    assert not receiver.headers


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf, got 'grpc'"),
        (
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "http/json",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: must be http/protobuf",
        ),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER: must be otlp or none, got 'zipkin'"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "--tracing: max_queue_size must be"),
    ],
)
def test_invalid_variables(build: Any, name: str, value: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(**{name: value})
    assert str(caught.value).startswith(message)
    assert name in str(caught.value)


def test_missing_extra() -> None:
    code = """
import sys
sys.modules[sys.argv[1]] = None
from kfp_mindspore.errors import MissingExtraError
from mindsporeserver.observability.tracing import Tracing
try:
    Tracing("digits")
except MissingExtraError as error:
    print(error)
"""
    for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
        done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=False)
        assert "is not installed\nInstall it with: pip install 'kfp-mindspore[tracing]'" in done.stdout, done.stderr


# --- collectors that do not answer ------------------------------------------------------------------------------------


@pytest.fixture(params=["down", "silent", "overloaded"])
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Point the exporter at a port without a listener, without responses, or that refuses all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen(8)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if request.param == "overloaded":
            receiver: Any = request.getfixturevalue("receiver")
            receiver.status, url = 503, receiver.url
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield request.param


def test_unresponsive_collector_delays_no_request(collector: str, build: Any) -> None:
    tracing = build(OTEL_BSP_SCHEDULE_DELAY="1")
    worst = 0.0
    for _ in range(1000):
        start = time.perf_counter()
        request(tracing)
        worst = max(worst, time.perf_counter() - start)
    # The exporter itself waits for 10 s.
    assert worst < 5, collector
    start = time.perf_counter()
    tracing.close(0.5)
    assert time.perf_counter() - start < 5
    request(tracing)  # a request that was in flight


def test_process_with_collector_that_is_down_ends_at_once() -> None:
    code = """
from mindsporeserver.observability.tracing import Tracing
tracing = Tracing("digits")
tracer = tracing._provider.get_tracer("test")
for _ in range(3000):
    tracer.start_span("request").end()
tracing.close(0.2)
"""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    # Its import takes a second; the retries of an exporter that is not closed take a minute.
    assert time.perf_counter() - start < 40
