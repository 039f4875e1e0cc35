"""Ownership of test clusters and cleanup after their owner died."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfp_mindspore.local.process import ProcessIdentity
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.instances import (
    SWEEPER,
    create_instance,
    list_persistent,
    remove_instance,
    remove_leftovers,
)
from tests.cluster.infrastructure.paths import ROOT, compute_digest, get_cache, make_directory

_OWNER = """
import os, sys
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.instances import SWEEPER, create_instance

instance = create_instance("api", keep=sys.argv[1] == "keep")
if sys.argv[1] == "alone":
    Daemons(instance.directory).stop(SWEEPER)
daemon = Daemons(instance.directory).start("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"])
print(instance.directory, daemon.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KFP_MINDSPORE_CLUSTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def die(word: str) -> tuple[Path, ProcessIdentity | None]:
    command = [sys.executable, "-c", _OWNER, word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    directory, pid = done.stdout.split()
    return Path(directory), ProcessIdentity.of(int(pid))


def test_sweeper_removes_cluster_of_dead_owner() -> None:
    directory, process = die("own")
    deadline = time.monotonic() + 60
    while directory.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not process or not process.is_alive()


def test_next_start_removes_cluster_of_dead_owner() -> None:
    directory, process = die("alone")
    assert directory.is_dir()
    instance = create_instance("api")
    assert not directory.exists()
    assert process
    assert not process.is_alive()
    assert instance.directory.is_dir()
    remove_instance(instance.directory)


def test_cluster_of_living_owner_stays() -> None:
    first, second = create_instance("api"), create_instance("api")
    assert remove_leftovers() == []
    assert first.directory.is_dir()
    assert second.name != first.name
    assert first.lease is not None
    Daemons(first.directory).stop(SWEEPER)
    first.lease.release()
    assert remove_leftovers() == [first.name]
    remove_instance(second.directory)


def test_persistent_cluster_stays_until_removed() -> None:
    directory, process = die("keep")
    assert remove_leftovers() == []
    assert list_persistent() == [directory]
    assert process
    assert process.is_alive()
    remove_instance(directory)
    assert list_persistent() == []
    assert not process.is_alive()


def test_remove_instance_with_exited_daemon() -> None:
    instance = create_instance("api")
    daemons = Daemons(instance.directory)
    daemons.start("short", [sys.executable, "-c", ""]).process.wait(20)
    remove_instance(instance.directory)
    assert not instance.directory.exists()


def test_directories_are_readable_by_any_user(cache: Path, tmp_path: Path) -> None:
    assert get_cache() == cache
    assert cache.stat().st_mode & 0o777 == 0o755
    private = tmp_path / "private"
    private.mkdir(0o700)
    assert make_directory(private, 0o777).stat().st_mode & 0o777 == 0o777


def test_digest_depends_on_names_contents_and_words(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("x")
    second.write_text("y")
    digest = compute_digest([first, second], "word")
    assert digest == compute_digest([second, first], "word")
    assert digest != compute_digest([first, second], "wor", "d")
    second.write_text("z")
    assert digest != compute_digest([first, second], "word")
