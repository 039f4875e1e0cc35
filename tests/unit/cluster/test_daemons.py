"""Daemons of a test cluster: real processes."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.infrastructure.daemons import Daemons, StartError

_WAIT = "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
_READY = f"import pathlib, sys, time; {_WAIT}"
_STUBBORN = f"import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_WAIT}"


@pytest.fixture
def daemons(tmp_path: Path) -> Any:
    daemons = Daemons(tmp_path)
    yield daemons
    daemons.kill_all()


def start(daemons: Daemons, name: str, script: str = _READY) -> Path:
    ready = daemons.directory / f"{name}.ready"
    ready.unlink(missing_ok=True)
    daemons.start(name, [sys.executable, "-c", script, str(ready)])
    daemons.wait_ready(name, ready.exists)
    return ready


def read_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_another_process_finds_what_was_started(daemons: Daemons) -> None:
    start(daemons, "one")
    start(daemons, "two")
    found = Daemons(daemons.directory)
    assert found.names() == ["one", "two"]
    assert found.find("two").process == daemons.find("two").process
    found.stop("two")
    assert not daemons.find("two").process.is_alive()
    assert daemons.find("one").process.is_alive()


def test_a_restart_is_a_new_process_of_the_same_command(daemons: Daemons) -> None:
    start(daemons, "one")
    before = daemons.find("one")
    after = daemons.restart("one", number=signal.SIGKILL)
    assert after.command == before.command
    assert after.process != before.process
    assert not before.process.is_alive()


def test_a_process_that_ignores_the_signal_is_killed(daemons: Daemons) -> None:
    start(daemons, "one", _STUBBORN)
    daemons.stop("one", seconds=0.2)
    assert not daemons.find("one").process.is_alive()


def test_a_port_is_free_when_its_holder_was_stopped(daemons: Daemons) -> None:
    # Many threads, and much memory to give back: the process takes a while to end after its first thread did.
    script = """
import pathlib, socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
memory = bytearray(1 << 28)
for _ in range(200):
    threading.Thread(target=time.sleep, args=[600], daemon=True).start()
pathlib.Path(sys.argv[1]).with_suffix(".port").write_text(str(listener.getsockname()[1]))
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""
    for _ in range(5):
        port = int(start(daemons, "one", script).with_suffix(".port").read_text())
        daemons.stop("one", number=signal.SIGKILL)
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_pause_lasts_as_long_as_its_block(daemons: Daemons) -> None:
    start(daemons, "one")
    pid = daemons.find("one").process.pid
    with daemons.pause("one"):
        daemons.wait_ready("one", lambda: read_state(pid) == "T")
    daemons.wait_ready("one", lambda: read_state(pid) != "T")
    with daemons.pause("one"):
        daemons.stop("one")
    assert not daemons.find("one").process.is_alive()


def test_a_start_that_fails_shows_the_log(daemons: Daemons) -> None:
    daemons.start("one", [sys.executable, "-c", "raise SystemExit('no such port')"])
    with pytest.raises(StartError, match=r"(?s)one ended:.*no such port"):
        daemons.wait_ready("one", lambda: False)
    daemons.start("two", [sys.executable, "-c", _READY, str(daemons.directory / "x")])
    with pytest.raises(StartError, match="two was not ready within"):
        daemons.wait_ready("two", lambda: False, seconds=0.1)


def test_one_that_ended_after_it_was_ready_is_told(daemons: Daemons) -> None:
    start(daemons, "one")
    start(daemons, "two")
    daemons.check()
    daemons.stop("two")
    with pytest.raises(StartError, match="two ended"):
        daemons.check()


def test_a_daemon_behind_a_wrapper_is_the_one_that_is_signalled(tmp_path: Path) -> None:
    wrap = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    daemons = Daemons(tmp_path, [sys.executable, "-c", wrap])
    try:
        start(daemons, "one")
        daemon = daemons.find("one")
        assert daemon.process != daemon.wrapper
        assert _READY in Path(f"/proc/{daemon.process.pid}/cmdline").read_text()
        daemons.stop("one")
        assert not daemon.wrapper.is_alive()
    finally:
        daemons.kill_all()
