"""A local job's warm spares: processes that have imported MindSpore and become members at the next restart.

A restart replaces all members, since none can rejoin a running MindSpore cluster: spares for all (workers and
scheduler) save the most. They are used for commands with the form `python script …` and `python -m module …`, with the
workers' template; others start as usual.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import kfp_mindspore
from kfp_mindspore.local.process import ProcessSpec, Supervisor, kill_group
from kfp_mindspore.msjob.commands import is_python_program
from kfp_mindspore.msjob.topology import VARIABLES
from kfp_mindspore.settings import ROLE_VARIABLE, SCHEDULER_ROLE, TOPOLOGY_DEFAULTS

THREADS_VARIABLE = "OMP_NUM_THREADS"
_IMPORT_PREFIXES = ("ASCEND", "DEVICE_", "GLOG_", "LD_", "MS_", "OMP_", "PYTHON")
_MODULE = "kfp_mindspore.podside.spare"
_PACKAGE_ROOT = str(Path(kfp_mindspore.__file__).absolute().parent.parent)


@dataclass(frozen=True)
class _Spare:
    process: subprocess.Popen[bytes]
    spec: ProcessSpec


class Spares:
    """One job's spare processes.

    Args:
        supervisor: The processes' owner.
        log: File for their output until they become members.
    """

    def __init__(self, supervisor: Supervisor, log: Path) -> None:
        self._supervisor = supervisor
        self._log = log
        self._spares: list[_Spare] = []

    @property
    def pids(self) -> list[int]:
        """Process numbers for the spares that wait or import."""
        return [spare.process.pid for spare in self._spares]

    def fill(self, count: int, spec: ProcessSpec) -> bool:
        """Start spares until there are `count`.

        Args:
            count: Their number.
            spec: A worker's process; its environment is used except for the topology.

        Returns:
            False if one ended by itself: it cannot import MindSpore, as its log explains.

        Raises:
            OSError: One could not be started.
        """
        if any(spare.process.poll() is not None for spare in self._spares):
            return False
        environment = {name: value for name, value in spec.environment.items() if name not in VARIABLES}
        path = os.pathsep.join(filter(None, [spec.environment.get("PYTHONPATH"), _PACKAGE_ROOT]))
        while len(self._spares) < count and is_python_program(spec.argv):
            process = self._supervisor.spawn(
                [sys.executable, "-m", _MODULE],
                cwd="/",
                env={**environment, "PYTHONPATH": path},
                log=self._log,
                own_session=True,
                stdin=subprocess.PIPE,
            )
            self._spares.append(_Spare(process, spec))
        return True

    def assign(self, spec: ProcessSpec, log: Path) -> subprocess.Popen[bytes] | None:
        """Turn a spare into a member.

        Args:
            spec: The member's process.
            log: Its log.

        Returns:
            The process; None if no spare fits.
        """
        if not is_python_program(spec.argv):
            return None
        wanted = get_import_environment(spec)
        # A scheduler computes nothing.
        ignored = {THREADS_VARIABLE} if spec.environment.get(ROLE_VARIABLE) == SCHEDULER_ROLE else set()
        document = {
            "argv": spec.argv[1:],
            "cwd": str(spec.cwd),
            "environment": spec.environment,
            "log": str(log),
        }
        for spare in list(self._spares):
            own = get_import_environment(spare.spec)
            if any(own.get(name) != wanted.get(name) for name in {*own, *wanted} - ignored):
                continue
            self._spares.remove(spare)
            assert spare.process.stdin is not None
            try:
                with spare.process.stdin as pipe:
                    pipe.write(json.dumps(document).encode() + b"\n")
            except BrokenPipeError:
                continue
            return spare.process
        return None

    def end(self) -> None:
        """Kill all spares."""
        for spare in self._spares:
            kill_group(spare.process.pid)
            spare.process.wait()
        self._spares.clear()


def get_import_environment(spec: ProcessSpec) -> dict[str, str]:
    """Return the variables that are read when Python starts or MindSpore is imported."""
    return {
        name: value
        for name, value in spec.environment.items()
        if name.startswith(_IMPORT_PREFIXES) and name not in VARIABLES and name not in TOPOLOGY_DEFAULTS
    }
