"""MLflow runs, logged by their own thread."""

from __future__ import annotations

import functools
import logging
import os
import posixpath
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.retries import wait_with_jitter
from kfp_mindspore.settings import MLFLOW_PARENT_VARIABLE, MLFLOW_RUN_VARIABLE, MLFLOW_URI_VARIABLE
from kfp_mindspore.tracking.tracker import STEP_LOSS, TrackerState

if TYPE_CHECKING:
    from tenacity import RetryCallState

_PARENT_TAG = "mlflow.parentRunId"
CHECKPOINT_TAG = "kfp_mindspore.checkpoint_dir"
# Points that wait for a server that is down; further steps' losses are not logged.
WAITING_POINTS = 20_000
# A finished training waits so long for a server that is slow; a failed or terminated one, and any training for a server
# that has failed to answer, so long.
SLOW_SECONDS, DOWN_SECONDS = 60.0, 10.0
# MLflow's server takes at most 1,000 metrics in a request, names of 250 characters, and parameter values of 6,000.
_REQUEST_METRICS = 900
_NAME_LENGTH = 250
_VALUE_LENGTH = 6000
# Of the first and of the longest delay between two attempts.
_DELAYS = (1.0, 30.0)
# MLflow's own: 7 retries of 120 s, which a server that is up again would wait for.
_CLIENT_DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_logger = logging.getLogger(__name__)

_Point = tuple[int, dict[str, float], int]


