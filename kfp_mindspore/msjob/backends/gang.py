"""The processes of one local job, started and ended together. Used by its supervisor only."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.local.process import (
    ProcessIdentity,
    kill_descendants,
    kill_group,
    reap_orphans,
    spawn_child,
    terminate_groups,
)
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.backends.process_spec import LOCAL_ADDRESS, build_process_spec
from kfp_mindspore.msjob.backends.state import JobDirectory, JobRequest
from kfp_mindspore.msjob.manifest import now
from kfp_mindspore.msjob.restart import START_ERROR, ContainerTermination
from kfp_mindspore.msjob.topology import Endpoints, Member, build_topology
from kfp_mindspore.msjob.types import MSJob


@dataclass
class _Running:
    member: Member
    pod: Pod
    process: subprocess.Popen[bytes] | None


class Gang:
    """All members of one attempt.

    Args:
        job: The job.
        restarts: How often it was restarted before this attempt.
    """

    def __init__(self, job: MSJob, restarts: int) -> None:
        self._job = job
        self._restarts = restarts
        self._members: list[_Running] = []

    def start(self, directory: JobDirectory, submission: JobRequest) -> None:
        """Start every member; one that cannot be started ends with the reason `StartError`, and no more are started."""
        topology = build_topology(self._job, Endpoints(LOCAL_ADDRESS, find_free_port()))
        self._members = [
            _Running(member, Pod(member.name, self._job.namespace, member.replica_type, member.index), None)
            for member in topology.members
        ]
        for running in self._members:
            member, pod = running.member, running.pod
            pod.labels, pod.restarts, pod.start_time = member.labels, self._restarts, now()
            plan = build_process_spec(self._job, member, environment=submission.environment, cwd=Path(submission.cwd))
            try:
                running.process = spawn_child(
                    plan.argv,
                    cwd=plan.cwd,
                    env=plan.environment,
                    log=directory.log_file(member.name),
                    own_session=True,
                )
            except OSError as error:
                pod.phase, pod.reason, pod.message = "Failed", START_ERROR, str(error)
                pod.exit_code, pod.finish_time = 128, now()
                return
            pod.phase, pod.pid = "Running", running.process.pid
            identity = ProcessIdentity.of(running.process.pid)
            pod.process_start = identity.start_time if identity is not None else None

    @property
    def pods(self) -> list[Pod]:
        """The members as pods."""
        return [running.pod for running in self._members]

    @property
    def endings(self) -> list[tuple[ContainerTermination, str]]:
        """How each member stands, with its restart policy."""
        return [
            (
                ContainerTermination(
                    running.pod.name,
                    running.pod.replica_type,
                    running.pod.index,
                    running.pod.exit_code,
                    running.pod.reason or "",
                    running.pod.message or "",
                ),
                running.member.spec.restart_policy or "Never",
            )
            for running in self._members
        ]

    @property
    def grace_seconds(self) -> float:
        """The longest grace period of its members."""
        return max((running.member.spec.grace_seconds for running in self._members), default=0.0)

    def is_running(self) -> bool:
        """Tell whether a member still runs, as of the last `poll`."""
        return any(running.pod.phase == "Running" for running in self._members)

    def poll(self) -> bool:
        """Take note of members that ended; what they left behind in their process groups is killed.

        Returns:
            Whether any did.
        """
        changed = False
        for running in self._members:
            if running.process is None or running.pod.exit_code is not None:
                continue
            status = running.process.poll()
            if status is None:
                continue
            changed = True
            kill_group(running.process.pid)
            pod = running.pod
            pod.exit_code = status if status >= 0 else 128 - status
            pod.finish_time = now()
            pod.phase = "Succeeded" if pod.exit_code == 0 else "Failed"
            pod.reason = "Completed" if pod.exit_code == 0 else "Error"
            if status < 0:
                pod.message = f"killed by {signal.Signals(-status).name}"
        return changed

    def wait(self, seconds: float, is_interrupted: Callable[[], bool]) -> None:
        """Wait until all have ended by themselves, for some time at most."""
        deadline = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < deadline and not is_interrupted():
            time.sleep(0.02)
            self.poll()

    def end(self, grace_seconds: float, reason: str) -> None:
        """End all members that still run, and whatever they started.

        Args:
            grace_seconds: Seconds between SIGTERM and SIGKILL; 0 kills at once.
            reason: Written as the reason of each pod that had to be ended.
        """
        self.poll()
        running = [item for item in self._members if item.pod.phase == "Running" and item.process is not None]
        terminate_groups([item.process.pid for item in running if item.process is not None], grace_seconds)
        kill_descendants()
        for item in running:
            if item.process is not None:
                item.process.wait()
        self.poll()
        for item in running:
            if item.pod.exit_code != 0:
                item.pod.reason = reason
        reap_orphans()


def find_free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOCAL_ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port
