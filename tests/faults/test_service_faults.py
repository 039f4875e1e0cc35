"""Faults of services: crashes, ports in use, damaged bundles, killed runs and supervisors."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import (
    CorruptBundleError,
    KfpMindSporeError,
    NotFoundError,
    ProcessFailedError,
    UserError,
)
from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service
from kfp_mindspore.inference.service import ServiceStatus
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.local.process import ProcessIdentity

Eventually = Callable[..., Any]


def find_supervisor(shop: Any) -> int:
    (pid,) = [
        pid for pid in shop.find_processes() if b"backends.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return int(pid)


def test_killed_server_is_restarted_on_its_port(shop: Any, eventually: Eventually) -> None:
    before = shop.deploy()
    os.kill(before.pid, signal.SIGKILL)
    after = eventually(lambda: (now := shop.connect().get("digits")).ready and now)
    assert shop.request_pid(after) == after.pid != before.pid
    assert (after.url, after.restarts) == (before.url, 1)
    assert after.message == "restarted: its server was ended by signal 9 (SIGKILL)"


def test_server_that_crashes_at_its_first_start_is_not_restarted(shop: Any) -> None:
    with pytest.raises(ProcessFailedError) as caught:
        shop.deploy("--fail=7")
    assert caught.value.message == "service digits: its server ended with exit code 7"
    assert caught.value.log == ("tiny server of digits starts", "the disk is on fire")
    assert shop.find_processes() == []
    assert shop.connect().list() == []
    assert not (shop.home / "services" / "default" / "digits").exists()


def test_command_that_is_missing(shop: Any) -> None:
    client = InferenceClient(LocalServingBackend(shop.home, command=["/nowhere/server"]))
    with pytest.raises(ProcessFailedError, match="could not be started: /nowhere/server") as caught:
        client.deploy(Service("digits", shop.make_bundle()))
    assert caught.value.log == ("/nowhere/server: No such file or directory",)


def test_crash_loop_ends_with_error(shop: Any, tmp_path: Path, eventually: Eventually) -> None:
    poison = tmp_path / "poison"
    client = shop.connect(f"--fail-when={poison}", max_restarts=2)
    status = client.deploy(Service("digits", shop.make_bundle()))
    poison.touch()
    os.kill(status.pid, signal.SIGKILL)
    over = eventually(lambda: (now := client.get("digits")).is_finished and now)
    assert (over.state, over.restarts, over.pid) == ("Failed", 2, None)
    assert over.message == "its server ended with exit code 3, 3 times in a row: not restarted again"
    with pytest.raises(ProcessFailedError, match="service digits: Failed: its server ended") as caught:
        client.wait_ready("digits")
    assert caught.value.log[-1] == "the disk is on fire"
    eventually(lambda: not shop.find_processes())
    poison.unlink()
    assert shop.deploy().ready


def test_server_that_was_stable_may_crash_more_often(shop: Any, eventually: Eventually) -> None:
    client = shop.connect(max_restarts=1, stable_seconds=0.0)
    client.deploy(Service("digits", shop.make_bundle()))
    for restarts in (1, 2, 3):
        status = eventually(lambda: (now := client.get("digits")).ready and now)
        assert status.restarts == restarts - 1
        os.kill(status.pid, signal.SIGKILL)
    assert eventually(lambda: (now := client.get("digits")).ready and now).restarts == 3


def test_port_in_use_is_named(shop: Any, free_port: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port))
        listener.listen()
        for field in ("port", "grpc_port"):
            with pytest.raises(UserError, match=f"service digits: {field} {free_port} is taken") as caught:
                shop.deploy(**{field: free_port})
            assert caught.value.exit_code == 2
    assert shop.connect().list() == []
    assert shop.find_processes() == []


def test_port_of_another_service_is_refused(shop: Any, free_port: int) -> None:
    shop.deploy(port=free_port)
    with pytest.raises(UserError, match=f"service other: port {free_port} is taken by another process"):
        shop.deploy(name="other", port=free_port)
    assert [status.name for status in shop.connect().list()] == ["digits"]


def test_free_port_lost_to_another_process_is_replaced(
    shop: Any, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.inference.backends import local_rollout

    chosen = [[free_port, free_port], local_rollout.list_free_ports(4)]
    monkeypatch.setattr(local_rollout, "list_free_ports", lambda count: chosen.pop(0))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port))
        listener.listen()
        status = shop.deploy()
    assert chosen == []
    assert status.ready
    assert status.url != f"http://127.0.0.1:{free_port}"


def test_flipped_bit_is_refused(shop: Any) -> None:
    file = shop.make_bundle() / "model.mindir"
    content = bytearray(file.read_bytes())
    content[100] ^= 4
    file.write_bytes(content)
    with pytest.raises(CorruptBundleError, match=re.escape(f"{file}: sha256 must be")) as caught:
        shop.deploy()
    assert caught.value.exit_code == 2
    assert not (shop.home / "services").exists()


def test_empty_directory_is_refused(shop: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"an empty directory: signature\.json and model\.mindir missing"):
        shop.connect().deploy(Service("digits", empty))
    with pytest.raises(NotFoundError, match="no such model directory"):
        shop.connect().deploy(Service("digits", empty / "nothing"))


@pytest.mark.parametrize("how", ["a server that fails", "a bundle that is damaged", "a server that hangs"])
def test_new_version_that_fails_leaves_old_one_alone(shop: Any, how: str) -> None:
    old = shop.deploy()
    flags = {"a server that fails": ["--fail=1"], "a server that hangs": ["--never-ready"]}.get(how, [])
    if how == "a bundle that is damaged":
        with (shop.root / "bundle" / "model.mindir").open("ab") as file:
            file.write(b"!")
    with pytest.raises(KfpMindSporeError):
        shop.deploy(*flags, wait_seconds=1)
    assert shop.connect().get("digits") == old
    assert shop.request_pid(old) == old.pid
    assert len(shop.find_processes()) == 2
    assert [path.name for path in (shop.home / "services/default/digits/versions").iterdir()] == ["1"]


def test_old_version_comes_back_when_new_one_fails_on_its_port(
    shop: Any, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.inference.backends import local_rollout

    old = shop.deploy(port=free_port)
    poison, start = tmp_path / "poison", local_rollout.start_version
    starts: list[int] = []

    def start_and_poison(version: Any, *arguments: Any) -> None:
        starts.append(version.number)
        start(version, *arguments)
        # The new version has proved itself on another port; on the old one's it fails.
        poison.touch()

    monkeypatch.setattr(local_rollout, "start_version", start_and_poison)
    with pytest.raises(ProcessFailedError, match="exit code 3"):
        shop.deploy(f"--fail-when={poison}", port=free_port)
    now = shop.connect().get("digits")
    assert starts == [2, 2, 1]
    assert (now.version, now.url, now.ready) == (1, old.url, True)
    assert len(shop.find_processes()) == 2


def test_stop_ends_server_that_will_not_and_its_children(shop: Any) -> None:
    shop.deploy("--ignore-terminate", "--child")
    assert len(shop.find_processes()) == 3
    begin = time.monotonic()
    shop.connect().stop("digits")
    # The grace period is 2 seconds.
    assert time.monotonic() - begin < 10
    assert shop.find_processes() == []


def test_server_of_killed_supervisor_ends(shop: Any, eventually: Eventually) -> None:
    status = shop.deploy()
    supervisor = find_supervisor(shop)
    os.kill(supervisor, signal.SIGKILL)
    server = ProcessIdentity.of(status.pid)
    eventually(lambda: server is None or not server.is_alive())
    over = shop.connect().get("digits")
    assert (over.state, over.message) == ("Failed", f"its supervisor (process {supervisor}) was killed")
    assert shop.deploy().version == 2


def deploy_elsewhere(shop: Any, *flags: str, lease: Path | None = None) -> subprocess.Popen[str]:
    """Deploy in a process of its own, which then waits."""
    code = """
