"""Metrics of models as a scrape returns them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from mindsporeserver.observability.metrics import PROTOCOLS, REASONS, ROWS, SECONDS, UNKNOWN_MODEL, ServerMetrics

Series = dict[tuple[str, ...], float]


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics(CollectorRegistry())


def read(body: bytes, kind: str = "text/plain") -> Series:
    """Return a scrape: (name, label, value, label, value …) to number."""
    parse = parse_openmetrics if kind.startswith("application/openmetrics-text") else parse_text
    return {
        (sample.name, *(part for item in sorted(sample.labels.items()) for part in item)): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_scrape(metrics: ServerMetrics, accept: str) -> None:
    model = metrics.for_model("digits")
    for _ in range(3):
        model.count_request("v1")
    model.count_request("grpc")
    model.count_failure("overload")
    model.count_load("ok")
    model.observe_batch(3, 0.002, [0.0002, 0.0002, 0.3])
    model.observe_batch(64, 0.004, [11.0])
    model.set_warm_shapes(7)
    model.set_model_bytes(123_456)
    model.set_in_flight(2)
    model.observe_latency(0.4)
    found = read(*metrics.render(accept))
    label = ("model_name", "digits")
    expected = {
        **{("mindsporeserver_requests_total", *label, "protocol", name): 0 for name in PROTOCOLS},
        **{("mindsporeserver_request_failures_total", *label, "reason", name): 0 for name in REASONS},
        ("mindsporeserver_requests_total", *label, "protocol", "v1"): 3,
        ("mindsporeserver_requests_total", *label, "protocol", "grpc"): 1,
        ("mindsporeserver_request_failures_total", *label, "reason", "overload"): 1,
        ("mindsporeserver_loads_total", *label, "result", "ok"): 1,
        ("mindsporeserver_loads_total", *label, "result", "failed"): 0,
        ("mindsporeserver_request_seconds_count", *label): 1,
        ("mindsporeserver_request_seconds_bucket", "le", "0.25", *label): 0,
        ("mindsporeserver_request_seconds_bucket", "le", "0.5", *label): 1,
        ("mindsporeserver_queue_seconds_count", *label): 4,
        ("mindsporeserver_queue_seconds_bucket", "le", "0.0001", *label): 0,
        ("mindsporeserver_queue_seconds_bucket", "le", "0.00025", *label): 2,
        ("mindsporeserver_queue_seconds_bucket", "le", "0.5", *label): 3,
        ("mindsporeserver_queue_seconds_bucket", "le", "10.0", *label): 3,
        ("mindsporeserver_queue_seconds_bucket", "le", "+Inf", *label): 4,
        ("mindsporeserver_batch_rows_count", *label): 2,
        ("mindsporeserver_batch_rows_sum", *label): 67,
        ("mindsporeserver_batch_rows_bucket", "le", "32.0", *label): 1,
        ("mindsporeserver_batch_rows_bucket", "le", "64.0", *label): 2,
        ("mindsporeserver_inference_seconds_count", *label): 2,
        ("mindsporeserver_inference_seconds_sum", *label): 0.006,
        ("mindsporeserver_warm_shapes", *label): 7,
        ("mindsporeserver_model_bytes", *label): 123_456,
        ("mindsporeserver_in_flight", *label): 2,
    }
    assert {key: found.get(key) for key in expected} == pytest.approx(expected)
    buckets = 3 * (len(SECONDS) + 1) + len(ROWS) + 1
    assert len(found) == 5 + 8 + 2 + 3 + 8 + buckets


def test_series_of_unloaded_model_are_removed(metrics: ServerMetrics) -> None:
    metrics.for_model("kept").count_request("v1")
    gone = metrics.for_model("gone")
    gone.count_request("v1")
    metrics.forget_model("gone")
    metrics.forget_model("never known")
    gone.count_request("v1")  # a request that was in flight
    assert b"gone" not in metrics.render("")[0]
    metrics.for_model("gone").count_request("v1")
    found = read(*metrics.render(""))
    assert found["mindsporeserver_requests_total", "model_name", "gone", "protocol", "v1"] == 1
    assert found["mindsporeserver_requests_total", "model_name", "kept", "protocol", "v1"] == 1


def test_versions_share_series_of_model(metrics: ServerMetrics) -> None:
    old, new = metrics.for_model("digits"), metrics.for_model("digits")
    old.count_request("v1")
    old.set_in_flight(5)
    new.count_request("v1")
    new.set_in_flight(2)
    old.set_in_flight(1)
    found = read(*metrics.render(""))
    assert found["mindsporeserver_requests_total", "model_name", "digits", "protocol", "v1"] == 2
    assert found["mindsporeserver_in_flight", "model_name", "digits"] == 3
    metrics.forget_model("digits")
    old.set_in_flight(0)  # drained after it was unloaded
    again = metrics.for_model("digits")
    again.set_in_flight(1)
    assert read(*metrics.render(""))["mindsporeserver_in_flight", "model_name", "digits"] == 1


def test_unknown_label_values_are_refused(metrics: ServerMetrics) -> None:
    model = metrics.for_model("digits")
    for call in (model.count_request, model.count_failure, model.count_load):
        with pytest.raises(KeyError):
            call("what a client sent")


def test_unknown_models_are_counted_under_one_label(metrics: ServerMetrics) -> None:
    for _ in range(3):
        metrics.count_unknown("v1", "invalid")
    assert read(*metrics.render("")) == {
        ("mindsporeserver_requests_total", "model_name", UNKNOWN_MODEL, "protocol", "v1"): 3,
        ("mindsporeserver_request_failures_total", "model_name", UNKNOWN_MODEL, "reason", "invalid"): 3,
    }


@pytest.mark.parametrize("name", ['quo"te', "line\nbreak", "back\\slash", "ÄÖ-模型", "no-utf8-\udcff", ""])
def test_any_model_name_can_be_scraped(metrics: ServerMetrics, name: str) -> None:
    metrics.for_model(name).count_request("v2")
    shown = name.replace("\udcff", "?")
    for accept in ("", "application/openmetrics-text"):
        found = read(*metrics.render(accept))
        assert found["mindsporeserver_requests_total", "model_name", shown, "protocol", "v2"] == 1
    metrics.forget_model(name)
    assert not read(*metrics.render(""))


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", True),
        ("application/openmetrics-text; version=abc; escaping=x", True),
        ("application/openmetrics-text;q=0, text/plain", False),
    ],
)
def test_format_by_accept_header(metrics: ServerMetrics, accept: str, openmetrics: bool) -> None:
    metrics.for_model("digits")
    body, kind = metrics.render(accept)
    assert kind.startswith(
        "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
    )
    assert body.endswith(b"# EOF\n") is openmetrics
    assert read(body, kind)


def test_names_with_colons_are_equal_in_both_formats() -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry)
    Gauge("vllm:num_requests_waiting", "Answers that wait.", ["model_name"], registry=registry).labels("chat").set(3)
    for accept in ("", "application/openmetrics-text"):
        assert b'\nvllm:num_requests_waiting{model_name="chat"} 3.0\n' in metrics.render(accept)[0]


@given(st.text())
def test_any_accept_header_is_accepted(accept: str) -> None:
    registry = CollectorRegistry()
    body, kind = ServerMetrics(registry).render(accept)
    assert read(body, kind) == {}
