"""The processes for one attempt by a local job, started and terminated together by its supervisor.

A pod template's fields are honoured, ignored or refused:

| field | local backend |
|---|---|
| command, args, `$(NAME)` in them | honoured; `python` and `python3` run this interpreter; a command is required |
| env value | honoured, overrides MS_*, which override the submitting process's environment |
| (with several workers) | unless OMP_NUM_THREADS is set: a worker's share of the cores, to which `fit` binds it |
| env valueFrom.fieldRef | honoured: name, namespace, uid, a label, an annotation, podIP, hostIP, nodeName |
| env valueFrom other, envFrom | refused, unless optional: then left out |
| workingDir | honoured, from the submitting process's directory; it must exist |
| terminationGracePeriodSeconds | honoured |
| volumeMounts | the machine's own path is used, with a warning; refused when it does not exist |
| initContainers | refused: their results would be missing |
| further containers | warned of: they do not run |
| resources | warned of: nothing is limited |
| image | ignored, warned of unless it is this package's placeholder |
| everything about scheduling, security, probes | ignored |
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.local.cores import list_cores
from kfp_mindspore.local.out_of_memory import OomKills
from kfp_mindspore.local.ports import is_port_free, list_free_ports
from kfp_mindspore.local.process import Child, ProcessIdentity, ProcessSpec, Supervisor, kill_group
from kfp_mindspore.local.reads import add_recorder
from kfp_mindspore.msjob.api.manifest import now
from kfp_mindspore.msjob.api.names import CONTAINER_NAME, SCHEDULER, WORKER
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.backends.forks import WarmInterpreter
from kfp_mindspore.msjob.backends.heartbeats import Heartbeats, get_hang_seconds
from kfp_mindspore.msjob.commands import get_script
from kfp_mindspore.msjob.decisions.restart import OOM_KILLED, START_ERROR, MemberTermination
from kfp_mindspore.msjob.decisions.topology import VARIABLES, Endpoints, Member, build_topology
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import (
    CORES_VARIABLE,
    HANG_EXIT_CODE,
    HEARTBEAT_VARIABLE,
    PLACEHOLDER_IMAGE,
    POD_DEVICE_VARIABLE,
    PROGRESS_VARIABLE,
    STACKS_SIGNAL,
    TERMINATED_EXIT_CODE,
    THREADS_VARIABLE,
    WORKER_COUNT_VARIABLE,
)

HUNG = "Hung"
# faulthandler writes a process's stacks in a few milliseconds.
_STACKS_SECONDS = 0.3
PYTHON_WORDS = frozenset({"python", "python3"})
LOCAL_ADDRESS = "127.0.0.1"
# Placeholder port for a topology that is only checked.
_ANY_PORT = 1024

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass
class _Running:
    member: Member
    pod: Pod
    process: Child | None


class ProcessGang:
    """All members in one attempt.

    Args:
        job: The job.
        workers: This attempt's worker count.
        restarts: Restarts before this attempt.
        supervisor: The processes' owner.
        heartbeats: The workers' heartbeats.
        warm: The supervisor's process, from which members are forked.
    """

    def __init__(
        self,
        job: MSJob,
        workers: int,
        restarts: int,
        supervisor: Supervisor,
        heartbeats: Heartbeats,
        warm: WarmInterpreter,
    ) -> None:
        self.workers = workers
        self._job = job
        self._supervisor = supervisor
        self._restarts = restarts
        self._heartbeats = heartbeats
        self._warm = warm
        self._members: list[_Running] = []
        self._hang_seconds: dict[str, float] = {}
        self._port: int | None = None
        self._oom_kills = OomKills()

    def start(
        self, environment: Mapping[str, str], cwd: Path, *, progress: Path, get_log: Callable[[str], Path]
    ) -> None:
        """Start every member; the first that cannot be started fails with the reason `StartError`.

        Args:
            environment: The submitting process's environment.
            cwd: The submitting process's directory.
            progress: File for worker 0's progress.
            get_log: Returns a member's log file.
        """
        topology = build_topology(self._job, Endpoints(LOCAL_ADDRESS, list_free_ports(1)[0]), self.workers)
        self._port = topology.scheduler_port
        self._heartbeats.clear()
        specs: dict[str, ProcessSpec] = {}
        self._members = [
            _Running(member, Pod(member.name, self._job.namespace, member.replica_type, member.index), None)
            for member in topology.members
        ]
        for running in self._members:
            member, pod = running.member, running.pod
            pod.labels, pod.restarts, pod.start_time = member.labels, self._restarts, now()
            # A job submitted by another job's worker 0 must not report as that job.
            given = {name: value for name, value in environment.items() if name != PROGRESS_VARIABLE}
            if (member.replica_type, member.index) == (WORKER, 0):
                given[PROGRESS_VARIABLE] = str(progress)
            if member.replica_type == WORKER:
                given[HEARTBEAT_VARIABLE] = str(self._heartbeats.get_file(member.name))
            specs[member.name] = spec = build_process_spec(self._job, member, environment=given, cwd=cwd)
            self._hang_seconds[member.name] = get_hang_seconds(spec.environment)
            if (member.replica_type, member.index) == (WORKER, 0):
                self._warm.prepare(spec)
        for running in self._members:
            pod = running.pod
            try:
                running.process = self._start_process(specs[pod.name], get_log(pod.name))
            except OSError as error:
                pod.phase, pod.reason, pod.message = "Failed", START_ERROR, str(error)
                pod.exit_code, pod.finish_time = 128, now()
                return
            pod.phase, pod.pid = "Running", running.process.pid
            identity = ProcessIdentity.of(running.process.pid)
            pod.process_start = identity.start_time if identity is not None else None

    def _start_process(self, spec: ProcessSpec, log: Path) -> Child:
        if (forked := self._warm.fork(spec, log)) is not None:
            self._supervisor.add_child(forked)
            return forked
        return self._supervisor.spawn(spec.argv, cwd=spec.cwd, env=spec.environment, log=log, own_session=True)

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
        """Return whether a member exited because of SIGTERM; any script may exit with that code."""
        beat = self._heartbeats.read(pod.name)
        is_handled = beat is not None and beat.ended == "terminated"
        return status == -signal.SIGTERM or (status == TERMINATED_EXIT_CODE and is_handled)

    def _mark_hung(self, pod: Pod, what: str = "no step completed") -> None:
        late = self._heartbeats.describe(item.pod.name for item in self._members if item.member.replica_type == WORKER)
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
        self._supervisor.end_children(grace_seconds)
        self.poll()
        for pod in running:
            if pod.exit_code != 0:
                pod.reason = reason


def build_process_spec(job: MSJob, member: Member, *, environment: Mapping[str, str], cwd: Path) -> ProcessSpec:
    """Return the process that runs a member.

    Args:
        job: The member's job.
        member: The member.
        environment: The submitting process's environment.
        cwd: The submitting process's directory.
    """
    container = job.get_replica_spec(member.replica_type).container
    variables = dict(member.environment)
    for item in container.get("env") or []:
        value = _read_variable(job, member, item)
        if value is not None:
            variables[item["name"]] = _expand(value, variables)
    # A job submitted by another job's worker must not inherit its topology.
    base = {name: value for name, value in environment.items() if name not in VARIABLES}
    base.setdefault("PYTHONUNBUFFERED", "1")
    # Resources are ignored, and so is the device that they imply.
    variables.pop(POD_DEVICE_VARIABLE, None)
    if WORKER_COUNT_VARIABLE in member.environment and member.replica_type == WORKER:
        # All workers share this machine's devices.
        base |= {"LOCAL_RANK": str(member.index), "LOCAL_WORLD_SIZE": member.environment[WORKER_COUNT_VARIABLE]}
    if WORKER_COUNT_VARIABLE in member.environment and THREADS_VARIABLE not in {**base, **variables}:
        # By default each process runs one OpenMP thread per core, and MindSpore's threads wait in loops: several
        # processes on the same cores starve each other.
        cores = list_cores() if member.replica_type == WORKER else []
        share = len(cores) // int(member.environment[WORKER_COUNT_VARIABLE])
        base[THREADS_VARIABLE] = str(max(1, share))
        if share:
            own = cores[member.index * share : (member.index + 1) * share]
            base[CORES_VARIABLE] = ",".join(map(str, own))
    words = [_expand(word, variables) for word in (*container.get("command", ()), *container.get("args", ()))]
    if words and words[0] in PYTHON_WORDS:
        words[0] = sys.executable
    directory = cwd / container.get("workingDir", "")
    return ProcessSpec(tuple(words), directory, add_recorder({**base, **variables}))


def check_job(job: MSJob, *, environment: Mapping[str, str], cwd: Path) -> list[str]:
    """Check whether this machine can run a job.

    Args:
        job: A valid job.
        environment: The submitting process's environment.
        cwd: The submitting process's directory.

    Returns:
        One sentence for each ignored or replaced field.

    Raises:
        ValidationError: It cannot; the message names the fields.
    """
    errors: list[str] = []
    warnings: list[str] = []
    seen: set[str] = set()
    for member in build_topology(job, Endpoints(LOCAL_ADDRESS, _ANY_PORT)).members:
        kind = member.replica_type if member.replica_type in job.ms_replica_specs else "Worker"
        if kind in seen:
            continue
        seen.add(kind)
        path = f"spec.msReplicaSpecs.{kind}.template.spec"
        pod = job.get_replica_spec(kind).template["spec"]
        _check_pod(pod, path, errors, warnings)
        containers = pod["containers"]
        index = next(i for i, item in enumerate(containers) if item["name"] == CONTAINER_NAME)
        where = f"{path}.containers[{index}]"
        before = len(errors)
        _check_container(containers[index], where, errors, warnings)
        if len(errors) == before:
            spec = build_process_spec(job, member, environment=environment, cwd=cwd)
            errors += _check_command(spec, where)
    if errors:
        raise ValidationError(errors, subject=f"MSJob {job.name} on this machine")
    return warnings


def _check_pod(spec: Mapping[str, Any], path: str, errors: list[str], warnings: list[str]) -> None:
    if spec.get("initContainers"):
        errors.append(f"{path}.initContainers: must be absent, the local backend cannot run them")
    for index, container in enumerate(spec["containers"]):
        if container["name"] != CONTAINER_NAME:
            warnings.append(f"{path}.containers[{index}]: '{container['name']}' does not run on this machine")


def _check_container(container: Mapping[str, Any], path: str, errors: list[str], warnings: list[str]) -> None:
    if not container.get("command"):
        errors.append(
            f"{path}.command: is required, no image runs on this machine; append it: job submit … -- python train.py"
        )
    if container.get("image") not in (None, PLACEHOLDER_IMAGE):
        warnings.append(f"{path}.image: ignored, the job runs in this environment ({sys.executable})")
    if container.get("resources"):
        warnings.append(f"{path}.resources: ignored, nothing is limited on this machine")
    for index, mount in enumerate(container.get("volumeMounts") or []):
        where = f"{path}.volumeMounts[{index}].mountPath"
        target = str(mount.get("mountPath", ""))
        if target and Path(target).exists():
            warnings.append(f"{where}: this machine's own {target} is used")
        else:
            errors.append(f"{where}: must exist on this machine, which cannot mount volumes, got {target!r}")
    for index, source in enumerate(container.get("envFrom") or []):
        reference = source.get("configMapRef") or source.get("secretRef") or {}
        if not reference.get("optional"):
            errors.append(f"{path}.envFrom[{index}]: must be absent or optional, there is no cluster to read it from")
    for index, item in enumerate(container.get("env") or []):
        if problem := _check_source(item.get("valueFrom")):
            errors.append(f"{path}.env[{index}].valueFrom ({item['name']}): {problem}")


def _check_source(source: Any) -> str | None:
    if source is None:
        return None
    field = (source.get("fieldRef") or {}).get("fieldPath")
    if field is not None:
        return None if field in _FIELDS or _KEYED_FIELD.fullmatch(field) else f"cannot read {field} on this machine"
    reference = source.get("configMapKeyRef") or source.get("secretKeyRef") or {}
    return None if reference.get("optional") else "must be a value or optional, there is no cluster to read it from"


_FIELDS = frozenset(
    {"metadata.name", "metadata.namespace", "metadata.uid", "status.podIP", "status.hostIP", "spec.nodeName"}
)


def _read_variable(job: MSJob, member: Member, item: Mapping[str, Any]) -> str | None:
    if (source := item.get("valueFrom")) is None:
        return str(item.get("value") or "")
    path = (source.get("fieldRef") or {}).get("fieldPath")
    if path is None:
        return None
    if keyed := _KEYED_FIELD.fullmatch(path):
        own = (job.get_replica_spec(member.replica_type).template.get("metadata") or {}).get(keyed[1]) or {}
        values = {**own, **member.labels} if keyed[1] == "labels" else own
        return str(values.get(keyed[2], ""))
    fields = {
        "metadata.name": member.name,
        "metadata.namespace": job.namespace,
        "metadata.uid": str(job.metadata.get("uid", "")),
        "status.podIP": LOCAL_ADDRESS,
        "status.hostIP": LOCAL_ADDRESS,
        "spec.nodeName": socket.gethostname(),
    }
    return fields.get(path)


def _check_command(spec: ProcessSpec, path: str) -> list[str]:
    if not spec.cwd.is_dir():
        return [f"{path}.workingDir: must be a directory of this machine, got {str(spec.cwd)!r}"]
    if "/" in spec.argv[0]:
        program: str | None = str(spec.cwd / spec.argv[0])
        program = shutil.which(program) if program else None
    else:
        program = shutil.which(spec.argv[0], path=spec.environment.get("PATH"))
    if program is None:
        return [f"{path}.command[0]: must be a program of this machine, got {spec.argv[0]!r}"]
    script = get_script(spec.argv)
    if script is not None and not (spec.cwd / script).exists():
        return [f"{path}.command: no such script {script!r} in {spec.cwd}"]
    return []


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: unknown names stay, `$$` becomes `$`."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)
