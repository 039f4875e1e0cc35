"""A worker's entry point under another launcher: `python -m kfp_mindspore.podside.launchers -- python train.py`.

It reads the rank and world size that the launcher sets, sets MindSpore's MS_* variables and executes the command.
Without MS_ROLE, rank 0 also starts the scheduler, on its own address.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import WORKER_ROLE
from kfp_mindspore.training.workers.rendezvous import (
    SCHEDULER_VARIABLES,
    build_environment,
    read_rendezvous,
    resolve_address,
)

_LOOPBACK = "127.0.0.1"
# After the last worker the scheduler ends by itself.
_SCHEDULER_SECONDS = 60.0


def run_beside_scheduler(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run rank 0 and the scheduler, both with the same command; return rank 0's exit code.

    SIGTERM and SIGINT go to rank 0, which may write a checkpoint while the scheduler lives. A scheduler that fails
    terminates rank 0.
    """
    scheduler = subprocess.Popen(command, env={**environment, **SCHEDULER_VARIABLES})
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


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
