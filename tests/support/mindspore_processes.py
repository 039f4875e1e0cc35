"""Processes that run a script with MindSpore, forked from one process that has imported it (4 s of CPU per import).

A test session that is killed takes them along: the server reads the end of its standard input, and the kernel kills
the server's children.

`MindSporeProcesses` is the client. This module run as a script is the server: each line on its standard input starts
a process, and the server answers with its PID; `{"wait": PID}` answers with the exit code.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


class MindSporeProcess:
    """A started process.

    Args:
        server: Its parent.
        pid: Its process ID.
        log: File with its standard output and error.
    """

    def __init__(self, server: MindSporeProcesses, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self._server = server
        self._descriptor = os.pidfd_open(pid)
        self._exit = select.poll()
        self._exit.register(self._descriptor, select.POLLIN)
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code, as of the last `poll` or `wait`."""
        return self._code

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return None if self.is_running() else self.wait()

    def kill(self) -> None:
        """Send SIGKILL, if it has not exited."""
        self.send_signal(signal.SIGKILL)

    def is_running(self) -> bool:
        """Return whether it has not exited."""
        return self._code is None and not self._exit.poll(0)

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not exited."""
        if self.is_running():
            os.kill(self.pid, number)

    def wait(self, timeout: float = 120) -> int:
        """Return the exit code, negative for a signal; kill the process after `timeout` seconds."""
        if self._code is None:
            if not self._exit.poll(timeout * 1000):
                os.kill(self.pid, signal.SIGKILL)
            os.close(self._descriptor)
            self._code = int(self._server.request({"wait": self.pid}))
        return self._code

    def finish(self, seconds: float = 120) -> tuple[int, str]:
        """Return exit code and output."""
        return self.wait(seconds), self.log.read_text()

    def wait_for(self, path: Path, seconds: float = 60) -> None:
        """Return when `path` exists.

        Raises:
            AssertionError: The process exited, or the time is over.
        """
        deadline = time.monotonic() + seconds
        while not path.exists():
            if self._exit.poll(20) or time.monotonic() > deadline:
                raise AssertionError(f"{path.name} does not exist:\n{self.log.read_text()}")


class MindSporeProcesses:
    """Starts processes that run a script; all that still run are killed by `close`."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
        environment.setdefault("GLOG_v", "3")
        self._server = subprocess.Popen(
            [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._started: list[MindSporeProcess] = []
        self._logs = tempfile.TemporaryDirectory(prefix="mindspore-processes-")

    def start(
        self,
        arguments: Sequence[object],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        largest_file: int | None = None,
        log: Path | None = None,
    ) -> MindSporeProcess:
        """Start `python SCRIPT ARGUMENT…` or `python -m MODULE ARGUMENT…`.

        Args:
            arguments: The script, or `-m` and the module, and its arguments.
            directory: Working directory; made when missing.
            environment: Variables to set in addition to the server's, which has no `MS_*`.
            largest_file: Limit of the size of written files in bytes, for the error of a full disk.
            log: File for its standard output and error; default a temporary one.
        """
        directory.mkdir(parents=True, exist_ok=True)
        log_file = log or Path(self._logs.name, f"{len(self._started)}.log")
        request = {
            "arguments": [str(argument) for argument in arguments],
            "directory": str(directory),
            "environment": dict(environment or {}),
            "log": str(log_file),
            "largest_file": largest_file,
        }
        process = MindSporeProcess(self, self.request(request), log_file)
        self._started.append(process)
        return process

    def run(self, arguments: Sequence[object], directory: Path, **options: Any) -> tuple[int, str]:
        """Start a process and return its exit code and output."""
        return self.start(arguments, directory, **options).finish()

    def request(self, value: Mapping[str, Any]) -> int:
        """Send a request to the server and return its response."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(value) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        """Kill what runs, and stop the server."""
        for process in self._started:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._server.communicate()
        self._logs.cleanup()


def start_gang(
    processes: MindSporeProcesses,
    command: Sequence[object],
    directory: Path,
    workers: int,
    environment: Mapping[str, str],
) -> list[MindSporeProcess]:
    """Start a scheduler and workers that run one script; return them in this order."""
    from tests.support.ports import reserve_port  # Not at the top: the server, a script, cannot import it.

    common = {**environment, "MS_SCHED_HOST": "127.0.0.1", "MS_WORKER_NUM": str(workers)}
    common["MS_SCHED_PORT"] = str(reserve_port())
    roles = [{"MS_ROLE": "MS_SCHED"}, *({"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)} for rank in range(workers))]
    return [processes.start(command, directory, environment={**common, **role}) for role in roles]


@functools.cache
def share_processes() -> MindSporeProcesses:
    """Return the processes of this test session, with one server for all tests."""
    processes = MindSporeProcesses()
    atexit.register(processes.close)
    return processes


def main() -> None:
    """Serve requests; a fork leaves the loop and runs its script as a process of its own would."""
    # Before MindSpore: it selects the implementation of protobuf.
    from kfp_mindspore.training import run  # noqa: F401, I001
    from mindspore import nn, train  # noqa: F401

    sys.path.pop(0)
    server = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                break
        print(answer, flush=True)
    else:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # It has ended in between.
        return
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the server's, cached
    os.chdir(request["directory"])
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    if request["arguments"][0] == "-m":
        sys.argv = request["arguments"][1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = request["arguments"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
