from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError
from kfp_mindspore.images import BuildContext, Entry, collect_folder
from kfp_mindspore.images.layer import Layer

NAMES = st.text("abé/._", min_size=1, max_size=8).filter(
    lambda name: all(p not in ("", ".", "..") for p in name.split("/"))
)
LONG = "a-folder-with-a-long-name/" * 8 + "file.py"


def _files(names: list[str], contents: list[bytes]) -> list[Entry]:
    taken: list[Entry] = []
    for name, content in zip(names, contents, strict=False):
        clash = any(
            f"{entry.path}/".startswith(f"{name}/") or f"{name}/".startswith(f"{entry.path}/") for entry in taken
        )
        if not clash:
            taken.append(Entry.from_bytes(name, content))
    return taken


@given(
    st.lists(NAMES, unique=True, max_size=6),
    st.lists(st.binary(max_size=1200), min_size=6, max_size=6),
    st.integers(0, 9000),
    st.integers(0, 3000),
    st.randoms(),
)
def test_layer_is_the_same_from_every_offset_and_in_any_order(names, contents, start, length, random) -> None:
    entries = _files(names, contents)
    shuffled = list(entries)
    random.shuffle(shuffled)
    layer = BuildContext(entries).layer("/app/x")
    whole = b"".join(layer.read())
    assert len(whole) == layer.size_bytes
    assert layer.digest == f"sha256:{hashlib.sha256(whole).hexdigest()}" == BuildContext(shuffled).digest_at("/app/x")
    assert b"".join(layer.read(start)) == whole[start:]
    assert b"".join(layer.read(start, start + length)) == whole[start : start + length]
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        files = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}
        assert files == {f"app/x/{entry.path}": entry.content for entry in entries}
        assert {(info.uid, info.gid, info.mtime, info.uname) for info in archive} <= {(0, 0, 0, "")}


def test_digest_is_the_one_of_every_machine() -> None:
    entries = [
        Entry.from_bytes("train.py", b"print(1)\n"),
        Entry.from_bytes("run.sh", b"#!/bin/sh\n", mode=0o755),
        Entry.from_bytes(f"é/{LONG}", b"x" * 513),
        Entry("link.py", 0, link="train.py"),
    ]
    assert BuildContext(entries).digest == "sha256:ed327d8531b3abcfa3de7cb043fcec74a6a748be815ccf82b5c53ff5f455316f"
    assert (
        BuildContext(entries).digest_at("/app")
        == "sha256:d034f7e98469f0901e87cabb4eccd2b0be2d20b55c74038af2c5ba723677d682"
    )


def test_folder_gives_the_same_digest_whatever_times_and_masks(tmp_path: Path) -> None:
    digests = set()
    for number, mask in enumerate((0o000, 0o022, 0o077)):
        root = tmp_path / str(number)
        before = os.umask(mask)
        try:
            (root / "lib").mkdir(parents=True)
            (root / "train.py").write_text("print(1)\n")
            (root / "lib" / "run.sh").write_text("#!/bin/sh\n")
            (root / "lib" / "run.sh").chmod(0o700 + number)
            (root / "lib" / "again.py").symlink_to("../train.py")
            os.utime(root / "train.py", (number * 1000, number * 1000))
        finally:
            os.umask(before)
        digests.add(collect_folder(root).digest)
    assert len(digests) == 1


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_any_change_is_another_digest(change: str) -> None:
    before = [Entry.from_bytes("a", b"1"), Entry("b", 0, link="a")]
    after = {
        "content": [Entry.from_bytes("a", b"2"), before[1]],
        "mode": [Entry.from_bytes("a", b"1", mode=0o755), before[1]],
        "name": [Entry.from_bytes("c", b"1"), before[1]],
        "link": [before[0], Entry("b", 0, link="./a")],
    }[change]
    assert BuildContext(before).digest != BuildContext(after).digest


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "", ".", "a/", "a\0b"])
def test_refuses_paths_that_lead_out(path: str) -> None:
    with pytest.raises(UserError, match="leads out"):
        Entry.from_bytes(path, b"")


def test_refuses_two_of_one_name() -> None:
    with pytest.raises(UserError, match="a: is in the sources twice"):
        BuildContext([Entry.from_bytes("a", b""), Entry.from_bytes("a", b"")])
    with pytest.raises(UserError, match="a: is a file, and a folder for a/b"):
        BuildContext([Entry.from_bytes("a", b""), Entry.from_bytes("a/b", b"")])


@pytest.mark.parametrize("content", [b"", b"longer than before"])
def test_tells_which_file_changed_meanwhile(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.py").write_bytes(b"first")
    context = collect_folder(tmp_path)
    (tmp_path / "a.py").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.py: changed while it was read"):
        context.layer().digest  # noqa: B018


def test_tells_which_file_vanished(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"first")
    context = collect_folder(tmp_path)
    (tmp_path / "a.py").unlink()
    with pytest.raises(UserError, match=r"a\.py: No such file"):
        context.tar(io.BytesIO())


def test_tar_has_sources_and_extra_files_side_by_side() -> None:
    file = io.BytesIO()
    BuildContext([Entry.from_bytes("a/b.py", b"1"), Entry("c", 0, link="a/b.py")]).tar(
        file, prefix="sources", extra=[Entry.from_bytes("Containerfile", b"FROM x\n")]
    )
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        assert archive.getnames() == ["Containerfile", "sources", "sources/a", "sources/a/b.py", "sources/c"]
        assert archive.getmember("sources/c").linkname == "a/b.py"


# getrusage would count what the process that started this one had.
_MEASURE = """
import sys
from pathlib import Path
from kfp_mindspore.images import collect_folder

def read_peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

context = collect_folder(Path(sys.argv[1]))
before = read_peak()
with open("/dev/null", "wb") as file:
    context.tar(file)
print(read_peak() - before)
"""


def test_memory_does_not_grow_with_the_sources(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(300 << 20)
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50 << 10  # kilobytes


def test_layer_without_entries_is_an_empty_tar() -> None:
    assert b"".join(Layer([]).read()) == bytes(1024)
