from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.local.lease import Lease, is_lease_held
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.settings import LEASE_VARIABLE

HEAD = """
import json, signal, sys, time
from pathlib import Path
from kfp_mindspore.local.lease import Lease, is_lease_held
def tell(**what): print(json.dumps(what), flush=True)
"""


def start(code: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HEAD + code, str(path)], stdout=subprocess.PIPE, text=True)


def hear(started: subprocess.Popen[str]) -> Any:
    assert started.stdout is not None
    return json.loads(started.stdout.readline())


class TestLease:
    def test_held_and_released(self, tmp_path: Path) -> None:
        path = tmp_path / "run" / "lease"
        assert not is_lease_held(path)
        with Lease.hold(path) as lease:
            assert is_lease_held(path)
            assert lease.environment == {LEASE_VARIABLE: str(path)}
            with pytest.raises(KfpMindSporeError, match="held by another"):
                Lease.hold(path)
        assert not is_lease_held(path)
        assert not path.exists()
        lease.release()
        with Lease.hold(path):
            assert is_lease_held(path)

    def test_file_without_holder(self, tmp_path: Path) -> None:
        (tmp_path / "lease").touch()
        assert not is_lease_held(tmp_path / "lease")

    def test_path_is_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with Lease.hold(Path("lease")) as lease:
            assert lease.environment[LEASE_VARIABLE] == str(tmp_path / "lease")

    def test_lease_of_killed_holder_is_free_while_its_children_run(self, tmp_path: Path) -> None:
        path = tmp_path / "lease"
        with contextlib.ExitStack() as stack:
            holder = stack.enter_context(
                start(
                    "from kfp_mindspore.local.process import spawn_detached\n"
                    "lease = Lease.hold(Path(sys.argv[1]))\n"
                    "tell(**spawn_detached(['sleep', '120'], log=Path(sys.argv[1] + '.log')).to_dict())\n"
                    "signal.pause()",
                    path,
                )
            )
            stack.callback(holder.kill)
            child = ProcessIdentity.from_dict(hear(holder))
            stack.callback(child.send, signal.SIGKILL)
            watcher = stack.enter_context(
                start(
                    "tell(held=is_lease_held(sys.argv[1]))\n"
                    "while is_lease_held(sys.argv[1]): time.sleep(0.01)\n"
                    "tell(held=False)",
                    path,
                )
            )
            stack.callback(watcher.kill)
            assert hear(watcher) == {"held": True}
            with pytest.raises(KfpMindSporeError, match="held by another"):
                Lease.hold(path)
            assert watcher.poll() is None
            holder.kill()
            assert hear(watcher) == {"held": False}
            assert child.is_alive(), "a detached process must not keep the lease"
            with Lease.hold(path):
                assert is_lease_held(path)
