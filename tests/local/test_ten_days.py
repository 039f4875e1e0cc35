"""Ten days of a service without a person: its inputs change, and a bad model arrives, while requests go on."""

import json
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from kfp import dsl
from numpy.typing import NDArray

from kfp_mindspore.components import notify
from kfp_mindspore.data import load_dataset
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.pipelines import scheduled_retraining
from kfp_mindspore.runs import run_local
from kfp_mindspore.runs.report.result import RunResult
from tests.support.http_server import Handler, Server

DAYS, SHIFT, LABELS, BAD = 10, 4, 5, 7
NAME = "digits"
# Rows of a request, and requests of a day before its run.
ROWS, REQUESTS = 8, 60
KEPT = 2 * ROWS * REQUESTS
# Requests whose labels are known as they are sent.
AHEAD = 3000
# File for the days' figures, which benchmarks/ten_days.py plots.
FIGURES_VARIABLE = "KFP_MINDSPORE_TEN_DAYS"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Traffic(threading.Thread):
    """Requests of a day's images, one after the other, until `stop`; from day SHIFT on they are mirrored and darker."""

    def __init__(self, service: InferenceClient, images: NDArray[np.float32], labels: NDArray[np.int32]) -> None:
        super().__init__(daemon=True)
        self._service, self._images, self._labels = service, images, labels
        self._stopped = threading.Event()
        self.day = 1
        self.busy = False
        self.sent: list[tuple[int, str, NDArray[np.intp], NDArray[np.bool_]]] = []
        self.lost: list[str] = []

    def run(self) -> None:
        url = self._service.get(NAME).url
        with httpx.Client(timeout=60) as client:
            while not self._stopped.is_set():
                day, number = self.day, len(self.sent)
                event, index = f"{day}-{number}", draw_index(number, len(self._labels))
                body = {"instances": draw_images(self._images, index, day).tolist()}
                send = partial(client.post, json=body, headers={"x-request-id": event})
                try:
                    try:
                        response = send(f"{url}/v1/models/{NAME}:predict")
                    except httpx.ConnectError:
                        # On this machine each version has its own port.
                        url = self._service.get(NAME).url
                        response = send(f"{url}/v1/models/{NAME}:predict")
                    response.raise_for_status()
                    classes = np.array([int(row["label"]) for row in response.json()["predictions"]])
                    self.sent.append((day, event, index, classes == self._labels[index]))
                except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                    self.lost.append(f"day {day}: {error!r}")
                time.sleep(0.1 if self.busy else 0.01)

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)

    def start_day(self, day: int) -> None:
        """Begin a day, and wait for its requests."""
        self.day, self.busy = day, False
        deadline = time.monotonic() + 120
        while sum(entry[0] == day for entry in self.sent) < REQUESTS:
            assert not self.lost, self.lost
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def compute_accuracy(self, day: int) -> float:
        return float(np.mean([entry[3] for entry in self.sent if entry[0] == day]))


def draw_index(number: int, count: int) -> NDArray[np.intp]:
    """Return the places of a request's images."""
    return np.random.default_rng([7, number]).integers(0, count, ROWS)


def draw_images(images: NDArray[np.float32], index: NDArray[np.intp], day: int) -> NDArray[np.float32]:
    return 0.6 * images[index][..., ::-1] if day >= SHIFT else images[index]


@pytest.fixture
def digits(tmp_path: Path) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    load_dataset("digits", tmp_path / "digits")
    parts = [np.load(tmp_path / "digits" / f"{split}.npz") for split in ("train", "validation", "test")]
    return np.concatenate([part["image"] for part in parts]), np.concatenate([part["label"] for part in parts])


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The runs' states that a webhook got."""

    class Webhook(Handler):
        def do_POST(self) -> None:
            states.append(json.loads(self.read_body())["state"])
            self.respond(200)

    states: list[str] = []
    with Server(Webhook) as server:
        monkeypatch.setenv("KFP_MINDSPORE_WEBHOOK_URL", server.url)
        yield states


@pytest.fixture
def service(local_home: Path) -> Iterator[InferenceClient]:
    client = InferenceClient(LocalServingBackend(local_home))
    yield client
    client.delete(NAME)


def write_labels(root: Path, traffic: Traffic, images: NDArray[np.float32], labels: NDArray[np.int32]) -> None:
    """Write the labels that are known, and the newest labelled rows that were sent as the training data."""
    known = [entry for entry in traffic.sent if entry[0] != SHIFT or traffic.day >= LABELS]
    labelled = [(event, index) for _, event, index, _ in known]
    if traffic.day != SHIFT:
        # Until the log is read, requests go on.
        numbers = range(len(traffic.sent), len(traffic.sent) + AHEAD)
        labelled += [(f"{traffic.day}-{number}", draw_index(number, len(labels))) for number in numbers]
    lines = [f"{event},{labels[one]}\n" for event, index in labelled for one in index]
    (root / "labels.csv").write_text("id,label\n" + "".join(lines))
    rows = [draw_images(images, index, day) for day, _, index, _ in known]
    classes = np.concatenate([labels[:KEPT], *(labels[index] for _, _, index, _ in known)])
    np.savez(root / "data.npz", image=np.concatenate([images[:KEPT], *rows])[-KEPT:], label=classes[-KEPT:])


