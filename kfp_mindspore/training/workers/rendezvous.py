"""A worker's position from the variables of another launcher, and MindSpore's MS_* variables for it.

MindSpore requires the scheduler's IP address, so names are resolved here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import (
    DEVICE_ID_VARIABLE,
    LAUNCHER_SCHEDULER_PORT,
    LOCAL_RANK_VARIABLES,
    LOCAL_SIZE_VARIABLES,
    NODE_ID_VARIABLE,
    RANK_VARIABLES,
    ROLE_VARIABLE,
    SCHEDULER_HOST_VARIABLE,
    SCHEDULER_PORT_VARIABLE,
    SCHEDULER_ROLE,
    SIZE_VARIABLES,
    TOPOLOGY_DEFAULTS,
    WORKER_COUNT_VARIABLE,
    WORKER_ROLE,
)

COORDINATOR_VARIABLE, JAX_SIZE_VARIABLE = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"
_HOSTS = (SCHEDULER_HOST_VARIABLE, "PET_MASTER_ADDR", COORDINATOR_VARIABLE, "MASTER_ADDR")
_PORTS = (SCHEDULER_PORT_VARIABLE, "PET_MASTER_PORT", "MASTER_PORT")
_HOST_PORT = "port of JAX_COORDINATOR_ADDRESS"
# A headless Service's record appears when its pod has an address.
_RESOLVE_SECONDS = 300.0
# What the scheduler has in place of a worker's variables.
SCHEDULER_VARIABLES = {ROLE_VARIABLE: SCHEDULER_ROLE, NODE_ID_VARIABLE: "scheduler"}
_EXIT_SECONDS = 60.0
_SCHEDULER = "from kfp_mindspore.training.distributed import init_distributed; init_distributed()"


@dataclass(frozen=True)
class Rendezvous:
    """Process position in the job.

    Attributes:
        role: `MS_SCHED`, `MS_WORKER`, another role, or empty when the launcher sets none.
        rank: Rank; -1 for a scheduler without one.
        size: Worker count.
        host: The scheduler's name or address; empty for this machine.
        port: The scheduler's port.
        local_rank: Rank on this machine; None when the launcher sets none.
    """

    role: str
    rank: int
    size: int
    host: str
    port: int
    local_rank: int | None = None


def read_rendezvous(environ: Mapping[str, str]) -> Rendezvous:
    """Return the position that a launcher has set in the environment.

    Raises:
        UserError: Rank, world size or the scheduler's host is missing, or no number.
    """
    role = environ.get(ROLE_VARIABLE, "")
    size = _require(environ, SIZE_VARIABLES, "world size")
    rank = _read(environ, RANK_VARIABLES) if role in ("", WORKER_ROLE) else -1
    if rank is None and size > 1:
        rank = _require(environ, RANK_VARIABLES, "rank")
    host = next((environ[name] for name in _HOSTS if environ.get(name)), "")
    if not host and size > 1 and _read(environ, LOCAL_SIZE_VARIABLES) != size:
        raise UserError(
            f"the {size} ranks are on several machines, and {SCHEDULER_HOST_VARIABLE} is not set",
            hint=f"Set it to the host of rank 0 for all ranks, such as: mpirun -x {SCHEDULER_HOST_VARIABLE}=HOST",
        )
    # JAX's coordinator address has the port too.
    host, _, host_port = host.partition(":")
    port = _read({**environ, _HOST_PORT: host_port}, (*_PORTS, _HOST_PORT))
    return Rendezvous(
        role,
        rank or 0,
        size,
        host,
        LAUNCHER_SCHEDULER_PORT if port is None else port,
        _read(environ, LOCAL_RANK_VARIABLES),
    )


def is_trainjob_gang(environ: Mapping[str, str]) -> bool:
    """Return whether Kubeflow Trainer's jax policy started this process as one of several."""
    return bool(environ.get(COORDINATOR_VARIABLE)) and environ.get(JAX_SIZE_VARIABLE, "1") not in ("", "1")


