"""The numbers that a scrape finds, of one process and of many."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kfp_mindspore.errors import UserError
from mindsporeserver.observability.metrics import PROTOCOLS, REASONS, ROWS, SECONDS, Metrics, _BatchHistogram

Series = dict[tuple[str, ...], float]


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    return Metrics(CollectorRegistry())


def read(body: bytes, kind: str = "text/plain") -> Series:
    """Return what a scrape says: (name, label, value, label, value …) to number."""
    parse = parse_openmetrics if kind.startswith("application/openmetrics-text") else parse_text
    return {
        (sample.name, *(part for item in sorted(sample.labels.items()) for part in item)): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_a_scrape_says_what_happened(metrics: Metrics, accept: str) -> None:
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
    buckets = 2 * (len(SECONDS) + 1) + len(ROWS) + 1
    assert len(found) == 4 + 7 + 2 + 3 + 6 + buckets


def test_a_forgotten_model_is_shown_no_more_and_starts_again(metrics: Metrics) -> None:
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


def test_versions_of_a_model_share_its_series(metrics: Metrics) -> None:
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


def test_only_known_words_become_labels(metrics: Metrics) -> None:
    model = metrics.for_model("digits")
    for call in (model.count_request, model.count_failure, model.count_load):
        with pytest.raises(KeyError):
            call("what a client sent")


@pytest.mark.parametrize("name", ['quo"te', "line\nbreak", "back\\slash", "ÄÖ-模型", "no-utf8-\udcff", ""])
def test_any_name_of_a_model_can_be_scraped(metrics: Metrics, name: str) -> None:
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
def test_openmetrics_is_for_who_accepts_it(metrics: Metrics, accept: str, openmetrics: bool) -> None:
    metrics.for_model("digits")
    body, kind = metrics.render(accept)
    assert kind.startswith(
        "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
    )
    assert body.endswith(b"# EOF\n") is openmetrics
    assert read(body, kind)


@given(st.text())
def test_no_accept_header_breaks_a_scrape(accept: str) -> None:
    registry = CollectorRegistry()
    body, kind = Metrics(registry).render(accept)
    assert read(body, kind) == {}


@given(st.lists(st.floats(0, 20) | st.sampled_from(SECONDS), min_size=1))
def test_observing_at_once_is_observing_one_by_one(values: list[float]) -> None:
    at_once, one_by_one = (
        _BatchHistogram("seconds", "", buckets=SECONDS, registry=CollectorRegistry()) for _ in range(2)
    )
    at_once.observe_all(values)
    for value in values:
        one_by_one.observe(value)
    pairs = zip(at_once.collect()[0].samples, one_by_one.collect()[0].samples, strict=True)
    for left, right in pairs:
        if not left.name.endswith("_created"):
            assert (left.name, left.labels, pytest.approx(left.value)) == (right.name, right.labels, right.value)


# --- several processes ------------------------------------------------------------------------------------------------

_WORKER = """
import sys
from mindsporeserver.observability.metrics import Metrics
metrics = Metrics()
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Worker:
    """A process with metrics, which runs the lines that it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    with ExitStack() as stack:

        def start() -> Worker:
            environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
            process = subprocess.Popen(
                [sys.executable, "-c", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return Worker(process)

        yield start


@pytest.fixture
def scrape(tmp_path: Path, start_worker: Callable[[], Worker]) -> Callable[[], Series]:
    """Return a function that asks one more process, which serves nothing itself."""
    worker = start_worker()
    answer = tmp_path / "answer"

    def ask(of: Worker = worker, accept: str = "") -> Series:
        of.run(f"import pathlib; pathlib.Path({str(answer)!r}).write_bytes(metrics.render({accept!r})[0])")
        return read(answer.read_bytes(), accept)

    return ask


def test_one_worker_answers_for_all(start_worker: Callable[[], Worker], scrape: Callable[..., Series]) -> None:
    workers = [start_worker() for _ in range(2)]
    for number, worker in enumerate(workers, start=1):
        worker.run("model = metrics.for_model('digits')")
        worker.run(f"for _ in range({number}): model.count_request('v1')")
        worker.run(f"model.observe_batch({number}, 0.01, [0.001] * {number})")
        worker.run(f"model.set_warm_shapes({number}); model.set_in_flight({number}); model.set_model_bytes(1000)")
    label = ("model_name", "digits")
    expected = {
        ("mindsporeserver_requests_total", *label, "protocol", "v1"): 3,
        ("mindsporeserver_requests_total", *label, "protocol", "grpc"): 0,
        ("mindsporeserver_batch_rows_sum", *label): 3,
        ("mindsporeserver_queue_seconds_count", *label): 3,
        ("mindsporeserver_queue_seconds_bucket", "le", "0.001", *label): 3,
        ("mindsporeserver_warm_shapes", *label): 1,  # what is warm everywhere
        ("mindsporeserver_in_flight", *label): 3,
        ("mindsporeserver_model_bytes", *label): 1000,
    }
    for found in (scrape(), scrape(workers[0]), scrape(workers[0], "application/openmetrics-text")):
        assert {key: found.get(key) for key in expected} == expected


def test_a_killed_worker_takes_its_gauges_but_not_its_counts(
    tmp_path: Path, start_worker: Callable[[], Worker], scrape: Callable[..., Series]
) -> None:
    worker = start_worker()
    worker.run("model = metrics.for_model('digits'); model.count_request('v2'); model.set_in_flight(5)")
    assert scrape()["mindsporeserver_in_flight", "model_name", "digits"] == 5
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait()
    mark_process_dead(worker.process.pid, str(tmp_path))  # its parent's to do
    found = scrape()
    assert ("mindsporeserver_in_flight", "model_name", "digits") not in found
    assert found["mindsporeserver_requests_total", "model_name", "digits", "protocol", "v2"] == 1


def test_a_file_that_a_killed_worker_left_empty_breaks_no_scrape(
    tmp_path: Path, start_worker: Callable[[], Worker], scrape: Callable[..., Series]
) -> None:
    start_worker().run("metrics.for_model('digits').count_request('v2')")
    (tmp_path / "counter_1.db").touch()
    assert scrape()["mindsporeserver_requests_total", "model_name", "digits", "protocol", "v2"] == 1


def test_workers_hide_a_forgotten_model(start_worker: Callable[[], Worker], scrape: Callable[..., Series]) -> None:
    worker = start_worker()
    worker.run("model = metrics.for_model('digits'); model.count_request('v1')")
    worker.run("model.set_in_flight(1); model.set_warm_shapes(7)")
    worker.run("metrics.forget_model('digits')")
    assert not scrape(worker)
    unaware = scrape()
    assert unaware["mindsporeserver_warm_shapes", "model_name", "digits"] == 0
    assert unaware["mindsporeserver_in_flight", "model_name", "digits"] == 1
    worker.run("again = metrics.for_model('digits'); again.count_request('v1'); again.set_in_flight(2)")
    worker.run("model.set_in_flight(0)")
    found = scrape(worker)
    assert found["mindsporeserver_requests_total", "model_name", "digits", "protocol", "v1"] == 2
    assert found["mindsporeserver_in_flight", "model_name", "digits"] == 2


def test_kserves_own_histograms_come_along(start_worker: Callable[[], Worker], scrape: Callable[..., Series]) -> None:
    worker = start_worker()
    worker.run(
        "import prometheus_client; h = prometheus_client.Histogram('request_predict_seconds', '', ['model_name'])"
    )
    worker.run("h.labels('digits').observe(0.3)")
    assert scrape()["request_predict_seconds_count", "model_name", "digits"] == 1


@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    path = tmp_path / "file"
    if exists:
        path.touch()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(path))
    with pytest.raises(UserError, match=r"PROMETHEUS_MULTIPROC_DIR: .* is no directory"):
        Metrics(CollectorRegistry())


def test_a_full_disk_refuses_a_model_and_kills_nobody(tmp_path: Path) -> None:
    small = 'mount -t tmpfs -o size=512k tmpfs disk && exec env PROMETHEUS_MULTIPROC_DIR=disk "$@"'
    (tmp_path / "disk").mkdir()
    code = """
from kfp_mindspore.errors import UserError
from mindsporeserver.observability.metrics import Metrics
metrics = Metrics()
first = metrics.for_model("first")
open("disk/filler", "wb").write(b"x" * (512 * 1024 - 5 * 65536 - 8192))
try:
    for number in range(100):
        metrics.for_model(f"model{number}").count_request("v1")
except UserError as error:
    print(error)
for number in range(1000):
    first.count_request("v1")
    first.observe_batch(1, number / 100, [number / 100])
print(metrics.render("")[0].decode())
"""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", small, "sh", sys.executable, "-c", code]
    if shutil.which("unshare") is None or subprocess.run([*command[:4], "true"], check=False).returncode:
        pytest.skip("this machine gives no user namespaces")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "needs" in done.stdout
    assert "free bytes for another model's metrics" in done.stdout
    assert 'mindsporeserver_requests_total{model_name="first",protocol="v1"} 1000.0' in done.stdout
