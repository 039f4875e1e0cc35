"""The model server where nothing can be written: read-only root, no HOME, a uid without a name, no capabilities."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from tests.support.ports import reserve_port

RESTRICTED = Path(__file__).parents[1] / "support" / "serving" / "restricted.py"
UNSUPPORTED = 77

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    done = subprocess.run([sys.executable, str(RESTRICTED), "/bin/true"], capture_output=True, text=True, check=False)
    if done.returncode == UNSUPPORTED:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@contextlib.contextmanager
def serve(bundle: Path, log: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start the server restricted, wait until it is ready, and yield it with its address."""
    port, grpc_port = reserve_port(), reserve_port()
    command = [
        sys.executable,
        str(RESTRICTED),
        sys.executable,
        "-m",
        "mindsporeserver",
        "--model_name=digits",
        f"--model_dir={bundle}",
    ]
    command += [f"--http_port={port}", f"--grpc_port={grpc_port}", *flags]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 240
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            with contextlib.suppress(OSError):
                ask(f"{url}/v2/health/ready")
                break
            time.sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.wait()


def check_response(url: str, bundle: Path) -> None:
    samples = ModelBundle.open(bundle).read_verified()
    rows = samples.inputs["image"][:5]
    answered = ask(f"{url}/v1/models/digits:predict", {"instances": rows.tolist()})
    np.testing.assert_allclose(answered["predictions"], samples.outputs["output"][:5], atol=1e-5)


def read_capabilities(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split()[1] for line in lines if line.startswith(("CapEff", "CapPrm", "CapInh", "CapAmb"))}


def list_entries(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


def test_it_serves_where_nothing_can_be_written(models: Path, tmp_path: Path) -> None:
    before = list_entries(models / "free")
    # The parent of workers, and each of them as a server by itself.
    with serve(models / "free", tmp_path / "log", "--workers=2", "--log_format=json") as (process, url):
        assert read_capabilities(process.pid) == {"0" * 16}
        check_response(url, models / "free")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
    assert list_entries(models / "free") == before
    assert "Traceback" not in (tmp_path / "log").read_text()
