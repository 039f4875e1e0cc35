"""A fixture for tests of local services: small bundles, the tiny server and its processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.formats.bundle import ModelBundle, Signature, TensorSpec, VerifiedSamples, write_bundle
from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service
from kfp_mindspore.inference.rest import request_json
from kfp_mindspore.inference.service import ServiceStatus

TINY_SERVER = Path(__file__).parent / "tiny_server.py"


class ServiceFixture:
    """Deploys services with their state in one directory.

    Args:
        root: An empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"

    def make_bundle(self, name: str = "bundle", samples: int = 40, task: str = "classification") -> Path:
        """Write a complete bundle of a task whose model is no graph."""
        path = self.root / name
        random = np.random.default_rng(7)
        inputs = {"image": random.random((samples, 4), np.float32)}
        shape, names = {
            "classification": ((3,), '["cat", "dog", "eel"]'),
            "language_model": ((5, 3), '["", "a", "b"]'),
        }.get(task, ((1,), "[]"))
        outputs = {"scores": random.random((samples, *shape), np.float32)}
        with write_bundle(path) as writer:
            (writer.directory / "model.mindir").write_text(f"{name}\n" * 100)
            labels = (np.arange(samples) % 3).astype(np.float32 if shape == (1,) else np.int32)
            if task == "language_model":
                labels = random.integers(0, 3, (samples, 5), np.int32)
            groups = np.arange(samples) // 10 if task == "ranking" else None
            writer.write_verified(VerifiedSamples(inputs, outputs, labels, groups=groups))
            writer.sign(
                Signature(
                    inputs=(TensorSpec("image", "float32", (-1, 4)),),
                    outputs=(TensorSpec("scores", "float32", (-1, *shape)),),
                    mindspore_version="2.9.0",
                    metadata={"task": task, "labels": names},
                )
            )
        return path

    def open_bundle(self, name: str = "bundle") -> ModelBundle:
        return ModelBundle.open(self.root / name)

    def connect(self, *flags: str, **options: Any) -> InferenceClient:
        """Return a client whose services are tiny servers that get these flags."""
        command = [sys.executable, str(TINY_SERVER), *flags]
        return InferenceClient(LocalServingBackend(self.home, command=command, **{"grace_seconds": 2.0, **options}))

    def deploy(self, *flags: str, name: str = "digits", wait_seconds: float = 20, **options: Any) -> ServiceStatus:
        """Deploy the bundle as a tiny server."""
        path = self.root / "bundle"
        service = Service(name, path if path.exists() else self.make_bundle(), **options)
        return self.connect(*flags).deploy(service, wait_seconds=wait_seconds)

    def request_pid(self, status: ServiceStatus) -> int:
        """Return the pid of the server that responds."""
        return int(request_json("GET", f"{status.url}/pid")["pid"])

    def find_processes(self) -> list[int]:
        """Return the processes whose command line contains the directory."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if str(self.root).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def close(self) -> None:
        client = self.connect()
        for status in client.list(all_namespaces=True):
            client.delete(status.name, status.namespace)
        left = self.find_processes()
        assert not left, f"processes were left: {left}"