class MlflowTracker:
    """Logs to the run in MLFLOW_RUN_ID, or to a new one, with MLflow's client and environment variables.

    A new run is nested in the run in KFP_MINDSPORE_MLFLOW_PARENT_RUN_ID, if that is set.

    The server may be down: the points wait, and those that are never sent are counted in a warning.

    Args:
        location: The checkpoint directory or URI, which the run has as a tag.
    """

    def __init__(self, location: str | None) -> None:
        self._location = location
        # The thread may outlive the environment that named the server.
        self._uri = os.environ.get(MLFLOW_URI_VARIABLE)
        self._run_id = os.environ.get(MLFLOW_RUN_VARIABLE, "")
        # The run's creator ends it.
        self._is_owner = not self._run_id
        self._parameters: dict[str, str] = {}
        self._points: deque[_Point] = deque()
        self._sending: list[_Point] = []
        self._dropped = 0
        self._ending: tuple[str, Mapping[str, str]] | None = None
        self._deadline = 0.0
        self._changed = threading.Condition()
        self._is_resumed = False
        self._warned = ""
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    def begin(self, parameters: Mapping[str, Any], state: TrackerState | None, step: int) -> None:
        """Start the thread; a resumed training continues the earlier run."""
        _set_client_defaults()
        self._parameters = {name: str(value)[:_VALUE_LENGTH] for name, value in parameters.items()}
        if state is not None:
            self._is_resumed = True
            self._run_id = self._run_id or state["run_id"]
            self._points.extend((step, values, milliseconds) for step, values, milliseconds in state["points"])
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Let the thread send the values."""
        with self._changed:
            if len(self._points) >= WAITING_POINTS and STEP_LOSS in values:
                self._dropped += 1
                return
            self._points.append((step, dict(values), int(time.time() * 1000)))
            self._changed.notify()

    def read_state(self) -> TrackerState:
        """Return the run's id, empty before the server has answered, and the points that it has not."""
        with self._changed:
            return {"run_id": self._run_id, "points": [list(point) for point in (*self._sending, *self._points)]}

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        """Wait for the server to have all points, for SLOW_SECONDS at most."""
        with self._changed:
            self._ending, self._deadline = (status, tags), time.monotonic() + DOWN_SECONDS
            self._changed.notify()
        self._thread.join(DOWN_SECONDS)
        if status == "FINISHED" and not self._warned:
            self._thread.join(SLOW_SECONDS - DOWN_SECONDS)
        with self._changed:
            lost = len(self._sending) + len(self._points) + self._dropped
        if lost or self._thread.is_alive():
            _logger.warning(
                "MLflow has not received %d of the training's points%s; metrics.jsonl has every epoch",
                lost,
                f" ({self._warned})" if self._warned else "",
            )

    def _run(self) -> None:
        session = self._retry(self._open)
        if session is None:
            return
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._points or self._ending)
                while self._points and sum(len(values) for _, values, _ in self._sending) < _REQUEST_METRICS:
                    self._sending.append(self._points.popleft())
            if self._sending:
                if self._retry(lambda: session.send(self._sending)) is None:
                    return
                with self._changed:
                    self._sending = []
            elif self._ending is not None:
                self._retry(functools.partial(self._end, session, *self._ending))
                return

    def _end(self, session: _Session, status: str, tags: Mapping[str, str]) -> None:
        session.end(status if self._is_owner else None, tags)

    def _open(self) -> _Session:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(self._uri)
        session = _Session(client, self._run_id, self._location, self._parameters, is_resumed=self._is_resumed)
        with self._changed:
            self._run_id = session.run_id
        return session

    def _retry(self, call: Any) -> Any:
        """Return the call's result once it succeeds, or None when the training has ended without it."""
        from mlflow.exceptions import MlflowException
        from tenacity import Retrying, retry_if_exception_type

        retrying = Retrying(
            retry=retry_if_exception_type((MlflowException, OSError)),
            wait=wait_with_jitter(*_DELAYS),
            stop=lambda _: self._ending is not None and time.monotonic() > self._deadline,
            sleep=self._sleep,
            before_sleep=self._warn,
            retry_error_callback=lambda _: None,
        )
        return retrying(call)

    def _sleep(self, seconds: float) -> None:
        """Wait for the next attempt, at the latest the training's end."""
        with self._changed:
            if self._ending is None:
                self._changed.wait_for(lambda: self._ending is not None, seconds)
            else:
                self._changed.wait(min(seconds, _DELAYS[0]))

    def _warn(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        message = str(error).partition("\n")[0]
        if message != self._warned:
            _logger.warning("MLflow cannot be reached; points wait for it, the training goes on: %s", message)
        self._warned = message


class _Session:
    """A run on the server."""

    def __init__(
        self, client: Any, run_id: str, location: str | None, parameters: Mapping[str, str], *, is_resumed: bool
    ) -> None:
        from mlflow.entities import Param

        self._client = client
        self._logged: dict[str, int] = {}
        is_known = bool(run_id)
        self.run_id = run_id or self._find(location) or self._create(location)
        run = self._client.get_run(self.run_id)
        if is_known or run.data.metrics:
            # An interrupted training's points behind its last checkpoint are computed again.
            self._logged = {name: self._find_last(name) for name in run.data.metrics}
        given = {_to_key(name): value for name, value in parameters.items()}
        missing = [Param(name, value) for name, value in given.items() if name not in run.data.params]
        self._client.log_batch(self.run_id, params=missing)
        if run.info.status != "RUNNING":
            self._client.update_run(self.run_id, status="RUNNING")

    def _find(self, location: str | None) -> str:
        """Return the run of a training that was killed before the first checkpoint, or ''."""
        experiment = self._find_experiment()
        if location is None or not experiment:
            return ""
        tag = location.replace("'", "")
        found = self._client.search_runs(
            [experiment], f"tags.`{CHECKPOINT_TAG}` = '{tag}' and attributes.status = 'RUNNING'", max_results=1
        )
        return found[0].info.run_id if found else ""

    def _create(self, location: str | None) -> str:
        experiment = self._find_experiment() or self._client.create_experiment(_get_experiment_name())
        tags = {} if location is None else {CHECKPOINT_TAG: location.replace("'", "")}
        if parent := os.environ.get(MLFLOW_PARENT_VARIABLE):
            tags[_PARENT_TAG] = parent
        return str(self._client.create_run(experiment, tags=tags).info.run_id)

    def _find_experiment(self) -> str:
        if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return number
        found = self._client.get_experiment_by_name(_get_experiment_name())
        return "" if found is None else str(found.experiment_id)

    def _find_last(self, name: str) -> int:
        return max(int(metric.step) for metric in self._client.get_metric_history(self.run_id, name))

    def send(self, points: list[_Point]) -> bool:
        """Log the points that the server does not have."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, milliseconds, step)
            for step, values, milliseconds in points
            for name, value in ((_to_key(name), value) for name, value in values.items())
            if step > self._logged.get(name, -1)
        ]
        if metrics:
            self._client.log_batch(self.run_id, metrics=metrics)
            self._logged.update({metric.key: metric.step for metric in metrics})
        return True

    def end(self, status: str | None, tags: Mapping[str, str]) -> None:
        """Set the tags, and the status unless the run belongs to someone else."""
        from mlflow.entities import RunTag

        self._client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        if status is not None:
            self._client.set_terminated(self.run_id, status)


def _to_key(name: str) -> str:
    """Return a name that MLflow accepts: it refuses whole requests for one such as `top@5` or `/loss`."""
    key = re.sub(r"[^/\w.\- :]", "_", name)[:_NAME_LENGTH]
    is_path = posixpath.normpath(key) == key and not key.startswith(("/", "."))
    return key if is_path else re.sub(r"^\.|/", "_", key) or "_"


def _get_experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"


def tag_run(run_id: str, tags: Mapping[str, str]) -> None:
    """Set a run's tags; a server that cannot be reached is a warning."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    _set_client_defaults()
    try:
        for name, value in tags.items():
            MlflowClient().set_tag(run_id, name, value)
    except (MlflowException, OSError) as error:
        _logger.warning("MLflow run %s has no tags %s: %s", run_id, ", ".join(tags), str(error).partition("\n")[0])


def _set_client_defaults() -> None:
    for name, value in _CLIENT_DEFAULTS.items():
        os.environ.setdefault(name, value)
