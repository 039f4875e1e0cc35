"""Spans that a real receiver of OTLP over HTTP gets, and what happens when there is none."""

from __future__ import annotations

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
from mindsporeserver.observability.tracing import Tracer, build_tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT_HEADER = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def receiver(otlp: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A receiver that the environment names."""
    with otlp.Receiver() as started:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
        yield started


def by_name(receiver: Any) -> dict[str, Any]:
    return {span.name: span for span in receiver.spans}


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Tracer]]:
    """Return a function that makes a tracer with variables of the environment."""
    tracers: list[Tracer] = []

    def make(name: str = "digits", **variables: str) -> Tracer:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        tracers.append(build_tracer(name))
        return tracers[-1]

    yield make
    for tracer in tracers:
        tracer.close(0.1)


def test_a_request_is_a_span_within_its_callers_trace(otlp: Any, receiver: Any, build: Callable[..., Tracer]) -> None:
    tracer = build()
    before = time.time_ns()
    span = tracer.start("infer digits", {"traceparent": PARENT_HEADER, "tracestate": "a=b", "host": "x"})
    assert span.trace_id == TRACE
    queued_at = time.time_ns()
    time.sleep(0.01)
    span.finish(
        200,
        queued_at=queued_at,
        protocol="v1",
        model="digits",
        rows=3,
        queue_seconds=0.002,
        compute_seconds=0.005,
        request_id="3f2a",
    )
    tracer.close()
    assert set(by_name(receiver)) == {"infer digits", "queue", "compute"}
    found = by_name(receiver)["infer digits"]
    assert (found.trace_id.hex(), found.parent_span_id.hex(), found.trace_state) == (TRACE, PARENT, "a=b")
    assert found.kind == SpanMessage.SPAN_KIND_SERVER
    assert found.status.code == Status.STATUS_CODE_UNSET
    assert before <= found.start_time_unix_nano <= queued_at < found.end_time_unix_nano <= time.time_ns()
    assert otlp.read_attributes(found) == {
        "http.request.method": "POST",
        "http.route": "/v1/models/{model_name}:predict",
        "http.response.status_code": 200,
        "mindsporeserver.protocol": "v1",
        "mindsporeserver.model": "digits",
        "mindsporeserver.rows": 3,
        "mindsporeserver.queue_seconds": 0.002,
        "mindsporeserver.compute_seconds": 0.005,
        "mindsporeserver.request_id": "3f2a",
    }
    queue, compute = by_name(receiver)["queue"], by_name(receiver)["compute"]
    assert {queue.parent_span_id, compute.parent_span_id} == {found.span_id}
    assert (queue.start_time_unix_nano, queue.end_time_unix_nano) == (queued_at, queued_at + 2_000_000)
    assert (compute.start_time_unix_nano, compute.end_time_unix_nano) == (queued_at + 2_000_000, queued_at + 7_000_000)


@pytest.mark.parametrize(
    ("status", "attributes", "expected", "failed"),
    [
        (400, {"protocol": "v2"}, {"http.route": "/v2/models/{model_name}/infer"}, False),
        (503, {"protocol": "v2-binary"}, {"http.response.status_code": 503, "error.type": "503"}, True),
        (200, {"protocol": "grpc"}, {"rpc.system.name": "grpc", "rpc.response.status_code": "OK"}, False),
        (400, {"protocol": "grpc"}, {"rpc.response.status_code": "INVALID_ARGUMENT"}, False),
        (504, {"protocol": "grpc"}, {"rpc.response.status_code": "DEADLINE_EXCEEDED"}, True),
        (500, {"protocol": "grpc"}, {"rpc.response.status_code": "INTERNAL", "error.type": "INTERNAL"}, True),
        (
            503,
            {"protocol": "grpc", "grpc_status": "RESOURCE_EXHAUSTED"},
            {
                "rpc.response.status_code": "RESOURCE_EXHAUSTED",
                "rpc.method": "inference.GRPCInferenceService/ModelInfer",
            },
            False,
        ),
    ],
)
def test_the_servers_failures_are_errors_and_the_clients_are_not(
    otlp: Any,
    receiver: Any,
    build: Callable[..., Tracer],
    status: int,
    attributes: dict[str, Any],
    expected: dict[str, Any],
    failed: bool,
) -> None:
    tracer = build()
    tracer.start("infer digits", {}).finish(status, **attributes)
    tracer.close()
    (span,) = receiver.spans
    found = otlp.read_attributes(span)
    assert {name: found.get(name) for name in expected} == expected
    assert ("error.type" in found) is failed
    assert span.status.code == (Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET)
    assert ("http.route" in found) is (attributes["protocol"] != "grpc")


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
def test_a_wrong_header_begins_a_trace_of_its_own(
    receiver: Any, build: Callable[..., Tracer], caplog: pytest.LogCaptureFixture, header: str
) -> None:
    tracer = build()
    tracer.start("infer digits", {"traceparent": header, "tracestate": "a=b,a=b," * 500}).finish(200)
    tracer.close()
    (span,) = receiver.spans
    assert span.parent_span_id == b""
    assert span.trace_id.hex() not in (TRACE, "0" * 32)
    assert not caplog.records  # a client could fill the log


def test_a_caller_that_does_not_sample_gets_no_span(receiver: Any, build: Callable[..., Tracer]) -> None:
    tracer = build()
    span = tracer.start("infer digits", {"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert span.trace_id == ""
    span.finish(200, queued_at=time.time_ns(), queue_seconds=1.0)
    tracer.close()
    assert not receiver.requests


def test_requests_at_the_same_time_are_no_parents_of_each_other(receiver: Any, build: Callable[..., Tracer]) -> None:
    from opentelemetry import trace

    tracer = build()
    first = tracer.start("first", {})
    with trace.use_span(first._span):
        second = tracer.start("second", {})
    second.finish(200)
    first.finish(200)
    tracer.close()
    assert by_name(receiver)["second"].parent_span_id == b""
    assert by_name(receiver)["second"].trace_id != by_name(receiver)["first"].trace_id


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
def test_the_environment_names_the_service(
    receiver: Any, build: Callable[..., Tracer], variables: dict[str, str], expected: dict[str, str]
) -> None:
    tracer = build("digits", **variables)
    tracer.start("infer digits", {}).finish(200)
    tracer.close()
    assert receiver.resource.items() >= expected.items()
    assert receiver.resource["service.instance.id"]
    assert receiver.resource["service.version"]


def test_the_environment_configures_the_exporter(receiver: Any, build: Callable[..., Tracer]) -> None:
    tracer = build(
        OTEL_EXPORTER_OTLP_HEADERS="x-key=secret",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_BSP_SCHEDULE_DELAY="1",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    tracer.start("infer digits", {}).finish(200)
    deadline = time.monotonic() + 60
    while not receiver.requests and time.monotonic() < deadline:  # without close: it sends by itself
        time.sleep(0.005)
    assert receiver.headers[0]["x-key"] == "secret"
    assert receiver.headers[0]["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("variable", [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_the_environment_switches_it_off(
    receiver: Any, build: Callable[..., Tracer], variable: tuple[str, str]
) -> None:
    tracer = build(**dict([variable]))
    tracer.start("infer digits", {"traceparent": PARENT_HEADER}).finish(200, protocol="v1")
    tracer.close()
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
def test_what_is_not_there_is_named(build: Callable[..., Tracer], name: str, value: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(**{name: value})
    assert str(caught.value).startswith(message)
    assert name in str(caught.value)


def test_without_the_extra_it_is_named() -> None:
    code = """
import sys
sys.modules[sys.argv[1]] = None
from kfp_mindspore.errors import MissingExtraError
from mindsporeserver.observability.tracing import build_tracer
try:
    build_tracer("digits")
except MissingExtraError as error:
    print(error)
"""
    for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
        done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=False)
        assert "is not installed\nInstall it with: pip install 'kfp-mindspore[tracing]'" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("propagators", "answer"),
    [
        (
            "b3",
            "--tracing: Propagator b3 not found. It is either misspelled or not installed.\nOne of these is wrong: ",
        ),
        ("tracecontext", TRACE),
        ("none", "another trace"),
    ],
)
def test_the_environment_chooses_the_headers(propagators: str, answer: str) -> None:
    code = """
import sys
from kfp_mindspore.errors import UserError
from mindsporeserver.observability.tracing import build_tracer
try:
    span = build_tracer("digits").start("infer digits", {"traceparent": sys.argv[1]})
    print(span.trace_id if span.trace_id in sys.argv[1] else "another trace")
except UserError as error:
    print(error)
"""
    environment = {"OTEL_PROPAGATORS": propagators, "PATH": "/usr/bin:/bin", "OTEL_TRACES_EXPORTER": "none"}
    done = subprocess.run(
        [sys.executable, "-c", code, PARENT_HEADER], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(answer), done.stdout + done.stderr


# --- collectors that do not answer ------------------------------------------------------------------------------------


@pytest.fixture(params=["down", "silent", "overloaded"])
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Point the exporter at a port where nobody listens, where nobody answers, or where all is refused."""
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


def test_a_collector_that_takes_nothing_costs_requests_nothing(collector: str, build: Callable[..., Tracer]) -> None:
    tracer = build(OTEL_BSP_SCHEDULE_DELAY="1")
    worst = 0.0
    for _ in range(5000):
        start = time.perf_counter()
        tracer.start("infer digits", {"traceparent": PARENT_HEADER}).finish(200, protocol="v1", rows=1)
        worst = max(worst, time.perf_counter() - start)
    # The exporter itself waits for 10 s.
    assert worst < 5, collector
    start = time.perf_counter()
    tracer.close(0.5)
    assert time.perf_counter() - start < 5
    tracer.start("infer digits", {}).finish(200)  # a request that was in flight


def test_a_process_with_a_collector_that_is_down_ends_at_once() -> None:
    code = """
from mindsporeserver.observability.tracing import build_tracer
tracer = build_tracer("digits")
for _ in range(3000):
    tracer.start("infer digits", {}).finish(200)
tracer.close(0.2)
"""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    # Its import alone takes a second; the retries of an exporter that is not closed take a minute.
    assert time.perf_counter() - start < 40
