"""Worker pods as processes of this machine, for a cluster without nodes: their own commands, signals and exit codes."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.errors import ConflictError
from kfp_mindspore.kube.resources import PODS, SECRETS
from kfp_mindspore.msjob.api.names import JOB_LABEL
from tests.support.kube.operators import Jobs

# Where job pods have their artifacts.
_DATA_DIR = "/kfp-mindspore/"


class PodProcesses:
    """Runs each worker pod of a namespace as a process, until the end of a `with` block.

    Args:
        jobs: The namespace.
        directory: Directory for logs and for what the pods have in volumes.

    Attributes:
        starts: How often a pod was started, by job.
        codes: The pods' exit codes, by job.
    """

    def __init__(self, jobs: Jobs, directory: Path) -> None:
        self._jobs, self._directory = jobs, directory
        self._processes: dict[str, tuple[str, str, subprocess.Popen[bytes]]] = {}
        self._terminated: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self.starts: Counter[str] = Counter()
        self.codes: dict[str, int] = {}

    def __enter__(self) -> PodProcesses:
        self._directory.mkdir()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        for _, _, process in self._processes.values():
            process.kill()
            process.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stopped.wait(0.2):
                self._sync()
        except BaseException as error:  # noqa: BLE001 - raised at the block's end
            self._error = error

    def _sync(self) -> None:
        pods = self._jobs.cluster.list(PODS, self._jobs.namespace, labels=JOB_LABEL)
        for pod in pods:
            uid, name, job = pod["metadata"]["uid"], pod["metadata"]["name"], pod["metadata"]["labels"][JOB_LABEL]
            is_deleted = bool(pod["metadata"].get("deletionTimestamp"))
            if uid not in self._processes:
                if not is_deleted and not pod["spec"].get("nodeName"):
                    try:
                        self._jobs.set_running(name)
                    except (NotFoundError, ConflictError):
                        # Deleted since it was listed: gone, or not to be bound any more.
                        continue
                    self._processes[uid] = (name, job, self._start(pod, uid))
                    self.starts[job] += 1
                continue
            process = self._processes[uid][2]
            if is_deleted and uid not in self._terminated:
                self._terminated.add(uid)
                process.terminate()
            if process.poll() is None:
                continue
            self.codes[job] = process.returncode
            if is_deleted:
                self._jobs.vanish(name, uid)
            elif pod["status"]["phase"] == "Running":
                self._jobs.end(name, process.returncode % 256)

    def _start(self, pod: dict[str, Any], uid: str) -> subprocess.Popen[bytes]:
        (container,) = [item for item in pod["spec"]["containers"] if item["name"] == "mindspore"]
        volume = f"{self._directory / uid}/"
        environment = {entry["name"]: self._resolve(entry).replace(_DATA_DIR, volume) for entry in container["env"]}
        command = [part.replace(_DATA_DIR, volume) for part in [*container["command"], *container.get("args", [])]]
        with (self._directory / f"{pod['metadata']['name']}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable if command[0] == "python" else command[0], *command[1:]],
                env={**{name: value for name, value in os.environ.items() if name[:4] != "AWS_"}, **environment},
                stdout=log,
                stderr=log,
            )

    def _resolve(self, entry: dict[str, Any]) -> str:
        reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if reference is None:
            return str(entry.get("value", ""))
        secret = self._jobs.cluster.get(SECRETS, reference["name"], self._jobs.namespace)
        return base64.b64decode(secret["data"][reference["key"]]).decode()