def join_gang(environ: MutableMapping[str, str]) -> Rendezvous:
    """Set MS_* from the variables of Kubeflow Trainer's jax policy, and start the scheduler beside rank 0.

    Raises:
        UserError: The runtime is for one node.
    """
    if environ.get(WORKER_COUNT_VARIABLE) == "1":
        raise UserError(
            f"{JAX_SIZE_VARIABLE}={environ[JAX_SIZE_VARIABLE]} announces several processes, but the runtime sets "
            f"{WORKER_COUNT_VARIABLE}=1: it is for one node",
            hint='Use the runtime for several nodes, such as runtime="mindspore-distributed", or num_nodes=1.',
        )
    found = read_rendezvous(environ)
    environ.update(build_environment(found, resolve_address(found.host), environ))
    if found.rank == 0:
        subprocess.Popen([sys.executable, "-c", _SCHEDULER], env={**environ, **SCHEDULER_VARIABLES})
    return found


class PeerWatch:
    """Delays rank 0's exit until the other workers have exited: with its pod the scheduler ends, which they need.

    Each of the others holds a connection to rank 0 until its process ends.

    Args:
        rank: This process's rank.
        size: Worker count.
        share: Returns the sum of a number over all workers; collective.
    """

    def __init__(self, rank: int, size: int, share: Callable[[int], int]) -> None:
        self._connections: list[socket.socket] = []
        host = os.environ[SCHEDULER_HOST_VARIABLE]
        if rank:
            self._connections.append(socket.create_connection((host, share(0)), _EXIT_SECONDS))
            return
        with socket.create_server((host, 0), backlog=size) as server:
            share(server.getsockname()[1])
            server.settimeout(_EXIT_SECONDS)
            self._connections += [server.accept()[0] for _ in range(size - 1)]
        atexit.register(self._wait)

    def _wait(self) -> None:
        # After an error the others wait in a collective for this worker.
        limit = time.monotonic() + (0 if hasattr(sys, "last_type") else _EXIT_SECONDS)
        for connection in self._connections:
            connection.settimeout(max(limit - time.monotonic(), 0.001))
            with contextlib.suppress(OSError):
                connection.recv(1)


def build_environment(found: Rendezvous, address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the command environment; a worker's MS_NODE_ID is the rank.

    Args:
        found: The process.
        address: The scheduler's IP address.
        environ: This process's environment.
    """
    node = str(found.rank) if found.role in ("", WORKER_ROLE) else environ.get(NODE_ID_VARIABLE, socket.gethostname())
    variables = {
        ROLE_VARIABLE: found.role or WORKER_ROLE,
        SCHEDULER_HOST_VARIABLE: address,
        SCHEDULER_PORT_VARIABLE: str(found.port),
        WORKER_COUNT_VARIABLE: str(found.size),
        NODE_ID_VARIABLE: node,
    }
    defaults = dict(TOPOLOGY_DEFAULTS)
    if found.local_rank is not None:
        defaults[DEVICE_ID_VARIABLE] = str(found.local_rank)
    return {**defaults, **environ, **variables}


def resolve_address(
    host: str, *, timeout: float = _RESOLVE_SECONDS, resolve: Callable[[str], str] = socket.gethostbyname
) -> str:
    """Return a host's IPv4 address, or this machine's for a loopback address; retry while it is unknown.

    Raises:
        UserError: It is unknown after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            address = resolve(host)
            return resolve(socket.gethostname()) if address.startswith("127.") else address
        except OSError as error:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"the scheduler's host {host!r} has no address after {timeout:.0f} s ({error})",
                    hint=f"Check {SCHEDULER_HOST_VARIABLE} and the pod with rank 0 or the scheduler.",
                ) from None
            time.sleep(1)


def _read(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        if value := environ.get(name):
            if not value.isascii() or not value.isdigit():
                raise UserError(f"{name}: must be a whole number, got {value!r}")
            return int(value)
    return None


def _require(environ: Mapping[str, str], names: Sequence[str], what: str) -> int:
    value = _read(environ, names)
    if value is None:
        raise UserError(
            f"no {what} in the environment, expected one of {', '.join(names)}",
            hint="Start it by mpirun, or in a job that `kfp-mindspore job convert --to` has made.",
        )
    return value
