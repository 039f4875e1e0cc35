from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

import kfp_mindspore
import mindsporeserver
from kfp_mindspore.stores.artifact_store import ArtifactStore, StoreError, join_uri

PACKAGES = (Path(kfp_mindspore.__file__).parent, Path(mindsporeserver.__file__).parent)


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4().hex}/data"


@pytest.fixture
def store(uri: str) -> ArtifactStore:
    filesystem, root = fsspec.url_to_fs(uri)
    filesystem.pipe({f"{root}/a": b"1", f"{root}/parts/b": b"22"})
    return ArtifactStore([], {})


def test_download_replaces_a_directory_at_once(store: ArtifactStore, uri: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stale").touch()
    assert store.download(uri, tmp_path / "data") == 2
    assert (tmp_path / "data" / "parts" / "b").read_bytes() == b"22"
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["a", "b", "data", "parts"]
    assert store.download(join_uri(uri, "a"), tmp_path / "data") == 1
    assert (tmp_path / "data").read_bytes() == b"1"
    assert store.download(uri, tmp_path / "data", ["parts/b"]) == 1
    assert store.list_files(uri) == {"a": 1, "parts/b": 2}


@pytest.mark.parametrize("names", [None, ["a", "parts/b"]])
def test_failed_download_leaves_the_old_directory(
    names: list[str] | None, store: ArtifactStore, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").touch()
    filesystem: Any = type(fsspec.filesystem("memory"))

    def refuse(self: Any, source: list[str], target: list[str]) -> None:
        Path(target[0]).write_text("half")
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(filesystem, "get", refuse)
    with pytest.raises(StoreError, match=f"{uri} cannot be read: reset by peer") as caught:
        store.download(uri, tmp_path / "data", names)
    assert caught.value.retryable
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["data", "old"]


def test_missing_objects_are_named(store: ArtifactStore, uri: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent cannot be read: no such object") as caught:
        store.download(join_uri(uri, "absent"), tmp_path / "data")
    assert (caught.value.kind, caught.value.retryable) == ("missing", False)
    assert store.read_bytes(join_uri(uri, "absent")) is None
    store.delete(join_uri(uri, "absent"))
    with pytest.raises(StoreError) as caught:
        store.check(join_uri(uri, "absent"))
    assert caught.value.kind == "missing"
    store.check(uri)


def test_key_with_parent_folders_is_refused(store: ArtifactStore, uri: str, tmp_path: Path) -> None:
    filesystem, root = fsspec.url_to_fs(uri)
    filesystem.store[f"{root}/../evil"] = filesystem.store[f"{root}/a"]
    try:
        with pytest.raises(StoreError, match=r"has '\.\.' in its key"):
            store.download(uri, tmp_path / "data")
    finally:
        del filesystem.store[f"{root}/../evil"]
    assert list(tmp_path.iterdir()) == []


def test_one_module_opens_uris() -> None:
    pattern = re.compile(r"^\s*(import|from) (fsspec|s3fs|gcsfs)\b", re.MULTILINE)
    found = [file.name for package in PACKAGES for file in package.rglob("*.py") if pattern.search(file.read_text())]
    assert found == ["artifact_store.py"]
