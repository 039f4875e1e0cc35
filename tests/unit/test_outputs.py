from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.curves import render_curves
from kfp_mindspore.files import replace_directory, write_json, write_text
from kfp_mindspore.outputs import OutputKind, check_apart, check_directory, check_output_file, check_page, has_mark

KIND = OutputKind("parts.json", listing="files", names=("report.html",))


def write_output(path: Path) -> None:
    with replace_directory(path, KIND) as directory:
        for name in ("weights", "report.html"):
            (directory / name).write_text("content")
        write_json(directory / "parts.json", {"files": {"weights": {}}})


def test_earlier_output_is_replaced(tmp_path: Path) -> None:
    write_output(tmp_path / "out")
    write_output(tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["parts.json", "report.html", "weights"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", "precious", "has 'notes.txt' beside an earlier output, which would be lost"),
        (".git", "precious", "has '.git' beside an earlier output"),
        ("parts.json", "{}", "is a directory with other content"),
        ("parts.json", "[1", "is a directory with other content"),
        ("parts.json", '{"files": 3}', "is a directory with other content"),
    ],
)
def test_directory_with_more_than_the_output_is_kept(tmp_path: Path, name: str, content: str, message: str) -> None:
    write_output(tmp_path / "out")
    (tmp_path / "out" / name).write_text(content)
    with pytest.raises(UserError, match=re.escape(message)):
        write_output(tmp_path / "out")
    assert (tmp_path / "out" / name).read_text() == content


@pytest.mark.parametrize("kind", ["file", "link", "broken link", "pipe"])
def test_directory_replaces_nothing_else(tmp_path: Path, kind: str) -> None:
    path, file = tmp_path / "out", tmp_path / "file"
    file.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(file if kind == "link" else tmp_path / "absent")
    before = path.lstat()
    with pytest.raises(UserError, match="out: is a file, expected a new or an empty directory"):
        write_output(path)
    with pytest.raises(UserError, match="out: is a file, expected a directory"):
        check_directory(path)
    if kind != "broken link":
        with pytest.raises(UserError, match="out: is a file with other content, expected a new one"):
            check_output_file(path)
    assert (path.lstat(), file.read_text()) == (before, "precious")


def test_page_replaces_pages_only(tmp_path: Path) -> None:
    path = tmp_path / "curves.html"
    check_page(path)
    path.touch()
    check_page(path)
    write_text(path, render_curves("Curves", {}))
    check_page(path)
    path.write_text("<html>")
    with pytest.raises(UserError, match=r"curves.html: is a file with other content.*or an earlier page to replace"):
        check_page(path)


def test_each_page_has_the_mark() -> None:
    root = Path(__file__).parents[2] / "kfp_mindspore"
    pages = [file for file in root.rglob("*.j2") if "<html" in file.read_text()]
    assert len(pages) >= 6
    assert [file for file in pages if not has_mark(file, '<meta name="generator" content="kfp-mindspore">')] == []


def test_names_and_uris_are_no_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_apart(Path("out"), [None, "", "digits", "s3://bucket/out", "absent/out"])
    Path("out").mkdir()
    with pytest.raises(UserError, match="out: is the input file://"):
        check_apart(Path("out"), [(tmp_path / "out").as_uri()])
