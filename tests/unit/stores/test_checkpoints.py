from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.checkpoint import Checkpoint, NetworkSpec, name_checkpoint, write_checkpoint
from kfp_mindspore.stores import checkpoints
from kfp_mindspore.stores.artifact_store import STORES_VARIABLE, Store, dump_stores
from kfp_mindspore.stores.checkpoints import DirectoryStore, open_store
from tests.support.remote.object_store import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    GatedProxy,
    ObjectStore,
    s3_options,
    start_object_store,
)


def commit(store: DirectoryStore, epoch: int) -> None:
    path = store.root / name_checkpoint(epoch, epoch * 10)
    with write_checkpoint(path, epoch=epoch, step=epoch * 10, seed=7, network=NetworkSpec("")) as directory:
        for name in ("network.ckpt", "optimizer.ckpt"):
            (directory / name).write_bytes(bytes([epoch]) * 100)
    store.commit(path)


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStore]:
    """An S3 server; fsspec caches its client."""
    with start_object_store() as server:
        yield server


@pytest.fixture(params=["path", "memory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "path":
        yield str(tmp_path / "run")
    elif request.param == "memory":
        yield f"memory://{uuid.uuid4().hex}/run"
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("object_store").url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        yield f"s3://{BUCKET}/{uuid.uuid4().hex}/run"


@pytest.fixture
def open_(location: str) -> Iterator[Callable[[], DirectoryStore]]:
    """Return a store of the location, as a restarted run opens it."""
    opened: list[DirectoryStore] = []

    def start() -> DirectoryStore:
        while opened:
            opened.pop().close()
        opened.append(open_store(location, keep=2))
        opened[-1].open_for_writing()
        return opened[-1]

    yield start
    while opened:
        opened.pop().close()


def list_files(location: str) -> dict[str, bytes]:
    """Return the files of the checkpoints by relative name."""
    filesystem, root = fsspec.url_to_fs(location, use_listings_cache=False)
    names = [name for name in filesystem.find(root) if not name.endswith("/.lock")]
    return {name.removeprefix(root).lstrip("/"): filesystem.cat_file(name) for name in names}


def write_file(location: str, name: str, content: bytes) -> None:
    filesystem, root = fsspec.url_to_fs(location)
    filesystem.pipe_file(f"{root}/{name}", content)


def test_restarted_run_reads_newest_checkpoint(open_: Callable[[], DirectoryStore], location: str) -> None:
    store = open_()
    assert store.get_latest() is None
    for epoch in (1, 2, 3):
        commit(store, epoch)

    assert sorted({name.partition("/")[0] for name in list_files(location)}) == ["00002-20", "00003-30"]
    found = open_().get_latest()
    assert found is not None
    assert found.step == 30
    assert found.network_file.read_bytes() == bytes([3]) * 100
    assert str(store.locate("00003-30")) == f"{location}/00003-30"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("network.ckpt", b"\3" * 50, "network.ckpt: must have 100 bytes, has 50"),
        ("optimizer.ckpt", b"\3" * 99 + b"\2", "optimizer.ckpt: sha256 must be"),
        ("checkpoint.json", b"{", "checkpoint.json: not valid JSON"),
    ],
    ids=["truncated", "flipped", "description"],
)
def test_damaged_newest_checkpoint_falls_back_to_one_before(
    open_: Callable[[], DirectoryStore],
    location: str,
    file: str,
    content: bytes,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_()
    commit(store, 1)
    commit(store, 2)
    write_file(location, f"00002-20/{file}", content)

    store = open_()
    with caplog.at_level(logging.WARNING):
        found = store.get_latest()

    assert found is not None
    assert found.step == 10
    assert message in caplog.text
    commit(store, 2)
    found = open_().get_latest()
    assert found is not None
    assert found.step == 20, "written anew"


def test_order_does_not_depend_on_clock(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, keep=2)
    for epoch, seconds in ((1, 2e9), (2, 1e9), (3, 0.0)):
        commit(store, epoch)
        os.utime(tmp_path / name_checkpoint(epoch, epoch * 10), (seconds, seconds))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00002-20", "00003-30"]
    found = store.get_latest()
    assert found is not None
    assert found.step == 30


class Killed(Exception):
    """The end of a process in the middle of an upload."""


def test_interrupted_upload_is_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    location = f"memory://{uuid.uuid4().hex}"
    store = open_store(location, keep=2)
    store.open_for_writing()
    commit(store, 1)
    filesystem: Any = type(fsspec.filesystem("memory"))
    put_file = filesystem.put_file

    def interrupt(self: Any, local: str, remote: str, **options: Any) -> None:
        if remote.endswith("checkpoint.json"):
            raise Killed
        put_file(self, local, remote, **options)

    with monkeypatch.context() as patched:
        patched.setattr(filesystem, "put_file", interrupt)
        with pytest.raises(KfpMindSporeError, match=r"00002-20/checkpoint.json cannot be written: Killed"):
            commit(store, 2)
    assert "00002-20/network.ckpt" in list_files(location)

    again = open_store(location, keep=2)
    found = again.get_latest()
    assert found is not None
    assert found.step == 10
    again.open_for_writing()
    assert {name.partition("/")[0] for name in list_files(location)} == {"00001-10"}


@pytest.mark.parametrize("refused", ["PUT .*network", "PUT .*checkpoint.json", "DELETE"])
def test_failed_commit_keeps_the_newest_checkpoint(
    refused: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = GatedProxy(object_store)
    options = {**s3_options(proxy.url), "key": ACCESS_KEY, "secret": SECRET_KEY}
    monkeypatch.setenv(STORES_VARIABLE, dump_stores([Store("s3://", options)]))
    store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", keep=1)
    store.open_for_writing()
    commit(store, 1)
    proxy.refused = re.compile(refused)
    with pytest.raises(KfpMindSporeError, match=r"/0000[12]-[12]0/") as caught:
        commit(store, 2)
    assert "Checkpoints there are intact" in str(caught.value)
    proxy.refused = None
    found = store.get_latest()
    assert found is not None
    assert found.step == (20 if refused == "DELETE" else 10)
    commit(store, 2)
    found = store.get_latest()
    assert found is not None
    assert found.step == 20
    store.close()
    proxy.close()


def test_second_run_below_one_uri_is_refused() -> None:
    location = f"memory://{uuid.uuid4().hex}"
    first, second = open_store(location, keep=3), open_store(location, keep=3)
    first.open_for_writing()
    second.open_for_writing()
    commit(first, 1)
    with pytest.raises(UserError, match=r"checkpoint_dir: another run has written memory://\w+/00001-10"):
        commit(second, 2)
    assert {name.partition("/")[0] for name in list_files(location)} == {"00001-10"}


def test_unknown_scheme_is_user_error() -> None:
    with pytest.raises(UserError, match=r"checkpoint_dir: nothing://run cannot be used \(Protocol not known"):
        open_store("nothing://run", keep=3)


def test_file_uri_is_path(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/run", keep=3).root == tmp_path / "run"


HOLDER = """
import sys, pathlib
from kfp_mindspore.stores.checkpoints import DirectoryStore
DirectoryStore(pathlib.Path(sys.argv[1]), 3).open_for_writing()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_second_run_in_one_directory_is_refused_until_first_is_killed(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path, 3)
    with pytest.raises(UserError, match=rf"checkpoint_dir: {tmp_path} is in use by process {holder.pid} on "):
        store.open_for_writing()
    assert store.get_latest() is None, "reading needs no lock"

    holder.kill()
    holder.wait()
    store.open_for_writing()
    store.close()


def test_second_run_of_same_process_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run")
    first, second = DirectoryStore(tmp_path / "run", 3), DirectoryStore(tmp_path / "link", 3)
    first.open_for_writing()
    for _ in range(2):
        with pytest.raises(UserError, match="is in use by another run of this process"):
            second.open_for_writing()
        second.close()
    # The first one's lock holds: another process is refused.
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    refused = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert f"is in use by process {os.getpid()} on" in refused.stderr
    first.close()
    second.open_for_writing()
    second.close()


def test_lock_of_another_node_is_waited_for(
    holder: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The lock of a dead node is released by the file server, here while the second run waits.
    lock = tmp_path / checkpoints.LOCK_FILE
    lock.write_text('{"host": "node-b", "pid": 1, "boot": "another kernel"}')

    def release(seconds: float) -> None:
        holder.kill()
        holder.wait()

    monkeypatch.setattr(checkpoints.time, "sleep", release)
    store = DirectoryStore(tmp_path, 3)
    store.open_for_writing()
    store.close()
    assert "is locked by a process on node-b: waiting up to 120 s" in caplog.text


def test_directory_without_locks_is_used_with_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(checkpoints.fcntl, "lockf", refuse)
    store = DirectoryStore(tmp_path, 3)
    store.open_for_writing()
    commit(store, 1)
    assert Checkpoint.open(tmp_path / "00001-10").step == 10
    assert "cannot be locked against a second run (Operation not supported)" in caplog.text
