from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images import collect_folder


def test_dockerignore_is_applied(tmp_path: Path) -> None:
    for path in ("train.py", "lib/a.py", "lib/a.txt", "data/big.bin", "data/keep/small.bin"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "lib" / "run.sh").write_text("")
    (tmp_path / "lib" / "run.sh").chmod(0o744)
    (tmp_path / ".dockerignore").write_text("**/*.txt\ndata\n!data/keep\n.dockerignore\n")
    context = collect_folder(tmp_path, command=["python3", "train.py"])
    found = [(entry.path, entry.mode, entry.size) for entry in context.entries]
    assert found == [
        ("data/keep/small.bin", 0o644, 19),
        ("lib/a.py", 0o644, 8),
        ("lib/run.sh", 0o755, 0),
        ("train.py", 0o644, 8),
    ]
    assert context.command == ("python3", "train.py")
    assert context.size_bytes == 35


def _make_socket(path: Path) -> None:
    bound = socket.socket(socket.AF_UNIX)
    before = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is at most 108 bytes long
    try:
        bound.bind(path.name)
    finally:
        os.chdir(before)
        bound.close()


def _make_hard_link(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("x")
    path.hardlink_to(other)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "socket": (_make_socket, "is a socket"),
    "pipe": (os.mkfifo, "is a named pipe"),
    "hard link": (_make_hard_link, "is a hard link"),
    "link out": (lambda path: path.symlink_to("../../outside"), "is a link to ../../outside, out of the folder"),
    "absolute link": (lambda path: path.symlink_to("/etc/passwd"), "is an absolute link to /etc/passwd, expected"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unsupported_entries_are_refused(tmp_path: Path, kind: str) -> None:
    make, reason = REFUSED[kind]
    (tmp_path / "train.py").write_text("")
    (tmp_path / "lib").mkdir()
    make(tmp_path / "lib" / "bad")
    with pytest.raises(UserError, match=f"lib/bad: {reason}"):
        collect_folder(tmp_path)
    (tmp_path / ".dockerignore").write_text("lib\n")
    assert [entry.path for entry in collect_folder(tmp_path).entries] == [".dockerignore", "train.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device file: run the tests as root")
def test_device_files_are_refused(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "null", 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container may not make device files: run the tests with CAP_MKNOD")
    with pytest.raises(UserError, match="null: is a character device"):
        collect_folder(tmp_path)


def test_link_out_through_another_link_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (root / "a" / "up").symlink_to("../..")
    (root / ".dockerignore").write_text("a/up\n")
    (root / "sly").symlink_to("a/up/secret")
    with pytest.raises(UserError, match="sly: is a link to a/up/secret, out of the folder"):
        collect_folder(root)


def test_names_must_be_utf8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_text("")
    with pytest.raises(UserError, match="must be UTF-8"):
        collect_folder(tmp_path)


def test_likely_secrets_are_left_out_unless_included(tmp_path: Path) -> None:
    secrets = [".env", "a/.env.local", "certs/server.pem", "conf/id_rsa", "sub/.aws/credentials", "sub/.kube/x/config"]
    kept = [".env.example", "credentials/__init__.py", "environment.py", "keys.py"]
    for name in (*secrets, *kept):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    context = collect_folder(tmp_path)
    assert [entry.path for entry in context.entries] == sorted(kept)
    (note,) = context.notes
    assert note.startswith(f"left out as likely secrets: {', '.join(secrets)}; include one with")
    included = collect_folder(tmp_path, include=["certs/server.pem", "**/.kube"])
    assert {entry.path for entry in included.entries} == {*kept, "certs/server.pem", "sub/.kube/x/config"}
    (tmp_path / ".dockerignore").write_text("# takes all\n")
    assert ".env" not in {entry.path for entry in collect_folder(tmp_path).entries}


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such folder"):
        collect_folder(tmp_path / "none")
    with pytest.raises(UserError, match="has no files other than caches") as caught:
        collect_folder(tmp_path)
    assert ".dockerignore" not in str(caught.value)
    (tmp_path / ".dockerignore").write_text("*\n")
    with pytest.raises(UserError, match=r"\.dockerignore leaves out every file"):
        collect_folder(tmp_path)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/etc/passwd", "tree/pw: is an absolute link to /etc/passwd, expected a relative one within tree"),
        ("../pw", "tree/pw: is a link to ../pw, out of the folder"),
    ],
)
def test_refused_link_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "pw").symlink_to(target)
    with pytest.raises(UserError) as caught:
        collect_folder("tree")
    assert caught.value.message == message
    assert caught.value.hint.startswith("Replace it by a copy")
