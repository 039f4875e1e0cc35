"""The control plane that is measured: an API server whose controllers change their limits, and what its parts take."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api_load import INDEXED_JOBS, PODS_A_JOB, Client, make_indexed_job, post

ROOT = Path(__file__).parents[1]
# The harness of the tests starts and ends the control plane.
sys.path.append(str(ROOT))

if TYPE_CHECKING:
    from tests.cluster.infrastructure.api_server import ApiServer
    from tests.support.operators import OperatorProcess

DEFAULTS: tuple[str, ...] = ()
RAISED = ("--kube-api-qps=1000", "--kube-api-burst=1000")
_CONTROLLERS = "kube-controller-manager"
_PARTS = ("kube-apiserver", "etcd", _CONTROLLERS)
# Deleting what was measured is no part of the measurement, and should not take longer than it.
_FASTER_CLEARING = "--delete-collection-workers=4"
# An API server that serves nobody takes some 5 % of a core, controllers included.
_QUIET_SHARE = 0.25
_QUIET_SECONDS = 60.0
REST_SECONDS = 2.0
_POLL_SECONDS = 0.25


class ControlPlane:
    """An API server, etcd and kube-controller-manager.

    Args:
        server: They, running.
    """

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self._command = list(server.daemons.find(_CONTROLLERS).command)
        self._limits = DEFAULTS

    async def set_limits(self, flags: Sequence[str], client: Client) -> None:
        """Give kube-controller-manager other client limits, and wait until its Job controller works."""
        if tuple(flags) == self._limits:
            return
        self.server.daemons.stop(_CONTROLLERS)
        self.server.daemons.start(_CONTROLLERS, [*self._command, *flags])
        self._limits = tuple(flags)
        with self.make_namespace() as namespace:
            probe = post(INDEXED_JOBS, namespace, make_indexed_job("probe"))
            await client.create_all([probe])
            await client.wait_pods(namespace, PODS_A_JOB, 120)
            await client.clear(namespace)

    @contextmanager
    def make_namespace(self) -> Iterator[str]:
        """Have a namespace for a while."""
        with self.server.make_namespace("bench") as namespace:
            yield namespace

    def find_processes(self) -> dict[str, int]:
        """Return the process numbers of its parts."""
        return {name: self.server.daemons.find(name).process.pid for name in _PARTS}

    async def wait_quiet(self) -> bool:
        """Wait until what was done before has no more consequences; False when they take longer than a minute."""
        deadline = time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < deadline:
            before = sum(map(read_cpu_seconds, self.find_processes().values()))
            await asyncio.sleep(1)
            if sum(map(read_cpu_seconds, self.find_processes().values())) - before < _QUIET_SHARE:
                return True
        return False


@contextmanager
def start_control_plane(*flags: str) -> Iterator[ControlPlane]:
    """Start a control plane in which MSJobs are known.

    Args:
        flags: More flags of the API server.
    """
    from kfp_mindspore.kube import Cluster
    from kfp_mindspore.msjob.crd import build_crd
    from tests.cluster.infrastructure.api_server import ApiServer

    with ApiServer(api_server_flags=[_FASTER_CLEARING, *flags]) as server:
        cluster = Cluster(server.kubeconfig)
        cluster.apply(build_crd())
        _wait_served(cluster)
        yield ControlPlane(server)


def make_operator(plane: ControlPlane, directory: Path) -> OperatorProcess:
    """Return the operator with its own defaults, not yet started."""
    from tests.support.operators import OperatorProcess

    return OperatorProcess(plane.server.kubeconfig, directory / "operator.log")


async def settle(operator: OperatorProcess, *, running: int = 0, seconds: float = 900) -> None:
    """Wait until an operator has nothing more to do: neither looks at jobs nor requests for two seconds.

    Args:
        operator: The operator.
        running: How many jobs it has to have seen running.
        seconds: How long it may take.

    Raises:
        TimeoutError: It still works.
    """
    deadline = time.monotonic() + seconds
    before: tuple[float, ...] = ()
    since = time.monotonic()
    while time.monotonic() - since < REST_SECONDS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the operator still works after {seconds:g} s; its log: {operator.log}")
        await asyncio.sleep(_POLL_SECONDS)
        done = tuple(map(operator.read_metric, ("msjob_reconcile_seconds_count", "msjob_api_requests_total")))
        waiting = operator.read_metric("msjob_queue_depth")
        states = operator.read_metric("msjob_jobs", state="Running")
        if done != before or waiting or states < running:
            before, since = done, time.monotonic()


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds, user and system, that a process has taken so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int) -> dict[str, float]:
    """Return a process's resident memory in MB, now and at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = {
        name: int(value.split()[0]) / 1024
        for name, _, value in (line.partition(":") for line in lines)
        if value.strip().endswith("kB")
    }
    return {"resident_mb": values["VmRSS"], "peak_mb": values["VmHWM"]}


def take_cpu(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds of processes by name, this one's included as `client`."""
    return {"client": time.process_time(), **{name: read_cpu_seconds(pid) for name, pid in processes.items()}}


def _wait_served(cluster: Any, seconds: float = 60) -> None:
    """Wait until the API server serves a definition that it has taken."""
    from kfp_mindspore.kube import DEFINITIONS

    for definitions in cluster.watch(DEFINITIONS, timeout=seconds):
        found = definitions.get("msjobs.mindspore.gitee.com") or {}
        conditions = (found.get("status") or {}).get("conditions") or []
        if any(item["type"] == "Established" and item["status"] == "True" for item in conditions):
            return
    raise TimeoutError(f"the definition of MSJob is not established after {seconds:g} s: {json.dumps(found)[:500]}")
