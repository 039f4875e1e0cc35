"""The parts of a release that need no build; tests/local/test_wheel.py builds and installs."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from kfp_mindspore import __version__
from kfp_mindspore.errors import UserError
from release.files import CHECKSUMS, normalise_sdist, pack_chart, read_notes, write_release
from release.signatures import read_key, sign

CHART = Path(__file__).parents[3] / "charts" / "kfp-mindspore"
CHANGELOG = "# Changelog\nAll changes.\n\n## {}\nNew.\n\n### Part\n- One.\n\n## 0.0.9\nOld.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "CHANGELOG.md").write_text(CHANGELOG.format(__version__))
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "Changes"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("heading", ["1.2.3", "Upcoming"])
def test_notes_are_the_newest_section(heading: str) -> None:
    assert read_notes(CHANGELOG.format(heading), "1.2.3") == "New.\n\n### Part\n- One.\n"


@pytest.mark.parametrize("changelog", [CHANGELOG.format("1.2.2"), "# Changelog\n", ""])
def test_changelog_without_section_is_refused(changelog: str) -> None:
    with pytest.raises(UserError, match=r"^CHANGELOG.md: the first section must be '1.2.3' or 'Upcoming', got "):
        read_notes(changelog, "1.2.3")


def test_other_version_is_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^VERSION: must be {__version__}, .*, got '9.9.9'"):
        write_release(repository, "9.9.9", tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_uncommitted_file_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "new.py").touch()
    with pytest.raises(UserError, match=r"1 files are not committed, such as new\.py"):
        write_release(repository, __version__, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_other_content_is_kept(repository: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dist" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(UserError, match=rf"other content, expected .*{CHECKSUMS}"):
        write_release(repository, __version__, kept.parent)
    assert kept.read_text() == "mine"


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, password: bytes = b"") -> Path:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return path


def test_signature_is_of_the_content(tmp_path: Path) -> None:
    key = read_key(_write_key(tmp_path / "key.pem", ec.generate_private_key(ec.SECP256R1())))
    signature = base64.b64decode(sign(key, b"content"))
    key.public_key().verify(signature, b"content", ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path, "No such file"),
        (lambda path: path.write_text("no key") and path, "must be a PEM file of a private key without a password"),
        (lambda path: _write_key(path, ed25519.Ed25519PrivateKey.generate()), "must be a key on the curve P-256"),
        (lambda path: _write_key(path, ec.generate_private_key(ec.SECP384R1())), "must be a key on the curve P-256"),
        (lambda path: _write_key(path, ec.generate_private_key(ec.SECP256R1()), b"x"), "without a password"),
    ],
)
def test_wrong_key_is_refused_before_a_build(repository: Path, tmp_path: Path, make, reason: str) -> None:
    with pytest.raises(UserError, match=rf"^KEY: .*{reason}"):
        write_release(repository, __version__, tmp_path / "dist", make(tmp_path / "key.pem"))
    assert not (tmp_path / "dist").exists()


def _pack(names: list[str], time: int, owner: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(name), time, owner
            archive.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_source_distribution_has_neither_order_nor_times_nor_owners() -> None:
    first, second = _pack(["b", "a"], 1, "me"), _pack(["a", "b"], 2, "you")
    assert normalise_sdist(first, 9) == normalise_sdist(second, 9) != normalise_sdist(second, 10)
    with tarfile.open(fileobj=io.BytesIO(normalise_sdist(first, 9))) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}
    assert read == {"a": b"a", "b": b"b"}


def test_chart_archive_has_the_definition_and_no_times() -> None:
    packed = pack_chart(CHART, 9)
    assert packed == pack_chart(CHART, 9)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive if not member.isdir()}
        assert {member.mtime for member in archive} == {9}
    assert read["kfp-mindspore/crd.yaml"] == (CHART / "crd.yaml").read_bytes()
    files = {Path(folder, name) for folder, _, names in os.walk(CHART, followlinks=True) for name in names}
    assert set(read) == {f"kfp-mindspore/{path.relative_to(CHART)}" for path in files}
