"""Waiting until a run on a server ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kfp_mindspore.errors import ProcessFailedError, WaitTimeoutError
from kfp_mindspore.runs.remote.records import RemoteRun
from kfp_mindspore.runs.workflow import SLOW_START_SECONDS, FailedStep, RunOnCluster

POLL_SECONDS = 5.0
# A run of a minute is polled each second, one of four minutes or more each five.
_SHORTEST_POLL_SECONDS = 1.0
_POLL_SHARE = 0.02
# A failed step's last lines.
LOG_LINES = 20


def wait_for_run(
    get_run: Callable[[], RemoteRun],
    on_cluster: RunOnCluster | None,
    list_failed_steps: Callable[[RemoteRun, RunOnCluster | None], Sequence[FailedStep]],
    *,
    timeout: float | None,
    interval: float,
    on_change: Callable[[RemoteRun], None] | None = None,
    on_obstacle: Callable[[str], None] | None = None,
) -> RemoteRun:
    """Wait until a run has succeeded; see `RemoteClient.wait`.

    Args:
        get_run: Requests the run.
        on_cluster: The run's Workflow and pods; None without a cluster.
        list_failed_steps: Returns a finished run's failed steps.
        timeout: Timeout in seconds; None without a limit.
        interval: Longest poll interval in seconds.
        on_change: Called after each change in the run.
        on_obstacle: Called once with each reason why a pod does not start.
    """
    started = time.monotonic()
    deadline = None if timeout is None else started + timeout
    monitor = _Monitor(on_cluster, on_obstacle)
    seen: RemoteRun | None = None
    while True:
        run = get_run()
        if on_change is not None and (seen is None or (run.state, run.steps) != (seen.state, seen.steps)):
            on_change(run)
        seen = run
        if run.is_finished:
            break
        monitor.poll(run)
        pause = min(interval, max(_SHORTEST_POLL_SECONDS, _POLL_SHARE * (time.monotonic() - started)))
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeoutError(
                f"run {run.name}: still {run.state} after {timeout:g} s", hint=f"The run continues: {run.url}"
            )
        time.sleep(min(pause, left))
    if run.state != "SUCCEEDED":
        jobs = on_cluster.list_left_jobs() if on_cluster is not None and not run.is_terminated else ()
        raise make_failure(run, list_failed_steps(run, on_cluster), jobs)
    return run


def make_failure(run: RemoteRun, failed: Sequence[FailedStep], left: Sequence[str] = ()) -> ProcessFailedError:
    """Return the error for a run that did not succeed: failed steps, reasons and last lines, and jobs it left."""
    texts = [f"{step.name} ({step.reason})" if step.reason else step.name for step in failed]
    steps = f" in step {', '.join(texts)}" if texts else ""
    error = f": {run.error}" if run.error else ""
    # The reason may be a log line.
    log = next((tuple(line for line in step.log if line != step.reason) for step in failed if step.log), ())
    end = "was terminated" if run.is_terminated else f"ended {run.state}"
    return ProcessFailedError(
        f"run {run.name} {end}{steps}{error}", log=log, hint="\n".join([*left, f"Details: {run.url}"])
    )


class _Monitor:
    """Reports an unfinished run's obstacles once each, and a deleted Workflow as a failure."""

    def __init__(self, on_cluster: RunOnCluster | None, on_obstacle: Callable[[str], None] | None) -> None:
        self._on_cluster = on_cluster
        self._on_obstacle = on_obstacle
        self._reported: set[str] = set()
        self._pending: dict[str, float] = {}
        self._missing = 0

    def poll(self, run: RemoteRun) -> None:
        if self._on_cluster is None:
            self._report(self._list_slow_starts(run))
            return
        obstacles = self._on_cluster.list_obstacles()
        self._report(obstacles if self._on_cluster.is_readable else self._list_slow_starts(run))
        # Twice: the server stores the final state after the Workflow's end.
        self._missing = self._missing + 1 if self._on_cluster.is_deleted() else 0
        if self._missing > 1:
            raise ProcessFailedError(
                f"run {run.name}: its Workflow was deleted; the server reports it as {run.state} forever",
                hint=f"Delete it: kfp run delete {run.run_id}",
            )

    def _report(self, obstacles: Sequence[str]) -> None:
        for text in obstacles:
            if self._on_obstacle is not None and text not in self._reported:
                self._on_obstacle(text)
            self._reported.add(text)

    def _list_slow_starts(self, run: RemoteRun) -> list[str]:
        """Return a sentence for each step that has been pending for a minute; only the cluster knows the reason."""
        now = time.monotonic()
        self._pending = {name: self._pending.get(name, now) for name in run.pending}
        slow = [name for name, since in self._pending.items() if now - since >= SLOW_START_SECONDS]
        return [
            f"{name}: its pod has not started for {SLOW_START_SECONDS:g} s; the reason needs access to the cluster, "
            "see --kubeconfig"
            for name in slow
        ]
