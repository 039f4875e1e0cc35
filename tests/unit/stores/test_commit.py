"""Interrupted commits: after any prefix of the operations a reader finds the old directory, the new one or none."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.formats import bundle, checkpoint, dataset
from kfp_mindspore.stores.artifact_store import ArtifactStore, StoreError
from kfp_mindspore.stores.commit import (
    CHECKPOINT_MARKER,
    MARKERS,
    Operation,
    get_directory,
    is_checkpoint_name,
    is_marker,
    list_complete,
    order_deletions,
    plan_upload,
)
from kfp_mindspore.stores.mirror import ArtifactMirror, restore

Files = dict[str, Any]
# Relative names: plain files, checkpoints, and a checkpoint within a bundle within the root.
FOLDERS = ("", "00001-10", "00002-20", "model", "model/checkpoint", "model/data", "logs")
NAMES = [f"{folder}/{file}".lstrip("/") for folder in FOLDERS for file in ("a", "b")]
MARKER_NAMES = [
    *("dataset.json", "00001-10/checkpoint.json", "00002-20/checkpoint.json"),
    *("model/signature.json", "model/checkpoint/checkpoint.json"),
]


def is_below(name: str, marker: str) -> bool:
    directory = get_directory(marker)
    return name != marker and (not directory or name.startswith(f"{directory}/"))


def mark(plain: Mapping[str, int], markers: set[str]) -> Files:
    """Return files with markers whose content is that of all files below their directory."""
    found: Files = dict(plain)
    for marker in sorted(markers, key=lambda name: -name.count("/")):
        found[marker] = {name: content for name, content in found.items() if is_below(name, marker)}
    return found


trees = st.builds(
    mark, st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)), st.sets(st.sampled_from(MARKER_NAMES))
)


def apply(operation: Operation, store: Files, local: Files) -> None:
    if operation.kind == "delete":
        del store[operation.name]
    else:
        store[operation.name] = local[operation.name]


def check_readers(store: Files) -> None:
    """Check that the content of each complete directory is what its marker says."""
    for marker in filter(is_marker, store):
        assert store[marker] == {name: content for name, content in store.items() if is_below(name, marker)}


def upload(store: Files, local: Files, changed: set[str], end: int | None = None) -> int:
    operations = plan_upload(changed, store, local)
    for operation in operations[:end]:
        apply(operation, store, local)
        check_readers(store)
    return len(operations)


@given(old=trees, new=trees)
def test_reader_never_finds_a_mixture(old: Files, new: Files) -> None:
    store = dict(old)
    upload(store, new, {name for name in new if old.get(name) != new[name]})
    assert store == new


@given(old=trees, interrupted=trees, new=trees, end=st.integers(0, 12))
def test_restarted_writer_continues_after_any_operation(old: Files, interrupted: Files, new: Files, end: int) -> None:
    store = dict(old)
    upload(store, interrupted, set(interrupted), end)
    # A new process knows the names of the objects only.
    upload(store, new, set(new))
    assert store == new


@given(old=trees)
def test_deletion_is_never_a_mixture(old: Files) -> None:
    store = dict(old)
    for name in order_deletions(old):
        del store[name]
        check_readers(store)


@given(old=st.sets(st.integers(1, 6), min_size=1), new=st.sets(st.integers(1, 6), min_size=1))
def test_reader_always_finds_a_checkpoint(old: set[int], new: set[int]) -> None:
    def write(epochs: set[int]) -> Files:
        names = [checkpoint.name_checkpoint(epoch, epoch) for epoch in sorted(epochs)]
        return mark({f"{name}/network.ckpt": 1 for name in names}, {f"{name}/{CHECKPOINT_MARKER}" for name in names})

    store, local = write(old), write(new)
    for operation in plan_upload(local.keys() - store.keys(), store, local):
        apply(operation, store, local)
        assert any(map(is_marker, store))


def test_markers_are_the_descriptions_of_the_formats() -> None:
    assert {checkpoint.DESCRIPTION, dataset.DESCRIPTION, bundle.SIGNATURE_FILE} == MARKERS
    assert checkpoint.DESCRIPTION == CHECKPOINT_MARKER
    assert is_checkpoint_name(checkpoint.name_checkpoint(3, 7))


def test_checkpoint_without_a_marker_is_incomplete() -> None:
    names = ["metrics.jsonl", "00001-10/network.ckpt", "00002-20/network.ckpt", "00002-20/checkpoint.json", "other/a"]
    assert list_complete(names) == [name for name in names if not name.startswith("00001-10")]


class FailingStore(ArtifactStore):
    """Files in memory, without a response from the nth request on."""

    def __init__(self, root: str) -> None:
        super().__init__([], {})
        self.root = root
        self.left = 1000

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreError("no response", kind="unavailable")

    def upload(self, path: Path, uri: str) -> None:
        self._count()
        super().upload(path, uri)

    def delete(self, uri: str) -> None:
        self._count()
        super().delete(uri)


def write_checkpoint(path: Path, epoch: int, content: int) -> None:
    with checkpoint.write_checkpoint(
        path, epoch=epoch, step=epoch, seed=7, network=checkpoint.NetworkSpec("")
    ) as folder:
        for name in ("network.ckpt", "optimizer.ckpt"):
            (folder / name).write_bytes(bytes([content]) * 10)


@pytest.mark.parametrize("requests", range(12))
def test_mirror_continues_after_a_failed_request(requests: int, tmp_path: Path) -> None:
    store = FailingStore(f"memory://mirror-{requests}")
    local = tmp_path / "local"
    write_checkpoint(local / "00001-1", 1, 1)
    write_checkpoint(local / "00002-2", 2, 1)
    mirror = ArtifactMirror(store, local, store.root)
    mirror.sync()

    write_checkpoint(local / "00002-2", 2, 2)
    write_checkpoint(local / "00003-3", 3, 2)
    checkpoint.prune_checkpoints(local, 2)
    store.left = requests
    # Three deletions and three uploads for 00002-2, three uploads for 00003-3, three deletions for 00001-1.
    with pytest.raises(StoreError) if requests < 10 else contextlib.nullcontext():
        mirror.sync()
    store.left = 1000
    restore(store, store.root, tmp_path / "reader")
    found = [checkpoint.Checkpoint.open(path) for path in checkpoint.list_checkpoints(tmp_path / "reader")]
    assert found
    assert {item.network_file.read_bytes() for item in found} <= {b"\1" * 10, b"\2" * 10}

    mirror.sync()
    assert sorted(store.list_files(store.root)) == sorted(
        f"{name}/{file}"
        for name in ("00002-2", "00003-3")
        for file in (CHECKPOINT_MARKER, "network.ckpt", "optimizer.ckpt")
    )


def test_checkpoint_that_appears_while_files_are_listed_loses_nothing(tmp_path: Path) -> None:
    store = FailingStore("memory://mirror-appearing")
    local = tmp_path / "local"
    local.mkdir()
    mirror = ArtifactMirror(store, local, store.root)
    is_ended = threading.Event()

    def write() -> None:
        for number in range(1, 200):
            # As `files.replace_directory`: a hidden directory gets the checkpoint's name.
            hidden = local / f".{number}.tmp"
            hidden.mkdir()
            (hidden / "checkpoint.json").write_text("{}")
            hidden.rename(local / f"{number:05}-{number}")
            shutil.rmtree(local / f"{number - 1:05}-{number - 1}", ignore_errors=True)
        is_ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not is_ended.is_set():
        store.left = 10_000
        mirror.sync()
    writer.join()
    mirror.sync(final=True)

    assert list(store.list_files(store.root)) == ["00199-199/checkpoint.json"]