@dsl.pipeline(name="watched-retraining")  # type: ignore[untyped-decorator]
def watch(
    data: str, epochs: int, threshold: float, margin: float, log: str, labels: str, window: str, logger: dict[str, Any]
) -> None:
    with dsl.ExitHandler(notify(webhook="json", when="always")):
        scheduled_retraining(
            data=data, epochs=epochs, threshold=threshold, margin=margin, service_name=NAME,
            log=log, labels=labels, window=window, logger=logger,
        )  # fmt: skip


def retrain(root: Path, home: Path, **changes: Any) -> RunResult:
    arguments = {
        "data": str(root / "data.npz"), "epochs": 20, "threshold": 0.85, "margin": 0.005,
        "log": str(root / "log.jsonl"), "labels": str(root / "labels.csv"), "window": str(ROWS * REQUESTS),
        "logger": {"url": str(root / "log.jsonl")}, **changes,
    }  # fmt: skip
    return run_local(watch, arguments, home=home, keep=True, project=root, report=False, raise_on_error=False)


def test_service_recovers_from_shift_by_itself(
    local_home: Path,
    tmp_path: Path,
    service: InferenceClient,
    digits: tuple[NDArray[np.float32], NDArray[np.int32]],
    notices: list[str],
) -> None:
    images, labels = digits
    np.savez(tmp_path / "data.npz", image=images[:KEPT], label=labels[:KEPT])
    # The first run finds no service, and deploys one.
    first = retrain(tmp_path, local_home, labels="")
    assert first.state == "succeeded", first.error
    traffic = Traffic(service, images, labels)
    traffic.start()
    table = []
    try:
        for day in range(1, DAYS + 1):
            traffic.start_day(day)
            accuracy = traffic.compute_accuracy(day)
            write_labels(tmp_path, traffic, images, labels)
            traffic.busy = True
            # Someone trains without a log, for one epoch, and switches the comparison off.
            bad = {"log": "", "labels": "", "epochs": 1, "threshold": 0.0, "margin": -1.0} if day == BAD else {}
            result = retrain(tmp_path, local_home, **bad)
            found = result.steps["monitor-drift"].outputs
            table.append(
                {
                    "day": day,
                    "accuracy": accuracy,
                    "drifted": found["drifted"],
                    "fallen": found["fallen"],
                    "retrain": found["retrain"],
                    "reason": found["reason"],
                    "state": result.state,
                    "deployment": result.steps["deploy-kserve"].state if found["retrain"] else "",
                    "candidate": result.steps["compare-models"].outputs["value"] if found["retrain"] else None,
                    "version": service.get(NAME).version,
                    "canary": service.get(NAME).canary is not None,
                }
            )
            print(table[-1], round(result.seconds, 1), flush=True)
    finally:
        traffic.stop()
    for row in table:
        row["requests"] = sum(entry[0] == row["day"] for entry in traffic.sent)
        row["lost"] = sum(lost.startswith(f"day {row['day']}:") for lost in traffic.lost)
    if file := os.environ.get(FIGURES_VARIABLE):
        figures = {"shift": SHIFT, "labels": LABELS, "bad": BAD, "rows": ROWS, "days": table}
        Path(file).write_text(json.dumps(figures, indent=1) + "\n")
    by_day = {row["day"]: row for row in table}
    assert traffic.lost == []
    assert len(traffic.sent) >= DAYS * REQUESTS
    assert min(by_day[day]["accuracy"] for day in (1, 2, 3, *range(LABELS + 1, DAYS + 1))) > 0.8
    assert by_day[SHIFT]["accuracy"] < 0.6
    assert [by_day[day]["retrain"] for day in (1, SHIFT, LABELS, BAD)] == [False, True, True, True]
    assert by_day[SHIFT]["drifted"]
    assert by_day[LABELS]["fallen"]
    version = by_day[SHIFT]["version"]
    # A false alarm on a later day may lead to a further version.
    assert [by_day[day]["version"] for day in (SHIFT - 1, LABELS)] == [version, version + 1]
    assert by_day[BAD]["version"] == by_day[BAD - 1]["version"]
    # The canary's test finds the bad model, which the comparison was told to accept.
    assert (by_day[BAD]["state"], by_day[BAD]["deployment"]) == ("failed", "failed")
    assert by_day[BAD]["candidate"] < 0.7
    assert not any(row["canary"] for row in table)
    assert notices == ["SUCCEEDED"] + ["FAILED" if day == BAD else "SUCCEEDED" for day in range(1, DAYS + 1)]