import contextlib, sys, time
from pathlib import Path
from kfp_mindspore.inference import InferenceClient, LocalServingBackend, Service
from kfp_mindspore.local.lease import Lease
root, lease, *command = sys.argv[1:]
client = InferenceClient(LocalServingBackend(Path(root, "home"), command=command))
with Lease.hold(Path(lease)) if lease else contextlib.nullcontext() as held:
    print("deploying", flush=True)
    client.deploy(Service("digits", Path(root, "bundle")), lease=held)
    print("deployed", flush=True)
    time.sleep(600)
"""
    server = [sys.executable, str(Path(__file__).parents[1] / "support" / "tiny_server.py"), *flags]
    return subprocess.Popen(
        [sys.executable, "-c", code, str(shop.root), str(lease or ""), *server], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_service_dies_with_run_that_it_belongs_to(
    shop: Any, tmp_path: Path, eventually: Eventually, number: int
) -> None:
    shop.make_bundle()
    run = deploy_elsewhere(shop, lease=tmp_path / "lease")
    assert run.stdout is not None
    assert [run.stdout.readline() for _ in range(2)] == ["deploying\n", "deployed\n"]
    assert shop.connect().get("digits").ready
    run.send_signal(number)
    run.wait(10)
    run.stdout.close()
    eventually(lambda: not shop.find_processes())
    status = shop.connect().get("digits")
    assert (status.state, status.message) == ("Stopped", "stopped: the run that started it is over")


def test_lease_of_environment_counts(shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lease.hold(tmp_path / "lease") as lease:
        for name, value in lease.environment.items():
            monkeypatch.setenv(name, value)
        status = shop.deploy()
        server = ProcessIdentity.of(status.pid)
        assert server is not None
    assert server.wait(10)
    with pytest.raises(KfpMindSporeError, match="the run that it would belong to is over"):
        shop.deploy()


def test_killed_deployment_leaves_nothing(shop: Any, eventually: Eventually) -> None:
    shop.make_bundle()
    run = deploy_elsewhere(shop, "--never-ready")
    eventually(lambda: len(shop.find_processes()) == 3)
    run.kill()
    run.communicate()
    eventually(lambda: not shop.find_processes())
    assert shop.connect().list() == []
    # The next one sweeps up what is left on the disk.
    assert shop.deploy().ready
    assert len(list((shop.home / "services/default/digits/versions").iterdir())) == 1


def test_interrupted_deployment_leaves_nothing(shop: Any, eventually: Eventually) -> None:
    shop.make_bundle()
    run = deploy_elsewhere(shop, "--never-ready")
    eventually(lambda: len(shop.find_processes()) == 3)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    assert shop.find_processes() == []
    assert not (shop.home / "services" / "default" / "digits").exists()


def test_deployments_of_one_name_wait_for_each_other(shop: Any) -> None:
    shop.make_bundle()
    runs = [deploy_elsewhere(shop) for _ in range(3)]
    for run in runs:
        assert run.stdout is not None
        assert [run.stdout.readline() for _ in range(2)] == ["deploying\n", "deployed\n"]
    status: ServiceStatus = shop.connect().get("digits")
    assert (status.version, status.ready) == (3, True)
    for run in runs:
        run.kill()
        run.communicate()
    assert len(shop.find_processes()) == 2


def test_service_whose_home_is_removed_ends(shop: Any, eventually: Eventually) -> None:
    shop.deploy()
    shutil.rmtree(shop.home)
    eventually(lambda: not shop.find_processes())
    assert not shop.home.exists()
