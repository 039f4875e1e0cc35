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


def find_supervisor(local_services: Any) -> int:
    (pid,) = [
        pid
        for pid in local_services.find_processes()
        if b"backends.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return int(pid)


def test_killed_server_is_restarted_on_its_port(local_services: Any, eventually: Eventually) -> None:
    before = local_services.deploy()
    os.kill(before.pid, signal.SIGKILL)
    after = eventually(lambda: (now := local_services.connect().get("digits")).ready and now)
    assert local_services.request_pid(after) == after.pid != before.pid
    assert (after.url, after.restarts) == (before.url, 1)
    assert after.message == "restarted: its server was ended by signal 9 (SIGKILL)"


def test_server_that_crashes_at_its_first_start_is_not_restarted(local_services: Any) -> None:
    with pytest.raises(ProcessFailedError) as caught:
        local_services.deploy("--fail=7")
    assert caught.value.message == "service digits: its server ended with exit code 7"
    assert caught.value.log == ("tiny server of digits starts", "the disk is on fire")
    assert local_services.find_processes() == []
    assert local_services.connect().list() == []
    assert not (local_services.home / "services" / "default" / "digits").exists()


def test_command_that_is_missing(local_services: Any) -> None:
    client = InferenceClient(LocalServingBackend(local_services.home, command=["/nowhere/server"]))
    with pytest.raises(ProcessFailedError, match="could not be started: /nowhere/server") as caught:
        client.deploy(Service("digits", local_services.make_bundle()))
    assert caught.value.log == ("/nowhere/server: No such file or directory",)


def test_crash_loop_ends_with_error(local_services: Any, tmp_path: Path, eventually: Eventually) -> None:
    poison = tmp_path / "poison"
    client = local_services.connect(f"--fail-when={poison}", max_restarts=2)
    status = client.deploy(Service("digits", local_services.make_bundle()))
    poison.touch()
    os.kill(status.pid, signal.SIGKILL)
    over = eventually(lambda: (now := client.get("digits")).is_finished and now)
    assert (over.state, over.restarts, over.pid) == ("Failed", 2, None)
    assert over.message == "its server ended with exit code 3, 3 times in a row: not restarted again"
    with pytest.raises(ProcessFailedError, match="service digits: Failed: its server ended") as caught:
        client.wait_ready("digits")
    assert caught.value.log[-1] == "the disk is on fire"
    eventually(lambda: not local_services.find_processes())
    poison.unlink()
    assert local_services.deploy().ready


def test_server_that_was_stable_may_crash_more_often(local_services: Any, eventually: Eventually) -> None:
    client = local_services.connect(max_restarts=1, stable_seconds=0.0)
    client.deploy(Service("digits", local_services.make_bundle()))
    for restarts in (1, 2, 3):
        status = eventually(lambda: (now := client.get("digits")).ready and now)
        assert status.restarts == restarts - 1
        os.kill(status.pid, signal.SIGKILL)
    assert eventually(lambda: (now := client.get("digits")).ready and now).restarts == 3


def test_port_in_use_is_named(local_services: Any, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        for field in ("port", "grpc_port"):
            with pytest.raises(UserError, match=f"service digits: {field} {free_port} is taken") as caught:
                local_services.deploy(**{field: free_port})
            assert caught.value.exit_code == 2
    assert local_services.connect().list() == []
    assert local_services.find_processes() == []


def test_port_of_another_service_is_refused(local_services: Any, free_port: int) -> None:
    local_services.deploy(port=free_port)
    with pytest.raises(UserError, match=f"service other: port {free_port} is taken by another process"):
        local_services.deploy(name="other", port=free_port)
    assert [status.name for status in local_services.connect().list()] == ["digits"]


def test_free_port_lost_to_another_process_is_replaced(
    local_services: Any, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.inference.backends import local_rollout

    chosen = [[free_port, free_port], local_rollout.list_free_ports(4)]
    monkeypatch.setattr(local_rollout, "list_free_ports", lambda count: chosen.pop(0))
    with socket.create_server(("127.0.0.1", free_port)):
        status = local_services.deploy()
    assert chosen == []
    assert status.ready
    assert status.url != f"http://127.0.0.1:{free_port}"


def test_flipped_bit_is_refused(local_services: Any) -> None:
    file = local_services.make_bundle() / "model.mindir"
    content = bytearray(file.read_bytes())
    content[100] ^= 4
    file.write_bytes(content)
    with pytest.raises(CorruptBundleError, match=re.escape(f"{file}: sha256 must be")) as caught:
        local_services.deploy()
    assert caught.value.exit_code == 2
    assert not (local_services.home / "services").exists()


def test_empty_directory_is_refused(local_services: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"an empty directory: signature\.json and model\.mindir missing"):
        local_services.connect().deploy(Service("digits", empty))
    with pytest.raises(NotFoundError, match="no such model directory"):
        local_services.connect().deploy(Service("digits", empty / "nothing"))


@pytest.mark.parametrize("how", ["a server that fails", "a bundle that is damaged", "a server that hangs"])
def test_new_version_that_fails_leaves_old_one_alone(local_services: Any, how: str) -> None:
    old = local_services.deploy()
    flags = {"a server that fails": ["--fail=1"], "a server that hangs": ["--never-ready"]}.get(how, [])
    if how == "a bundle that is damaged":
        with (local_services.root / "bundle" / "model.mindir").open("ab") as file:
            file.write(b"!")
    with pytest.raises(KfpMindSporeError):
        local_services.deploy(*flags, wait_seconds=1)
    assert local_services.connect().get("digits") == old
    assert local_services.request_pid(old) == old.pid
    assert len(local_services.find_processes()) == 2
    assert [path.name for path in (local_services.home / "services/default/digits/versions").iterdir()] == ["1"]


def test_old_version_comes_back_when_new_one_fails_on_its_port(
    local_services: Any, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.inference.backends import local_rollout

    old = local_services.deploy(port=free_port)
    poison, start = tmp_path / "poison", local_rollout.start_version
    starts: list[int] = []

    def start_and_poison(version: Any, *arguments: Any) -> None:
        starts.append(version.number)
        start(version, *arguments)
        # The new version has proved itself on another port; on the old one's it fails.
        poison.touch()

    monkeypatch.setattr(local_rollout, "start_version", start_and_poison)
    with pytest.raises(ProcessFailedError, match="exit code 3"):
        local_services.deploy(f"--fail-when={poison}", port=free_port)
    now = local_services.connect().get("digits")
    assert starts == [2, 2, 1]
    assert (now.version, now.url, now.ready) == (1, old.url, True)
    assert len(local_services.find_processes()) == 2


def test_stop_ends_server_that_will_not_and_its_children(local_services: Any) -> None:
    local_services.deploy("--ignore-terminate", "--child")
    assert len(local_services.find_processes()) == 3
    begin = time.monotonic()
    local_services.connect().stop("digits")
    # The grace period is 2 seconds.
    assert time.monotonic() - begin < 10
    assert local_services.find_processes() == []


def test_server_of_killed_supervisor_ends(local_services: Any, eventually: Eventually) -> None:
    status = local_services.deploy()
    supervisor = find_supervisor(local_services)
    os.kill(supervisor, signal.SIGKILL)
    server = ProcessIdentity.of(status.pid)
    eventually(lambda: server is None or not server.is_alive())
    over = local_services.connect().get("digits")
    assert (over.state, over.message) == ("Failed", f"its supervisor (process {supervisor}) was killed")
    assert local_services.deploy().version == 2


def deploy_elsewhere(local_services: Any, *flags: str, lease: Path | None = None) -> subprocess.Popen[str]:
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
    server = [sys.executable, str(Path(__file__).parents[1] / "support" / "serving" / "tiny_server.py"), *flags]
    return subprocess.Popen(
        [sys.executable, "-c", code, str(local_services.root), str(lease or ""), *server],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_service_dies_with_run_that_it_belongs_to(
    local_services: Any, tmp_path: Path, eventually: Eventually, number: int
) -> None:
    local_services.make_bundle()
    run = deploy_elsewhere(local_services, lease=tmp_path / "lease")
    assert run.stdout is not None
    assert [run.stdout.readline() for _ in range(2)] == ["deploying\n", "deployed\n"]
    assert local_services.connect().get("digits").ready
    run.send_signal(number)
    run.wait(10)
    run.stdout.close()
    eventually(lambda: not local_services.find_processes())
    status = local_services.connect().get("digits")
    assert (status.state, status.message) == ("Stopped", "stopped: the run that started it is over")


def test_lease_of_environment_counts(local_services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lease.hold(tmp_path / "lease") as lease:
        for name, value in lease.environment.items():
            monkeypatch.setenv(name, value)
        status = local_services.deploy()
        server = ProcessIdentity.of(status.pid)
        assert server is not None
    assert server.wait(10)
    with pytest.raises(KfpMindSporeError, match="the run that it would belong to is over"):
        local_services.deploy()


def test_killed_deployment_leaves_nothing(local_services: Any, eventually: Eventually) -> None:
    local_services.make_bundle()
    run = deploy_elsewhere(local_services, "--never-ready")
    eventually(lambda: len(local_services.find_processes()) == 3)
    run.kill()
    run.communicate()
    eventually(lambda: not local_services.find_processes())
    assert local_services.connect().list() == []
    # The next one sweeps up what is left on the disk.
    assert local_services.deploy().ready
    assert len(list((local_services.home / "services/default/digits/versions").iterdir())) == 1


def test_interrupted_deployment_leaves_nothing(local_services: Any, eventually: Eventually) -> None:
    local_services.make_bundle()
    run = deploy_elsewhere(local_services, "--never-ready")
    eventually(lambda: len(local_services.find_processes()) == 3)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    assert local_services.find_processes() == []
    assert not (local_services.home / "services" / "default" / "digits").exists()


def test_deployments_of_one_name_wait_for_each_other(local_services: Any) -> None:
    local_services.make_bundle()
    runs = [deploy_elsewhere(local_services) for _ in range(3)]
    for run in runs:
        assert run.stdout is not None
        assert [run.stdout.readline() for _ in range(2)] == ["deploying\n", "deployed\n"]
    status: ServiceStatus = local_services.connect().get("digits")
    assert (status.version, status.ready) == (3, True)
    for run in runs:
        run.kill()
        run.communicate()
    assert len(local_services.find_processes()) == 2


def test_service_whose_home_is_removed_ends(local_services: Any, eventually: Eventually) -> None:
    local_services.deploy()
    shutil.rmtree(local_services.home)
    eventually(lambda: not local_services.find_processes())
    assert not local_services.home.exists()
