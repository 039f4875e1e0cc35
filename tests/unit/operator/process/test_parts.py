"""Log, events, probes and metrics of the operator process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.operator.decisions.actions import EmitEvent
from kfp_mindspore.operator.process.health import serve_health
from kfp_mindspore.operator.process.logs import JobJsonFormatter, JobTextFormatter
from kfp_mindspore.operator.process.metrics import OperatorMetrics
from kfp_mindspore.operator.process.recorder import Recorder
from kfp_mindspore.operator.process.runtime import OperatorProcess, Settings
from kfp_mindspore.operator.process.store import JobKey
from tests.support.kube.fake_api_server import FakeApiServer, RecordedRequest, respond_once

KEY = JobKey("ns", "job")
SECONDS = 300


def make_record(**extra: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"levelno": 20, "levelname": "INFO", "msg": "it %s", "args": ("runs",), **extra})


def test_text_lines_name_job() -> None:
    assert JobTextFormatter().format(make_record(job="ns/job", created=0.0)).endswith("Z INFO ns/job: it runs")
    assert JobTextFormatter().format(make_record(created=0.0)).startswith("1970-01-01T00:00:00.")


def test_json_lines_have_known_fields() -> None:
    line = json.loads(JobJsonFormatter().format(make_record(job="ns/job", attempt=0, state="Running")))
    assert (line["level"], line["message"], line["job"], line["attempt"]) == ("info", "it runs", "ns/job", 0)
    assert "reason" not in line


@pytest.fixture
def record(server: FakeApiServer, run: Callable[..., Any]) -> Callable[..., list[RecordedRequest]]:
    """A function that records events one after the other, and returns the requests."""

    def record_events(metrics: OperatorMetrics, *events: EmitEvent) -> list[RecordedRequest]:
        async def work(client: AsyncClient) -> None:
            recorder = Recorder(client, metrics)
            task = asyncio.create_task(recorder.run())
            for event in events:
                recorder.record(KEY, "uid", event)
                await recorder.drain()
            task.cancel()

        run(work)
        return server.requests

    return record_events


def test_repeated_events_increase_count(record: Callable[..., list[RecordedRequest]]) -> None:
    waiting = EmitEvent("Warning", "Waiting", "no such image")
    requests = record(OperatorMetrics(), waiting, waiting, EmitEvent("Normal", "JobRunning", "runs"), waiting)
    assert [(item.method, item.body.get("reason"), item.body["count"]) for item in requests] == [
        ("POST", "Waiting", 1),
        ("PATCH", None, 2),
        ("POST", "JobRunning", 1),
        ("PATCH", None, 3),
    ]
    assert requests[1].path == f"/api/v1/namespaces/ns/events/{requests[0].body['metadata']['name']}"


def test_repeated_events_are_created_again_once_expired(
    server: FakeApiServer, record: Callable[..., list[RecordedRequest]]
) -> None:
    event = EmitEvent("Warning", "Waiting", "no such image")
    server.faults.append(respond_once(404, method="PATCH", details={"kind": "events"}))
    assert [item.method for item in record(OperatorMetrics(), event, event)] == ["POST", "PATCH", "POST"]


def test_events_name_their_job_and_are_truncated(record: Callable[..., list[RecordedRequest]]) -> None:
    (request,) = record(OperatorMetrics(), EmitEvent("Warning", "JobFailed", "x" * 5000))
    assert request.body["involvedObject"]["uid"] == "uid"
    assert request.body["involvedObject"]["kind"] == "MSJob"
    assert len(request.body["message"]) == 1000


def test_refused_events_are_counted_and_dropped(
    server: FakeApiServer, record: Callable[..., list[RecordedRequest]]
) -> None:
    metrics = OperatorMetrics()
    server.faults.append(respond_once(403, reason="Forbidden"))
    requests = record(metrics, EmitEvent("Normal", "A", "a"), EmitEvent("Normal", "B", "b"))
    assert [item.body["reason"] for item in requests] == ["A", "B"]
    assert b"msjob_lost_events_total 1.0" in metrics.render()


def test_metrics_report_jobs_by_state() -> None:
    metrics, states = OperatorMetrics(), Counter({"Running": 2})
    metrics.track_states(states)
    states["Running"] += 1
    assert b'msjob_jobs{state="Running"} 3.0' in metrics.render()
    assert b'msjob_jobs{state="Failed"} 0.0' in metrics.render()


def test_probes_respond_with_problem() -> None:
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

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_sigterm_ends_operator_whose_lists_fail(server: FakeApiServer, kubeconfig: Path) -> None:
    server.faults.append(respond_once(503, times=1_000_000))

    async def work() -> None:
        operator = OperatorProcess(Settings(str(kubeconfig), host="127.0.0.1", port=0))
        task = asyncio.create_task(operator.run())
        while len(server.requests) < 3:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        assert b"msjob_leading 0.0" in operator.metrics.render()

    asyncio.run(asyncio.wait_for(work(), SECONDS))
