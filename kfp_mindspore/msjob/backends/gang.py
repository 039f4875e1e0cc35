"""The processes for one attempt by a local job, started and terminated together; used by its supervisor only."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.local.out_of_memory import OomKills
from kfp_mindspore.local.ports import is_port_free, list_free_ports
from kfp_mindspore.local.process import ProcessIdentity, kill_group
from kfp_mindspore.local.supervisor import Supervisor
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.backends.heartbeats import Heartbeats, get_hang_seconds
from kfp_mindspore.msjob.backends.process_spec import LOCAL_ADDRESS, ProcessSpec, build_process_spec
from kfp_mindspore.msjob.backends.spares import Spares
from kfp_mindspore.msjob.backends.state import JobDirectory, JobRequest
from kfp_mindspore.msjob.manifest import now
from kfp_mindspore.msjob.names import SCHEDULER, WORKER
from kfp_mindspore.msjob.restart import OOM_KILLED, START_ERROR, MemberTermination
from kfp_mindspore.msjob.topology import Endpoints, Member, build_topology
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import (
    HANG_EXIT_CODE,
    HEARTBEAT_VARIABLE,
    PROGRESS_VARIABLE,
    STACKS_SIGNAL,
    TERMINATED_EXIT_CODE,
)

HUNG = "Hung"
# faulthandler writes a process's stacks in a few milliseconds.
_STACKS_SECONDS = 0.3


@dataclass
class _Running:
    member: Member
    pod: Pod
    process: subprocess.Popen[bytes] | None


class ProcessGang:
    """All members in one attempt.

    Args:
        job: The job.
        workers: This attempt's worker count.
        restarts: Restarts before this attempt.
        supervisor: The processes' owner.
        heartbeats: The workers' heartbeats.
        spares: Warm spares, which become members.
    """

    def __init__(
        self,
        job: MSJob,
        workers: int,
        restarts: int,
        supervisor: Supervisor,
        heartbeats: Heartbeats,
        spares: Spares,
    ) -> None:
        self.workers = workers
        self._job = job
        self._supervisor = supervisor
        self._restarts = restarts
        self._heartbeats = heartbeats
        self._spares = spares
        self._members: list[_Running] = []
        self._hang_seconds: dict[str, float] = {}
        self._port: int | None = None
        self._oom_kills = OomKills()
        self.spares_used = 0
        self.worker_spec: ProcessSpec | None = None

    def start(self, directory: JobDirectory, request: JobRequest) -> None:
        """Start every member; the first that cannot be started fails with the reason `StartError`."""
        topology = build_topology(self._job, Endpoints(LOCAL_ADDRESS, list_free_ports(1)[0]), self.workers)
        self._port = topology.scheduler_port
        self._heartbeats.clear()
        self._members = [
            _Running(member, Pod(member.name, self._job.namespace, member.replica_type, member.index), None)
            for member in topology.members
        ]
        for running in self._members:
            member, pod = running.member, running.pod
            pod.labels, pod.restarts, pod.start_time = member.labels, self._restarts, now()
            # A job submitted by another job's worker 0 must not report as that job.
            environment = {name: value for name, value in request.environment.items() if name != PROGRESS_VARIABLE}
            if (member.replica_type, member.index) == (WORKER, 0):
                environment[PROGRESS_VARIABLE] = str(directory.progress_file)
            if member.replica_type == WORKER:
                environment[HEARTBEAT_VARIABLE] = str(self._heartbeats.get_file(member.name))
            spec = build_process_spec(self._job, member, environment=environment, cwd=Path(request.cwd))
            if member.replica_type == WORKER:
                self.worker_spec = spec
                self._hang_seconds[member.name] = get_hang_seconds(spec.environment)
            log = directory.log_file(member.name)
            try:
                running.process = self._spares.assign(spec, log)
                if running.process is not None:
                    self.spares_used += 1
                else:
                    running.process = self._supervisor.spawn(
                        spec.argv, cwd=spec.cwd, env=spec.environment, log=log, own_session=True
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
    def terminations(self) -> list[tuple[MemberTermination, str]]:
        """Each member's state, with its restart policy."""
        return [
            (
                MemberTermination(
                    running.pod.name,
                    running.pod.replica_type,
                    running.pod.index,
                    running.pod.exit_code,
                    running.pod.reason or "",
                    running.pod.message or "",
                ),
                self._job.get_replica_spec(running.pod.replica_type).effective_restart_policy,
            )
            for running in self._members
        ]

    @property
    def grace_seconds(self) -> float:
        """Its members' longest grace period."""
        return max((self._job.get_replica_spec(pod.replica_type).grace_seconds for pod in self.pods), default=0.0)

    def is_running(self) -> bool:
        """Return whether a member still ran at the last `poll`."""
        return any(running.pod.phase == "Running" for running in self._members)

    def poll(self) -> bool:
        """Update exited members' pods; kill what they left in their process groups.

        Returns:
            Whether any exited.
        """
        changed = False
        is_out_of_memory = self._oom_kills.is_recent(time.monotonic())
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
            if pod.exit_code == HANG_EXIT_CODE:
                self._mark_hung(pod)
            elif self._is_preempted(pod, status):
                # `end` writes another reason for members that it has terminated.
                pod.reason, pod.message = "Preempted", "terminated by SIGTERM from outside"
            elif status == -signal.SIGKILL and is_out_of_memory:
                pod.reason, pod.message = OOM_KILLED, "out of memory: killed by the kernel's OOM killer"
            elif status < 0:
                pod.message = f"killed by {signal.Signals(-status).name}"
        return changed

    def kill_hung(self, now: float) -> None:
        """Kill the workers whose heartbeat is too old.

        Args:
            now: time.monotonic().
        """
        running = {item.pod.name: item for item in self._members if item.pod.phase == "Running"}
        limits = {name: seconds for name, seconds in self._hang_seconds.items() if name in running}
        stale = self._heartbeats.list_stale(limits, now)
        if not stale:
            return
        self.dump_stacks()
        for item in (running[name] for name in stale):
            assert item.process is not None
            kill_group(item.process.pid)
            item.process.wait()
        self.poll()
        for item in (running[name] for name in stale):
            self._mark_hung(item.pod, "no heartbeat")

    def dump_stacks(self) -> None:
        """Have each worker that trains write its threads' stacks to its log."""
        for item in self._members:
            pod = item.pod
            if item.process is not None and pod.phase == "Running" and self._heartbeats.read(pod.name) is not None:
                kill_group(item.process.pid, STACKS_SIGNAL)
        time.sleep(_STACKS_SECONDS)

    @property
    def is_hung(self) -> bool:
        """Whether a member was ended because it hung."""
        return any(running.pod.reason == HUNG for running in self._members)

    @property
    def is_port_taken(self) -> bool:
        """Whether the scheduler failed because another process had taken its port since it was chosen."""
        schedulers = [item.pod for item in self._members if item.pod.replica_type == SCHEDULER]
        return any(pod.exit_code for pod in schedulers) and self._port is not None and not is_port_free(self._port)

    @property
    def has_trained(self) -> bool:
        """Whether a worker has completed a step."""
        beats = (self._heartbeats.read(running.pod.name) for running in self._members)
        return any(beat is not None and beat.step is not None for beat in beats)

    def _is_preempted(self, pod: Pod, status: int) -> bool:
        """Return whether a member exited because of SIGTERM; any script may exit with its code."""
        beat = self._heartbeats.read(pod.name)
        is_handled = beat is not None and beat.ended == "terminated"
        return status == -signal.SIGTERM or (status == TERMINATED_EXIT_CODE and is_handled)

    def _mark_hung(self, pod: Pod, what: str = "no step completed") -> None:
        late = self._heartbeats.describe(self._hang_seconds)
        pod.reason = HUNG
        pod.message = f"{what} for {self._hang_seconds[pod.name]:g} s" + (f"; {late}" if late else "")

    def wait(self, seconds: float, is_interrupted: Callable[[], bool]) -> None:
        """Wait until all members have exited, or the time has passed."""
        deadline = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < deadline and not is_interrupted():
            time.sleep(0.02)
            self.poll()

    def end(self, grace_seconds: float, reason: str) -> None:
        """Terminate all members that still run, and their descendants.

        Args:
            grace_seconds: Seconds between SIGTERM and SIGKILL; 0 kills at once.
            reason: Reason for each terminated pod.
        """
        self.poll()
        running = [item.pod for item in self._members if item.pod.phase == "Running"]
        self._supervisor.end_children(grace_seconds, keep=self._spares.pids)
        self.poll()
        for pod in running:
            if pod.exit_code != 0:
                pod.reason = reason
