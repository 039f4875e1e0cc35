"""An MLflow server on SQLite, which a test can stop and start again."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from mlflow.tracking import MlflowClient

from tests.support.ports import reserve_port

SECONDS = 300.0


class MlflowServer:
    """The server; a context manager that stops it.

    Args:
        root: Directory for its database and its log.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._port = reserve_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.client: Any = MlflowClient(self.url)

    def __enter__(self) -> MlflowServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        # Without the queue of its own jobs, which takes seconds to start.
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self._port)]
        command += ["--backend-store-uri", f"sqlite:///{self._root / 'mlflow.db'}"]
        command += ["--artifacts-destination", str(self._root / "artifacts")]
        with (self._root / "mlflow.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._root, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + SECONDS
        while not self._is_healthy():
            assert time.monotonic() < deadline, (self._root / "mlflow.log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it and its worker."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def get_run(self, experiment: str) -> Any:
        """Return an experiment's only run."""
        (run,) = self.client.search_runs([self.client.get_experiment_by_name(experiment).experiment_id])
        return run

    def wait_for_run(self, experiment: str) -> None:
        """Return when an experiment has a run."""
        deadline = time.monotonic() + SECONDS
        while (found := self.client.get_experiment_by_name(experiment)) is None or not self.client.search_runs(
            [found.experiment_id]
        ):
            assert time.monotonic() < deadline, f"{experiment} has no run"
            time.sleep(0.1)

    def get_steps(self, run_id: str, name: str) -> list[int]:
        """Return the steps of a metric's points, in the order of the steps; a step twice is two points."""
        return sorted(metric.step for metric in self.client.get_metric_history(run_id, name))

    def _is_healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._root / "mlflow.log").read_text()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
