from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.outputs import OutputKind


class Interrupted(BaseException):
    pass


def test_home_is_variable_or_below_user_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "state"))
    assert files.get_home() == tmp_path / "state"
    monkeypatch.delenv("KFP_MINDSPORE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.get_home() == tmp_path / ".kfp-mindspore"


def test_location_is_absolute_path_or_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert files.resolve_location("run/checkpoints") == str(tmp_path / "run" / "checkpoints")
    assert files.resolve_location("s3://bucket/run") == "s3://bucket/run"


def test_write_creates_directories_and_leaves_no_sibling(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    files.write_json(path, {"b": 1, "a": [1, 2]})
    assert json.loads(path.read_text()) == {"a": [1, 2], "b": 1}
    assert [entry.name for entry in path.parent.iterdir()] == ["b.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_failed_write_keeps_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"{", "not valid JSON"), (b"\xff\xfe{}", "not valid JSON")],
    ids=["missing", "truncated", "binary"],
)
def test_read_json_error_names_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "signature.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        files.read_json(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_directory_is_replaced_atomically(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for generation in ("first", "second"):
        with files.replace_directory(target, OutputKind("marker", names=("first",))) as directory:
            (directory / generation).touch()
            (directory / "marker").touch()
    assert sorted(entry.name for entry in target.iterdir()) == ["marker", "second"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("kind", [OutputKind("marker"), None])
def test_directory_with_other_content_is_not_replaced(tmp_path: Path, kind: OutputKind | None) -> None:
    target = tmp_path / "data"
    target.mkdir()
    with files.replace_directory(target, kind) as directory:
        (directory / "precious").touch()
    with (
        pytest.raises(UserError, match="data: is a directory with other content, expected a new or an empty directory"),
        files.replace_directory(target, kind),
    ):
        pass
    assert [entry.name for entry in target.iterdir()] == ["precious"]


def test_interrupted_replacement_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with files.replace_directory(target, OutputKind("weights")) as directory:
        (directory / "weights").write_text("old")

    def replace_and_fail() -> None:
        with files.replace_directory(target, OutputKind("weights")) as directory:
            (directory / "weights").write_text("half")
            raise Interrupted

    with pytest.raises(Interrupted):
        replace_and_fail()
    assert (target / "weights").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_boot_id_without_proc_is_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert files.read_boot_id() == socket.gethostname()


def test_interrupted_replacement_leaves_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")

    def write() -> None:
        with files.replace_file(path) as file:
            file.write(b"half")
            raise Interrupted

    with pytest.raises(Interrupted):
        write()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_replacement_does_not_create_removed_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), files.replace_file(tmp_path / "removed" / "beat.json", durable=False):
        pass
    assert not (tmp_path / "removed").exists()


@pytest.mark.parametrize("old", ["file", "directory", "nothing"])
@pytest.mark.parametrize("new", ["file", "directory"])
def test_path_is_replaced_by_file_or_directory(tmp_path: Path, old: str, new: str) -> None:
    def write(path: Path, kind: str) -> None:
        if kind == "directory":
            path.mkdir()
            (path / kind).touch()
        elif kind == "file":
            path.write_text(kind)

    path = tmp_path / "data"
    write(path, old)

    def interrupt() -> None:
        with files.replace_path(path) as temporary:
            write(temporary, new)
            raise Interrupted

    with pytest.raises(Interrupted):
        interrupt()
    assert (path.is_file(), path.is_dir()) == (old == "file", old == "directory")
    with files.replace_path(path) as temporary:
        write(temporary, new)
    assert (path.is_file(), path.is_dir()) == (new == "file", new == "directory")
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_new_directory_does_not_replace_existing_one(tmp_path: Path) -> None:
    path = tmp_path / "job"
    with files.create_directory(path) as temporary:
        (temporary / "first").touch()
    with pytest.raises(FileExistsError, match="job"), files.create_directory(path) as temporary:
        (temporary / "second").touch()
    assert [entry.name for entry in path.iterdir()] == ["first"]
    files.remove_directory(path)
    files.remove_directory(path)
    assert list(tmp_path.iterdir()) == []


def test_failed_replacement_restores_old_directory(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(FileNotFoundError), files.replace_directory(path, OutputKind("old")) as temporary:
        temporary.rmdir()
    assert [entry.name for entry in path.iterdir()] == ["old"]


def test_no_other_module_replaces_files_itself() -> None:
    pattern = re.compile(
        r"mkstemp|NamedTemporaryFile|os\.(replace|rename|link)\(|\.rename\(|\b(temporary|target|found)\.replace\("
    )
    root = Path(files.__file__).parent
    modules = [*root.rglob("*.py"), *(root.parent / "serving").rglob("*.py")]
    assert [file.name for file in modules if pattern.search(file.read_text())] == ["files.py"]
