"""A worker's entry point under another launcher: `python -m kfp_mindspore.podside.launchers -- python train.py`.

It reads the rank and world size that the launcher sets, sets MindSpore's MS_* variables and executes the command.
MindSpore requires the scheduler's IP address, so names are resolved here. Without MS_ROLE, rank 0 also starts the
scheduler, on its own address.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import (
    LAUNCHER_SCHEDULER_PORT,
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

_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")
_HOSTS = (SCHEDULER_HOST_VARIABLE, "PET_MASTER_ADDR", "JAX_COORDINATOR_ADDRESS", "MASTER_ADDR")
_PORTS = (SCHEDULER_PORT_VARIABLE, "PET_MASTER_PORT", "MASTER_PORT")
_HOST_PORT = "port of JAX_COORDINATOR_ADDRESS"
_LOOPBACK = "127.0.0.1"
# A headless Service's record appears when its pod has an address.
_RESOLVE_SECONDS = 300.0
# After the last worker the scheduler ends by itself.
_SCHEDULER_SECONDS = 60.0


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
    if not host and size > 1 and _read(environ, _LOCAL_SIZES) != size:
        raise UserError(
            f"the {size} ranks are on several machines, and {SCHEDULER_HOST_VARIABLE} is not set",
            hint=f"Set it to the host of rank 0 for all ranks, such as: mpirun -x {SCHEDULER_HOST_VARIABLE}=HOST",
        )
    # JAX's coordinator address has the port too.
    host, _, host_port = host.partition(":")
    port = _read({**environ, _HOST_PORT: host_port}, (*_PORTS, _HOST_PORT))
    return Rendezvous(
        role, rank or 0, size, host, LAUNCHER_SCHEDULER_PORT if port is None else port, _read(environ, _LOCAL_RANKS)
    )


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
        defaults["DEVICE_ID"] = str(found.local_rank)
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
                    hint=f"Check {SCHEDULER_HOST_VARIABLE} and the pod of rank 0 or of the scheduler.",
                ) from None
            time.sleep(1)


def run_beside_scheduler(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run rank 0 and the scheduler, both with the same command; return rank 0's exit code.

    SIGTERM and SIGINT go to rank 0, which may write a checkpoint while the scheduler lives. A scheduler that fails
    terminates rank 0.
    """
    scheduler_id = {ROLE_VARIABLE: SCHEDULER_ROLE, NODE_ID_VARIABLE: "scheduler"}
    scheduler = subprocess.Popen(command, env={**environment, **scheduler_id})
    worker = subprocess.Popen(command, env=dict(environment))

    def forward(number: int, _: object) -> None:
        worker.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    while worker.poll() is None:
        if scheduler.poll():
            worker.terminate()
            worker.wait()
            break
        time.sleep(0.1)
    try:
        if worker.returncode == 0:
            scheduler.wait(_SCHEDULER_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"the scheduler is killed: it has not ended {_SCHEDULER_SECONDS:.0f} s after rank 0", file=sys.stderr)
    finally:
        scheduler.kill()
        scheduler.wait()
    return worker.returncode if worker.returncode >= 0 else 128 - worker.returncode


def main(arguments: Sequence[str]) -> int:
    """Run the command after `--`; return the exit code, unless it replaces this process."""
    command = list(arguments[1:])
    if arguments[:1] != ["--"] or not command:
        raise UserError(
            "expected a command after --", hint="python -m kfp_mindspore.podside.launchers -- python train.py"
        )
    found = read_rendezvous(os.environ)
    environment = dict(os.environ)
    if found.size > 1 or found.role not in ("", WORKER_ROLE):
        address = resolve_address(found.host) if found.host else _LOOPBACK
        environment = build_environment(found, address, os.environ)
    if found.role or found.rank > 0 or found.size == 1:
        os.execvpe(command[0], command, environment)
    return run_beside_scheduler(command, environment)


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


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
