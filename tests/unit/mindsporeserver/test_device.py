"""A server's device: refused before a port answers, and lost while it serves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kfp_mindspore.mindir.devices import count_devices
from tests.support.ports import reserve_port

pytestmark = pytest.mark.mindspore

# No card: the device is the CPU, which computes no more once the file exists.
LOSS = """
import sys
from pathlib import Path

import mindsporeserver.main as server
from mindsporeserver.__main__ import main

server.use_device = lambda device, device_id: "GPU"
server.is_lost = Path(sys.argv[1]).exists
sys.exit(main(sys.argv[2:]))
"""


def start(directory: Path, *words: str) -> subprocess.Popen[bytes]:
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, cwd=directory, env={**os.environ}
        )


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_lost_device_ends_server(models: Path, tmp_path: Path) -> None:
    port, flag = reserve_port(), tmp_path / "lost"
    flags = [f"--model_dir={models / 'free'}", f"--http_port={port}", "--enable_grpc=false", "--drain_seconds=3"]
    process = start(tmp_path, "-c", LOSS, str(flag), *flags)
    try:
        deadline = time.monotonic() + 120
        while not is_ready(port):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        flag.touch()
        while is_ready(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # Readiness is false while connections are drained, and then the process ends.
        assert process.poll() is None
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10)
        assert caught.value.code == 503
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    assert "Error: the device is lost: it computes no more" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device=gpu"], "invalid choice: 'gpu'"),
        (["--device=GPU"], "device: GPU was asked for, and MindSpore cannot use it: "),
        (["--device_id=1"], "device_id: must be 0 of 1 CPU, got 1"),
        (["--device-id=-1"], "--device_id: must be an integer ≥ 0, got -1"),
    ],
)
def test_missing_device_is_refused(models: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    if count_devices("GPU"):
        pytest.skip("this machine has a GPU that MindSpore can use")
    process = start(tmp_path, "-m", "mindsporeserver", f"--model_dir={models / 'free'}", *flags)
    assert process.wait(120) == 2
    assert message in (tmp_path / "log").read_text()


def test_workers_do_not_share_device(models: Path, tmp_path: Path) -> None:
    code = (
        "import mindsporeserver.main as server; from mindsporeserver.options import *;"
        "server.use_device = lambda *given: 'GPU';"
        f"server.run_server(ServerFlags(model_dir=({str(models / 'free')!r},), workers=2), object())"
    )
    process = start(tmp_path, "-c", code)
    assert process.wait(120) == 1
    assert (
        "--workers: must be 1 on GPU, got 2: each process needs a device of its own" in (tmp_path / "log").read_text()
    )
