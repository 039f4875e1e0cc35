"""The smaller parts of the process: its log, its events, its probes, its metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kfp_mindspore.errors import UserError
from kfp_mindspore.operator.actions import EmitEvent
from kfp_mindspore.operator.health import serve_health
from kfp_mindspore.operator.logs import JsonFormatter, TextFormatter
from kfp_mindspore.operator.metrics import Metrics
from kfp_mindspore.operator.recorder import Recorder
from kfp_mindspore.operator.runtime import Operator, Settings
from kfp_mindspore.operator.store import Key
from tests.support.scripted_api import refuse, run, serve

Asked = list[tuple[str, str, dict[str, Any]]]
KEY = Key("ns", "job")
SECONDS = 60


def make_record(**extra: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"levelno": 20, "levelname": "INFO", "msg": "it %s", "args": ("runs",), **extra})


def test_a_line_of_text_names_the_job() -> None:
    assert TextFormatter().format(make_record(job="ns/job", created=0.0)).endswith("Z INFO ns/job: it runs")
    assert TextFormatter().format(make_record(created=0.0)).startswith("1970-01-01T00:00:00.")


def test_a_line_of_json_has_the_fields_that_are_known() -> None:
    line = json.loads(JsonFormatter().format(make_record(job="ns/job", attempt=0, state="Running")))
    assert (line["level"], line["message"], line["job"], line["attempt"]) == ("info", "it runs", "ns/job", 0)
    assert "reason" not in line


def record(directory: Path, metrics: Metrics, answers: list[web.Response], *events: EmitEvent) -> Asked:
    """Record events against a server that answers so, and then well; return what it was asked."""
    bodies: Asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append((request.method, request.path, await request.json()))
        return answers.pop(0) if answers else web.json_response({"metadata": {}})

    async def work() -> None:
        async with serve(handler, directory) as (_, api):
            recorder = Recorder(api, metrics)
            task = asyncio.create_task(recorder.run())
            for event in events:
                recorder.record(KEY, "uid", event)
                await recorder.drain()
            task.cancel()

    run(work)
    return bodies


def test_an_event_that_repeats_is_counted_and_not_written_again(tmp_path: Path) -> None:
    waiting = EmitEvent("Warning", "Waiting", "no such image")
    asked = record(tmp_path, Metrics(), [], waiting, waiting, EmitEvent("Normal", "JobRunning", "runs"), waiting)
    assert [(method, body.get("reason"), body["count"]) for method, _, body in asked] == [
        ("POST", "Waiting", 1),
        ("PATCH", None, 2),
        ("POST", "JobRunning", 1),
        ("PATCH", None, 3),
    ]
    assert asked[1][1] == f"/api/v1/namespaces/ns/events/{asked[0][2]['metadata']['name']}"


def test_an_event_whose_first_is_gone_is_written_again(tmp_path: Path) -> None:
    """Events are kept for an hour."""
    event = EmitEvent("Warning", "Waiting", "no such image")
    asked = record(tmp_path, Metrics(), [web.json_response({}), refuse(404, "NotFound")], event, event)
    assert [method for method, _, _ in asked] == ["POST", "PATCH", "POST"]


def test_an_event_is_of_its_job_and_not_too_long(tmp_path: Path) -> None:
    ((_, _, event),) = record(tmp_path, Metrics(), [], EmitEvent("Warning", "JobFailed", "x" * 5000))
    assert event["involvedObject"]["uid"] == "uid"
    assert event["involvedObject"]["kind"] == "MSJob"
    assert len(event["message"]) == 1000


def test_an_event_that_is_refused_is_counted_and_the_next_one_comes(tmp_path: Path) -> None:
    metrics = Metrics()
    events = (EmitEvent("Normal", "A", "a"), EmitEvent("Normal", "B", "b"))
    asked = record(tmp_path, metrics, [refuse(403, "Forbidden")], *events)
    assert [body["reason"] for _, _, body in asked] == ["A", "B"]
    assert b"msjob_lost_events_total 1.0" in metrics.render()


def test_metrics_show_states_when_asked() -> None:
    metrics, states = Metrics(), Counter({"Running": 2})
    metrics.track_states(states)
    states["Running"] += 1
    assert b'msjob_jobs{state="Running"} 3.0' in metrics.render()
    assert b'msjob_jobs{state="Failed"} 0.0' in metrics.render()


def test_probes_say_what_is_wrong() -> None:
    trouble = ["listing"]

    def ask(port: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async def work() -> None:
        checks = {"healthy": lambda: "", "ready": lambda: trouble[0], "metrics": lambda: b"a 1\n"}
        async with serve_health("127.0.0.1", 0, **checks) as port:  # type: ignore[arg-type]
            assert await asyncio.to_thread(ask, port, "/healthz") == (200, "ok")
            assert await asyncio.to_thread(ask, port, "/readyz") == (503, "listing")
            trouble[0] = ""
            assert await asyncio.to_thread(ask, port, "/readyz") == (200, "ok")
            assert await asyncio.to_thread(ask, port, "/metrics") == (200, "a 1\n")
            with pytest.raises(UserError, match="--metrics-port"):
                async with serve_health("127.0.0.1", port, **checks):  # type: ignore[arg-type]
                    pass

    run(work)


def test_it_ends_when_it_is_told_though_no_listing_ever_succeeded(tmp_path: Path) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return refuse(503, "ServiceUnavailable")

    async def work() -> None:
        async with serve(handler, tmp_path):
            settings = Settings(str(tmp_path / "kubeconfig"), host="127.0.0.1", port=0)
            operator = Operator(settings)
            await asyncio.wait_for(operator.run(), SECONDS)
            assert operator.metrics.leading._value.get() == 0

    run(work)
    assert len(asked) >= 3
