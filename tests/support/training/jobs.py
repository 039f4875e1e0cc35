"""A fixture for tests of local jobs: submits jobs of `job_script.py` and lists their processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.msjob import LocalBackend, MSJob, MSJobClient, build_msjob

SCRIPT = Path(__file__).parent / "job_script.py"
Value = TypeVar("Value")


def eventually(look: Callable[[], Value], seconds: float = 120.0) -> Value:
    """Return what `look` returns as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
    return value


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return ProcessIdentity.of(pid) is not None


class JobFixture:
    """Submits jobs with their state in one directory.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path / "home"
        self.client = MSJobClient(LocalBackend(self.home))
        self._namespaces = {"default"}

    def build(self, *actions: object, name: str = "job", **options: Any) -> MSJob:
        """Build a job whose processes execute the actions."""
        words = [str(action) for action in actions]
        command = ["python", str(SCRIPT), str(self.path), *words]
        return build_msjob(name, command=command, **{"restart_policy": "OnFailure", **options})

    def submit(self, *actions: object, name: str = "job", **options: Any) -> str:
        """Submit a job and return its name."""
        job = self.build(*actions, name=name, **options)
        self._namespaces.add(job.namespace)
        self.client.create_job(job)
        return name

    def run(self, *actions: object, name: str = "job", **options: Any) -> MSJob:
        """Submit a job and wait until it is finished."""
        self.submit(*actions, name=name, **options)
        return self.wait(name)

    def wait(self, name: str = "job", *conditions: str) -> MSJob:
        """Wait for one of some conditions, by default until it is finished."""
        expected = set(conditions) or {"Succeeded", "Failed"}
        return self.client.wait_for_job_conditions(name, expected_conditions=expected, wait_timeout=60)

    def read_pid(self, name: str = "pid-alone-0") -> int:
        """Return the pid that a process wrote into a file."""
        return int(eventually(lambda: (self.path / name).exists() and (self.path / name).read_text()))

    def read_pids(self) -> list[int]:
        """Return all pids that processes wrote."""
        files = [*self.path.glob("pid-*"), *self.path.glob("child-*")]
        return [int(file.read_text()) for file in files]

    def read_supervisor(self, name: str = "job") -> ProcessIdentity:
        """Return the identity of a job's supervisor."""
        identity = LocalBackend(self.home).get_supervisor(name, "default")
        assert identity is not None
        return identity

    def close(self) -> None:
        """Delete all jobs, and assert that none of their processes is left."""
        for namespace in self._namespaces:
            for job in self.client.list_jobs(namespace):
                with contextlib.suppress(NotFoundError):
                    self.client.delete_job(job.name, namespace, delete_options={"gracePeriodSeconds": 0})
        eventually(lambda: not any(map(is_alive, self.read_pids())), 5)
