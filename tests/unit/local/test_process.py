from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfp_mindspore.local.logs import read_last_lines
from kfp_mindspore.local.process import (
    ProcessIdentity,
    is_group_alive,
    kill_descendants,
    kill_session,
    spawn_child,
    spawn_detached,
    terminate_group,
    terminate_groups,
)

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")

# Long enough that only a kill ends it within a test, short enough that nothing stays behind for ever.
SLEEP = ["sleep", "120"]


def wait_for(is_true: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.005)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python script that prints one line of JSON to stdout."""
    with ExitStack() as stack:

        def start(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
            head = "import json, os, signal, sys\nfrom pathlib import Path\nfrom kfp_mindspore.local.process import *\n"
            head += "def tell(**what): print(json.dumps(what), flush=True)\n"
            started = subprocess.Popen(
                [sys.executable, "-c", head + code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(started)
            stack.callback(started.kill)
            return started

        yield start


@pytest.fixture
def owned() -> Iterator[Callable[[dict[str, Any] | ProcessIdentity], ProcessIdentity]]:
    """Register a process that is killed at the end of the test."""
    found: list[ProcessIdentity] = []

    def own(value: dict[str, Any] | ProcessIdentity) -> ProcessIdentity:
        found.append(value if isinstance(value, ProcessIdentity) else ProcessIdentity.from_dict(value))
        return found[-1]

    yield own
    for identity in found:
        identity.send(signal.SIGKILL)
        assert identity.wait(10)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Children in groups of their own, which are killed at the end of the test."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for child in found:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(60)


def hear(started: subprocess.Popen[str]) -> Any:
    assert started.stdout is not None
    return json.loads(started.stdout.readline())


class TestProcessIdentity:
    def test_of_running_process(self) -> None:
        identity = ProcessIdentity.of(os.getpid())
        assert identity is not None
        assert identity.pid == os.getpid()
        assert identity.is_alive()
        assert identity == ProcessIdentity.of(os.getpid())

    def test_round_trip_through_json(self) -> None:
        identity = ProcessIdentity.of(os.getpid())
        assert identity is not None
        assert ProcessIdentity.from_dict(json.loads(json.dumps(identity.to_dict()))) == identity

    def test_later_process_with_same_number_is_another(self) -> None:
        stale = ProcessIdentity(os.getpid(), "before")
        assert not stale.is_alive()
        assert not stale.send(signal.SIGKILL), "it would have been this process"

    def test_zombie_is_not_alive(self) -> None:
        with subprocess.Popen(["true"]) as child:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert ProcessIdentity.of(child.pid) is None
        assert ProcessIdentity.of(child.pid) is None

    def test_name_with_spaces_and_parentheses(self, tmp_path: Path) -> None:
        program = tmp_path / "a (b) S 1 2"
        program.symlink_to("/bin/sleep")
        with subprocess.Popen([program, "120"]) as child:
            identity = ProcessIdentity.of(child.pid)
            child.kill()
        assert identity is not None
        assert identity.pid == child.pid

    def test_wait_and_send(self, tmp_path: Path, owned: Callable[..., ProcessIdentity]) -> None:
        identity = owned(spawn_detached(SLEEP, log=tmp_path / "log"))
        assert not identity.wait(0)
        assert identity.send(signal.SIGTERM)
        assert identity.wait(10)
        assert not identity.send(signal.SIGTERM)


class TestSpawnDetached:
    def test_it_survives_its_parent(
        self,
        tmp_path: Path,
        start: Callable[..., subprocess.Popen[str]],
        owned: Callable[..., ProcessIdentity],
    ) -> None:
        script = "trap '' HUP; echo $WORD; while ! test -e go; do sleep 0.02; done; pwd; exec sleep 120"
        parent = start(
            "directory, script = Path(sys.argv[1]), sys.argv[2]\n"
            "environment = {**os.environ, 'WORD': 'hello'}\n"
            "identity = spawn_detached(['sh', '-c', script], cwd=directory, env=environment, log=directory / 'log')\n"
            "tell(**identity.to_dict())",
            tmp_path,
            script,
        )
        identity = owned(hear(parent))
        assert parent.wait(10) == 0
        assert os.getsid(identity.pid) == identity.pid
        (tmp_path / "go").touch()
        wait_for(lambda: len(read_last_lines(tmp_path / "log", 9)) == 2)
        assert read_last_lines(tmp_path / "log", 9) == ["hello", str(tmp_path.resolve())]
        assert identity.is_alive()

    def test_its_end_leaves_no_zombie(self, tmp_path: Path) -> None:
        identity = spawn_detached(["true"], log=tmp_path / "log")
        assert identity.wait(10)
        wait_for(lambda: not psutil.pid_exists(identity.pid))

    def test_missing_program_raises(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            spawn_detached([str(tmp_path / "missing")], log=tmp_path / "log")

    def test_log_is_appended_to(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("before\n")
        assert spawn_detached(["sh", "-c", "echo out; echo err >&2"], log=log).wait(10)
        assert read_last_lines(log, 9) == ["before", "out", "err"]


class TestSpawnChild:
    @linux_only
    def test_it_dies_with_killed_parent(
        self,
        tmp_path: Path,
        start: Callable[..., subprocess.Popen[str]],
        owned: Callable[..., ProcessIdentity],
    ) -> None:
        parent = start(
            "children = [spawn_child(['sleep', '120'], log=Path(sys.argv[1])) for _ in range(3)]\n"
            "tell(children=[ProcessIdentity.of(child.pid).to_dict() for child in children])\n"
            "signal.pause()",
            tmp_path / "log",
        )
        identities = [owned(item) for item in hear(parent)["children"]]
        assert all(identity.is_alive() for identity in identities)
        parent.kill()
        assert parent.wait(10) == -signal.SIGKILL
        assert all(identity.wait(10) for identity in identities)

    def test_process_is_group_leader_with_default_signals(
        self, tmp_path: Path, children: list[subprocess.Popen[bytes]]
    ) -> None:
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            children.append(spawn_child(SLEEP, log=tmp_path / "log"))
        finally:
            signal.signal(signal.SIGTERM, before)
        assert os.getpgid(children[0].pid) == children[0].pid
        children[0].terminate()
        assert children[0].wait(10) == -signal.SIGTERM


class TestTerminateGroup:
    def spawn(self, script: str, log: Path, children: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        children.append(spawn_child(["sh", "-c", script], log=log))
        wait_for(lambda: read_last_lines(log, 1) == ["ready"])
        return children[-1]

    def test_process_may_save_within_grace_period(
        self, tmp_path: Path, children: list[subprocess.Popen[bytes]]
    ) -> None:
        log = tmp_path / "log"
        script = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.02; done"
        child = self.spawn(script, log, children)
        assert terminate_group(child.pid, 10)
        assert child.wait(60) == 143
        assert read_last_lines(log, 1) == ["saved"]
        assert not is_group_alive(child.pid)

    def test_process_that_ignores_sigterm_is_killed_with_its_children(
        self, tmp_path: Path, children: list[subprocess.Popen[bytes]], owned: Callable[..., ProcessIdentity]
    ) -> None:
        pid_file = tmp_path / "pid"
        # The grandchild inherits the ignored signal and stays in the group.
        script = f"trap '' TERM; sleep 120 & echo $! > {pid_file}; echo ready; while :; do sleep 0.02; done"
        child = self.spawn(script, tmp_path / "log", children)
        grandchild = ProcessIdentity.of(int(pid_file.read_text()))
        assert grandchild is not None
        owned(grandchild)
        began = time.monotonic()
        assert not terminate_group(child.pid, 0.2)
        assert time.monotonic() - began >= 0.2
        assert child.wait(60) == -signal.SIGKILL
        assert not grandchild.is_alive()
        assert not is_group_alive(child.pid)

    def test_no_grace_period_kills_at_once(self, tmp_path: Path, children: list[subprocess.Popen[bytes]]) -> None:
        log = tmp_path / "log"
        child = self.spawn("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done", log, children)
        assert not terminate_group(child.pid, 0)
        assert child.wait(60) == -signal.SIGKILL
        assert read_last_lines(log, 1) == ["ready"]

    def test_group_without_its_leader_is_terminated(
        self, tmp_path: Path, children: list[subprocess.Popen[bytes]]
    ) -> None:
        child = self.spawn("sleep 120 & echo ready", tmp_path / "log", children)
        assert child.wait(60) == 0
        assert is_group_alive(child.pid)
        assert terminate_group(child.pid, 10)
        assert not is_group_alive(child.pid)

    def test_several_groups_share_one_grace_period(
        self, tmp_path: Path, children: list[subprocess.Popen[bytes]]
    ) -> None:
        script = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
        pids = [self.spawn(script, tmp_path / f"log{number}", children).pid for number in range(6)]
        began = time.monotonic()
        assert not terminate_groups(pids, 3.0)
        # In sequence: 18 seconds.
        assert 3.0 <= time.monotonic() - began < 18.0
        assert not any(map(is_group_alive, pids))

    def test_terminating_ended_group(self, tmp_path: Path) -> None:
        child = spawn_child(["true"], log=tmp_path / "log")
        child.wait(60)
        assert terminate_group(child.pid, 10)


class TestDescendants:
    @linux_only
    def test_descendant_in_another_session_is_killed(
        self, tmp_path: Path, children: list[subprocess.Popen[bytes]]
    ) -> None:
        log = tmp_path / "log"
        children.append(spawn_child(["sh", "-c", "setsid sleep 120 & echo $!; sleep 120; echo over"], log=log))
        wait_for(lambda: read_last_lines(log, 1))
        moved = int(read_last_lines(log, 1)[0])
        wait_for(lambda: ProcessIdentity.of(moved) and os.getsid(moved) == moved)
        wait_for(lambda: self.count_below(children[0].pid) == 2)
        killed = kill_descendants(children[0].pid)
        assert moved in killed
        assert len(killed) == 2
        assert children[0].wait(10) == 0, "the ancestor is spared"
        assert read_last_lines(log, 1) == ["over"]

    def count_below(self, pid: int) -> int:
        return len(psutil.Process(pid).children())

    @linux_only
    def test_orphans_are_adopted_killed_and_reaped(self, start: Callable[..., subprocess.Popen[str]]) -> None:
        parent = start(
            "import subprocess\n"
            "adopt_orphans()\n"
            "command = 'setsid sleep 120 >/dev/null & echo $!'\n"
            "orphan = int(subprocess.run(['sh', '-c', command], stdout=subprocess.PIPE).stdout)\n"
            "was_alive = ProcessIdentity.of(orphan) is not None\n"
            "killed = kill_descendants()\n"
            "os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)\n"
            "reap_orphans(keep=[orphan])\n"
            "kept = os.path.exists(f'/proc/{orphan}')\n"
            "reap_orphans()\n"
            "tell(was_alive=was_alive, found=killed == [orphan], kept=kept, gone=not os.path.exists(f'/proc/{orphan}'))"
        )
        assert hear(parent) == {"was_alive": True, "found": True, "kept": True, "gone": True}


class TestKillSession:
    def spawn(self, tmp_path: Path) -> tuple[ProcessIdentity, ProcessIdentity]:
        """Return a session's leader and another member, in a group of its own."""
        code = (
            "import subprocess, sys\n"
            "child = subprocess.Popen(['sleep', '120'], preexec_fn=__import__('os').setpgrp)\n"
            "print(child.pid, flush=True)\n"
            "child.wait()"
        )
        leader = spawn_detached([sys.executable, "-c", code], log=tmp_path / "log")
        wait_for(lambda: read_last_lines(tmp_path / "log", 1))
        member = ProcessIdentity.of(int(read_last_lines(tmp_path / "log", 1)[0]))
        assert member is not None
        return leader, member

    def test_members_are_terminated_after_leader(self, tmp_path: Path, owned: Callable[..., ProcessIdentity]) -> None:
        leader, member = map(owned, self.spawn(tmp_path))
        with pytest.raises(ValueError, match="is alive"):
            kill_session(leader)
        leader.send(signal.SIGKILL)
        assert leader.wait(10)
        assert member.is_alive()
        assert kill_session(leader) == [member.pid]
        assert not member.is_alive()
        assert kill_session(leader) == []

    def test_later_session_with_same_number_is_spared(
        self, tmp_path: Path, owned: Callable[..., ProcessIdentity]
    ) -> None:
        leader, member = map(owned, self.spawn(tmp_path))
        assert kill_session(ProcessIdentity(leader.pid, "before")) == []
        assert leader.is_alive()
        assert member.is_alive()
