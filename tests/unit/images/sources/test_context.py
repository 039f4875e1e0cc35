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
from kfp_mindspore.images import collect_folder
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from kfp_mindspore.images.sources.layer import Layer

NAMES = st.text("abé/._", min_size=1, max_size=8).filter(
    lambda name: all(p not in ("", ".", "..") for p in name.split("/"))
)
LONG = "a-folder-with-a-long-name/" * 8 + "file.py"


def _files(names: list[str], contents: list[bytes]) -> list[ContextEntry]:
    taken: list[ContextEntry] = []
    for name, content in zip(names, contents, strict=False):
        clash = any(
            f"{entry.path}/".startswith(f"{name}/") or f"{name}/".startswith(f"{entry.path}/") for entry in taken
        )
        if not clash:
            taken.append(ContextEntry.from_bytes(name, content))
    return taken


@given(
    st.lists(NAMES, unique=True, max_size=6),
    st.lists(st.binary(max_size=1200), min_size=6, max_size=6),
    st.randoms(),
)
def test_layer_does_not_depend_on_order_of_entries(names, contents, random) -> None:
    entries = _files(names, contents)
    shuffled = list(entries)
    random.shuffle(shuffled)
    layer = BuildContext(entries).layer("/app/x")
    whole = b"".join(layer.read())
    assert len(whole) == layer.size_bytes
    assert layer.digest == f"sha256:{hashlib.sha256(whole).hexdigest()}"
    assert BuildContext(shuffled).layer("/app/x").digest == layer.digest
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        files = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}
        assert files == {f"app/x/{entry.path}": entry.content for entry in entries}
        assert {(info.uid, info.gid, info.mtime, info.uname) for info in archive} <= {(0, 0, 0, "")}


def test_digest_is_pinned() -> None:
    entries = [
        ContextEntry.from_bytes("train.py", b"print(1)\n"),
        ContextEntry.from_bytes("run.sh", b"#!/bin/sh\n", mode=0o755),
        ContextEntry.from_bytes(f"é/{LONG}", b"x" * 513),
        ContextEntry("link.py", 0, link="train.py"),
    ]
    context = BuildContext(entries)
    assert context.layer().digest == "sha256:ed327d8531b3abcfa3de7cb043fcec74a6a748be815ccf82b5c53ff5f455316f"
    assert context.layer("/app").digest == "sha256:d034f7e98469f0901e87cabb4eccd2b0be2d20b55c74038af2c5ba723677d682"


def test_digest_ignores_times_and_umask(tmp_path: Path) -> None:
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
        digests.add(collect_folder(root).layer().digest)
    assert len(digests) == 1


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_digest_covers_content_mode_name_and_link(change: str) -> None:
    before = [ContextEntry.from_bytes("a", b"1"), ContextEntry("b", 0, link="a")]
    after = {
        "content": [ContextEntry.from_bytes("a", b"2"), before[1]],
        "mode": [ContextEntry.from_bytes("a", b"1", mode=0o755), before[1]],
        "name": [ContextEntry.from_bytes("c", b"1"), before[1]],
        "link": [before[0], ContextEntry("b", 0, link="./a")],
    }[change]
    assert BuildContext(before).layer().digest != BuildContext(after).layer().digest


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "", ".", "a/", "a\0b"])
def test_paths_outside_context_are_refused(path: str) -> None:
    with pytest.raises(UserError, match="plain relative path"):
        ContextEntry.from_bytes(path, b"")


def test_conflicting_paths_are_refused() -> None:
    with pytest.raises(UserError, match="a: is in the sources twice"):
        BuildContext([ContextEntry.from_bytes("a", b""), ContextEntry.from_bytes("a", b"")])
    with pytest.raises(UserError, match="a: is a file, and a folder for a/b"):
        BuildContext([ContextEntry.from_bytes("a", b""), ContextEntry.from_bytes("a/b", b"")])


@pytest.mark.parametrize("content", [b"", b"longer than before"])
def test_changed_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.py").write_bytes(b"first")
    context = collect_folder(tmp_path)
    (tmp_path / "a.py").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.py: changed during the build"):
        context.layer().digest  # noqa: B018


def test_deleted_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"first")
    context = collect_folder(tmp_path)
    (tmp_path / "a.py").unlink()
    with pytest.raises(UserError, match=r"a\.py: No such file"):
        context.write_tar(io.BytesIO(), prefix="sources")


def test_tar_holds_sources_and_extra_files() -> None:
    file = io.BytesIO()
    BuildContext([ContextEntry.from_bytes("a/b.py", b"1"), ContextEntry("c", 0, link="a/b.py")]).write_tar(
        file, prefix="sources", extra=[ContextEntry.from_bytes("Containerfile", b"FROM x\n")]
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
    context.write_tar(file, prefix="sources")
print(read_peak() - before)
"""


def test_memory_is_constant(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(300 << 20)
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50 << 10  # kilobytes


def test_layer_without_entries_is_empty_tar() -> None:
    assert b"".join(Layer([]).read()) == bytes(1024)
