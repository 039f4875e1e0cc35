"""The queue between requests and threads, with sinks that fail on demand; and bodies as JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from prometheus_client import CollectorRegistry

from kfp_mindspore.inference.logger import LoggerOptions
from mindsporeserver.observability.metrics import ServerMetrics
from mindsporeserver.request_log import event_log
from mindsporeserver.request_log.event_log import EventLog
from mindsporeserver.request_log.payloads import HTTPBody, Message, dump, dump_payload, read_value
from mindsporeserver.request_log.sinks import Event, FileSink

MODEL: Any = SimpleNamespace(name="digits")


class HeldSink:
    """Holds each batch until it is released, or refuses it."""

    most, seconds = 10, 0.01

    def __init__(self, error: Exception | None = None) -> None:
        self.events: list[Event] = []
        self.error, self.released = error, threading.Event()

    def write(self, events: Sequence[Event]) -> None:
        self.released.wait(30)
        if self.error is not None:
            raise self.error
        self.events += events


def make_log(sink: Any, **options: Any) -> tuple[EventLog, CollectorRegistry]:
    registry = CollectorRegistry()
    return EventLog(LoggerOptions(**{"url": "log", **options}), ServerMetrics(registry), sink), registry


def read_counts(registry: CollectorRegistry) -> tuple[float | None, float | None]:
    written, lost = (
        registry.get_sample_value("mindsporeserver_log_events_total", {"result": name}) for name in ("written", "lost")
    )
    return written, lost


def add(log: EventLog, count: int, size: int = 10, body: bytes = b"{}") -> None:
    for index in range(count):
        log.add(f"id-{index}", MODEL, 0.5, HTTPBody(body), HTTPBody(body), size)


def test_full_queue_loses_events_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_MOST_REQUESTS", 50)
    log, registry = make_log(sink := HeldSink())
    began = time.monotonic()
    add(log, 80)
    assert time.monotonic() - began < 5
    assert read_counts(registry) == (0, 60)
    sink.released.set()
    log.close()
    assert read_counts(registry) == (100, 60)
    assert len(sink.events) == 100


def test_bytes_are_bounded() -> None:
    log, registry = make_log(sink := HeldSink(), mode="request")
    add(log, 5, size=20 << 20)
    assert read_counts(registry) == (0, 2)
    sink.released.set()
    log.close()
    assert read_counts(registry) == (3, 2)


def test_end_counts_what_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_CLOSE_SECONDS", 0.1)
    log, registry = make_log(sink := HeldSink())
    add(log, 7)
    log.close()
    assert read_counts(registry) == (0, 14)
    sink.released.set()


def test_refused_batch_is_lost_and_the_next_one_tried(caplog: pytest.LogCaptureFixture) -> None:
    sink = HeldSink(OSError("disk full"))
    sink.released.set()
    log, registry = make_log(sink)
    add(log, 3)
    log.close()
    assert read_counts(registry) == (0, 6)
    assert "the log of requests lost 6 events: OSError: disk full" in caplog.text


def test_body_that_cannot_be_converted_loses_its_events_only() -> None:
    sink = HeldSink()
    sink.released.set()
    log, registry = make_log(sink)
    log.add("bad", MODEL, 0.0, HTTPBody(b"{", 1), HTTPBody(b"{}"), 1)
    add(log, 1)
    log.close()
    assert read_counts(registry) == (2, 2)
    assert {event.attributes["id"] for event in sink.events} == {"id-0"}


def test_ids_and_sample() -> None:
    log, _ = make_log(HeldSink(), sample=1.0)
    assert log.choose_id("", "b", "c") == "b"
    assert log.choose_id("", "") != log.choose_id("", "")
    log, _ = make_log(HeldSink(), sample=0.25)
    chosen = sum(bool(log.choose_id("a")) for _ in range(4000))
    # Eight standard deviations.
    assert abs(chosen - 1000) < 220


@pytest.mark.parametrize("name", ["events.jsonl", "folder"])
def test_lines_of_several_processes_do_not_mix(tmp_path: Path, name: str) -> None:
    sinks = [FileSink(tmp_path / name) for _ in range(4)]
    event = Event({"specversion": "1.0", "id": "é"}, b'{"a":"' + b"x" * 5000 + b'"}')
    threads = [threading.Thread(target=sink.write, args=([event] * 50,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
    assert len(lines) == 200
    assert {(line["id"], len(line["data"]["a"]), line["datacontenttype"]) for line in lines} == {
        ("é", 5000, "application/json")
    }


CONTENTS = [
    ("BOOL", np.array([True, False]), "bool_contents"),
    ("INT8", np.array([1, -2], np.int8), "int_contents"),
    ("UINT16", np.array([1, 2], np.uint16), "uint_contents"),
    ("INT64", np.array([1, -2]), "int64_contents"),
    ("UINT64", np.array([1, 2], np.uint64), "uint64_contents"),
    ("FP16", np.array([1.5, 2], np.float16), ""),
    ("FP32", np.array([1.5, np.nan], np.float32), "fp32_contents"),
    ("FP64", np.array([1.5, -2]), "fp64_contents"),
]


@pytest.mark.parametrize(("datatype", "array", "contents"), CONTENTS, ids=[each[0] for each in CONTENTS])
def test_tensors_become_json(datatype: str, array: Any, contents: str) -> None:
    expected = [None if value != value else value for value in array.tolist()]
    entry = {"name": "x", "shape": [2, 1], "datatype": datatype}
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    head = json.dumps({"inputs": [{**entry, "parameters": {"binary_data_size": len(raw)}}]}).encode()
    assert json.loads(dump_payload(HTTPBody(head + raw, len(head)))) == {"inputs": [{**entry, "data": expected}]}
    tensor = pb.ModelInferRequest.InferInputTensor(**entry)
    request = pb.ModelInferRequest(model_name="m", id="i", inputs=[tensor], raw_input_contents=[raw])
    logged = {"model_name": "m", "id": "i", "inputs": [{**entry, "data": expected}]}
    assert json.loads(dump(read_value(Message(request)))) == logged
    if contents:
        tensor = pb.ModelInferRequest.InferInputTensor(**entry, contents=pb.InferTensorContents(**{contents: array}))
        request = pb.ModelInferRequest(model_name="m", id="i", inputs=[tensor])
        assert json.loads(dump(read_value(Message(request)))) == logged


def test_texts_become_json() -> None:
    texts, expected = [b"\xc3\xa9", b"\xff"], ["é", {"b64": "/w=="}]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    entry = {"name": "y", "shape": [2], "datatype": "BYTES"}
    head = json.dumps({"outputs": [{**entry, "parameters": {"binary_data_size": len(raw)}}, {"name": "z"}]}).encode()
    found = json.loads(dump_payload(HTTPBody(head + raw, len(head))))
    assert found["outputs"] == [{**entry, "data": expected}, {"name": "z"}]
    for fields in (
        {"raw_output_contents": [raw], "outputs": [pb.ModelInferResponse.InferOutputTensor(**entry)]},
        {
            "outputs": [
                pb.ModelInferResponse.InferOutputTensor(**entry, contents=pb.InferTensorContents(bytes_contents=texts))
            ]
        },
    ):
        assert read_value(Message(pb.ModelInferResponse(**fields)))["outputs"] == [{**entry, "data": expected}]


def test_body_is_one_line_and_otherwise_unchanged() -> None:
    body = b'{\n  "instances": [1.50,\r\n "a\\nb"]}'
    line = dump_payload(HTTPBody(body))
    assert json.loads(line) == json.loads(body)
    assert b"1.50" in line
    assert b"\n" not in line


def test_structured_event_is_its_data() -> None:
    event = {"specversion": "1.0", "id": "1", "data": {"instances": [1]}}
    assert json.loads(dump_payload(HTTPBody(json.dumps(event).encode(), None, True))) == {"instances": [1]}
