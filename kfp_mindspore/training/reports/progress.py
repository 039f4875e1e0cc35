"""Progress reports from `fit`: for a run's events, an MSJob's backend, and Kubeflow Trainer.

| variable | report |
|---|---|
| KFP_MINDSPORE_EVENTS | an event, see `kfp_mindspore.events` |
| KFP_MINDSPORE_PROGRESS | the newest report in this file; with `-` a line on standard error every 10 seconds at most |
| KUBEFLOW_TRAINER_SERVER_URL, …_TOKEN, …_CA_CERT | a POST to Kubeflow Trainer (2.2 and later, feature gate \
TrainJobStatus) every 5 seconds at most, from a thread of its own |

Without these variables nothing is done. A report never delays training and never ends it: failures are logged once.
"""

from __future__ import annotations

import datetime
import http.client
import json
import logging
import os
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore import events, files
from kfp_mindspore.settings import PROGRESS_PREFIX, PROGRESS_VARIABLE

URL_VARIABLE = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN_VARIABLE = "KUBEFLOW_TRAINER_SERVER_TOKEN"
CA_VARIABLE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
EVENT_SECONDS = 0.5
LINE_SECONDS = 10.0
FILE_SECONDS = 1.0
# Kubeflow Trainer requests at most one update in 5 seconds.
POST_SECONDS = 5.0
_TIMEOUT_SECONDS = 5.0
# The final report delays the process's end by this at most.
_CLOSE_SECONDS = 2.0
_logger = logging.getLogger(__name__)


class ProgressReporter:
    """Reports on one training, written by rank 0.

    Args:
        epochs: Epoch count.
        steps: Steps in an epoch.
        environment: Variables that name the receivers; by default the process environment.
        device: Device type that the training uses.
    """

    def __init__(
        self, epochs: int, steps: int, environment: Mapping[str, str] | None = None, *, device: str = ""
    ) -> None:
        self._epochs, self._steps = epochs, epochs * steps
        environment = os.environ if environment is None else environment
        self._device = {"device": device} if device else {}
        self._target = environment.get(PROGRESS_VARIABLE, "")
        url = environment.get(URL_VARIABLE, "")
        self._poster = (
            _Poster(url, environment.get(TOKEN_VARIABLE, ""), environment.get(CA_VARIABLE, "")) if url else None
        )
        self._first: tuple[int, float] | None = None
        self._updated = -EVENT_SECONDS
        self._written = -FILE_SECONDS - LINE_SECONDS
        self._report: dict[str, Any] = {}
        self._is_failed = False

    @property
    def is_due(self) -> bool:
        """Whether the last update is old enough for another one within an epoch."""
        return time.monotonic() - self._updated >= EVENT_SECONDS

    def update(self, *, epoch: int, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Emit an event, and report the training's state if the last report is old enough.

        Args:
            epoch: The present epoch, from 1.
            step: Steps done.
            loss: The epoch's mean loss so far.
            metrics: The newest metrics.
        """
        now = self._updated = time.monotonic()
        counts = {"epoch": epoch, "epochs": self._epochs, "step": step, "steps": self._steps}
        events.emit("progress", "training.fit", **counts, **self._device, loss=loss, metrics=dict(metrics))
        if not self._target and self._poster is None:
            return
        first, begun = self._first = self._first or (step, now)
        self._report = {
            "percentage": min(99, 100 * step // max(self._steps, 1)),
            **counts,
            **self._device,
            "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in {**metrics, "loss": loss}.items()],
        }
        if step > first:
            self._report["estimatedRemainingSeconds"] = round((self._steps - step) * (now - begun) / (step - first))
        if now - self._written >= (LINE_SECONDS if self._target == "-" else FILE_SECONDS):
            self._write(now)
        if self._poster is not None:
            self._poster.put(self._report)

    def finish(self) -> None:
        """Report the training's end, 100 %."""
        if self._report:
            self._report = {**self._report, "percentage": 100, "estimatedRemainingSeconds": 0}
            self._write(time.monotonic())
            if self._poster is not None:
                self._poster.close(self._report)

    def _write(self, now: float) -> None:
        if not self._target:
            return
        self._written = now
        text = json.dumps(self._report)
        try:
            if self._target == "-":
                print(PROGRESS_PREFIX + text, file=sys.stderr, flush=True)
            else:
                # Not written to the disk itself: a report is useless after a machine crash.
                with files.replace_file(Path(self._target), durable=False) as file:
                    file.write(text.encode())
        except OSError as error:
            if not self._is_failed:
                _logger.warning("%s: the progress cannot be written: %s", self._target, error)
            self._is_failed = True


class _Poster:
    """A thread that sends the newest report."""

    def __init__(self, url: str, token_file: str, ca_file: str) -> None:
        self._url, self._token_file, self._ca_file = url, token_file, ca_file
        self._report: dict[str, Any] | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="progress of fit", daemon=True)
        self._thread.start()

    def put(self, report: dict[str, Any]) -> None:
        with self._changed:
            self._report = report
            self._changed.notify()

    def close(self, report: dict[str, Any]) -> None:
        with self._changed:
            self._report, self._is_closed = report, True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        is_closed = False
        while not is_closed:
            with self._changed:
                self._changed.wait_for(lambda: self._report is not None)
                report, self._report = self._report, None
                is_closed = self._is_closed
            assert report is not None
            try:
                self._send(report)
            except (OSError, ValueError, http.client.HTTPException) as error:
                if str(error) != self._error:
                    _logger.warning("%s: the progress cannot be sent: %s", self._url, error)
                self._error = str(error)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, POST_SECONDS)

    def _send(self, report: Mapping[str, Any]) -> None:
        status = {
            "progressPercentage": report["percentage"],
            "metrics": report["metrics"],
            "lastUpdatedTime": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if "estimatedRemainingSeconds" in report:
            status["estimatedRemainingSeconds"] = report["estimatedRemainingSeconds"]
        headers = {"Content-Type": "application/json"}
        if self._token_file:
            # The kubelet replaces the token while the pod runs.
            headers["Authorization"] = f"Bearer {Path(self._token_file).read_text(encoding='utf-8').strip()}"
        context = ssl.create_default_context(cafile=self._ca_file or None) if self._url.startswith("https:") else None
        body = json.dumps({"trainerStatus": status}).encode()
        request = urllib.request.Request(self._url, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=context) as response:
            response.read()
