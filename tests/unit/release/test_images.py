"""Images of a release over a base of a few files; tests/release has cosign, syft and a daemon as judges."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kfp_mindspore import __version__
from kfp_mindspore.errors import NotFoundError, ProcessFailedError, UserError
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.reference import parse_reference
from kfp_mindspore.images.registry.blob import BytesBlob
from kfp_mindspore.images.registry.images import inspect_image
from kfp_mindspore.images.registry.manifest import OCI_INDEX, OCI_MANIFEST, fetch_manifest, make_manifest
from kfp_mindspore.images.registry.session import RegistrySession
from release.__main__ import main
from release.base import PLATFORM, PYTHON, get_python, open_base
from release.images import IMAGES, ImageSpec, ReleaseSource, write_image
from release.layout import TAG, Layout
from release.push import push_images
from release.signatures import verify_image
from tests.support.remote import base_images, registries

KEY, OTHER_KEY = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
SPEC = ImageSpec("steps", (), command=("kfp-mindspore", "--version"), env={"A": "1"})
FILES = {
    f"usr/local/bin/{PYTHON}": b"",
    "etc/os-release": b'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\n',
    "var/lib/dpkg/status": (
        b"Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9+deb12u1\n\n"
        b"Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
    ),
}
ROOT = Path(__file__).parents[3]
BILL, STATEMENT = "application/vnd.cyclonedx+json", "application/vnd.in-toto+json"


def _write_base(folder: Path, files: Mapping[str, bytes] = FILES, platform: str = PLATFORM) -> Path:
    """Write a base image with one layer as a layout."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    system, architecture = platform.split("/")
    layout, layer = Layout(folder), BytesBlob(gzip.compress(packed.getvalue(), mtime=0))
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(packed.getvalue()).hexdigest()}"]}
    settings = {"Env": ["PATH=/usr/bin"], "User": "root", "Cmd": ["python3"], "Entrypoint": ["/init"]}
    config = {"os": system, "architecture": architecture, "config": settings, "rootfs": rootfs}
    fields = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            **layout.add(BytesBlob(json.dumps(config).encode())),
        },
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **layout.add(layer)}],
    }
    layout.write_index([layout.add_manifest(make_manifest(fields), annotations={TAG: "python:test"})])
    return folder


def _write_source(folder: Path, requires: str = "", files: Mapping[str, str] = {}) -> ReleaseSource:
    """Write a wheel of one module, which may require a package, and further files."""
    folder.mkdir()
    wheel = folder / f"kfp_mindspore-{__version__}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.4\nName: kfp-mindspore\nVersion: {__version__}\nLicense-Expression: Apache-2.0\n"
    contents = {
        **files,
        "kfp_mindspore_cli.py": "def main():\n    return 0\n",
        "METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\nkfp-mindspore = kfp_mindspore_cli:main\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in contents.items():
            archive.writestr(
                name if name.endswith((".py", ".c")) else f"kfp_mindspore-{__version__}.dist-info/{name}", text
            )
    (folder / "constraints.txt").write_text("")
    return ReleaseSource(__version__, "c" * 40, 86400, wheel, folder / "constraints.txt")


@pytest.fixture(autouse=True, scope="module")
def offline() -> Iterator[None]:
    """Let uv read no index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_OFFLINE", "1")
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_base(tmp_path_factory.mktemp("base") / "layout")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ReleaseSource:
    return _write_source(tmp_path_factory.mktemp("source") / "packages")


def _write(folder: Path, base: Path, source: ReleaseSource, key: Any = None, spec: ImageSpec = SPEC) -> Layout:
    with open_base(str(base), RegistryConfig()) as opened:
        write_image(folder, spec, opened, source, key)
    return Layout(folder)


@pytest.fixture(scope="module")
def signed(base: Path, source: ReleaseSource, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return _write(tmp_path_factory.mktemp("images") / "steps", base, source, KEY)


@pytest.fixture
def copy(signed: Layout, tmp_path: Path) -> Layout:
    """Return a copy that a test may change."""
    shutil.copytree(signed.root, tmp_path / "images" / "steps")
    return Layout(tmp_path / "images" / "steps")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registries.Registry]:
    registries.require_binary()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


def _read_configuration(layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(layout.read(layout.get_manifest(layout.manifests[0]).fields["config"]["digest"]))
    return found


def _read_referrer(layout: Layout, kind: str) -> dict[str, Any]:
    (descriptor,) = (entry for entry in layout.manifests if entry.get("artifactType") == kind)
    found: dict[str, Any] = json.loads(layout.read(layout.get_manifest(descriptor).fields["layers"][0]["digest"]))
    return found


def test_layout_has_index_and_blobs_by_digest(signed: Layout) -> None:
    assert json.loads((signed.root / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    blobs = list((signed.root / "blobs" / "sha256").iterdir())
    assert all(hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name for blob in blobs)
    signed.check()


def test_image_runs_unprivileged_and_names_its_origin(signed: Layout, base: Path) -> None:
    config = _read_configuration(signed)["config"]
    assert (config["User"], config["WorkingDir"]) == ("1000:0", "/tmp")
    assert (config["Entrypoint"], config["Cmd"]) == ([], ["kfp-mindspore", "--version"])
    assert {"A=1", "HOME=/tmp", "PATH=/opt/venv/bin:/usr/bin"} <= set(config["Env"])
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels.items() >= {
        ("version", __version__),
        ("revision", "c" * 40),
        ("source", "https://github.com/kfp-mindspore/kfp-mindspore"),
        ("licenses", "Apache-2.0"),
        ("base.name", "python:test"),
        ("base.digest", Layout(base).manifests[0]["digest"]),
        ("created", "1970-01-02T00:00:00Z"),
    }


def test_layer_is_virtual_environment_over_python_of_base(signed: Layout) -> None:
    layer = signed.get_manifest(signed.manifests[0]).fields["layers"][-1]
    with tarfile.open(signed.get_blob(layer["digest"]).path) as archive:
        members = {member.name: member for member in archive}
        script = archive.extractfile("opt/venv/bin/kfp-mindspore").read().decode()
        settings = archive.extractfile("opt/venv/pyvenv.cfg").read().decode()
    packages = f"opt/venv/lib/{PYTHON}/site-packages"
    assert members["opt/venv/bin/python3"].linkname == f"/usr/local/bin/{PYTHON}"
    assert settings.startswith("home = /usr/local/bin\n")
    assert script.startswith("#!/opt/venv/bin/python3\n")
    assert members["opt/venv/bin/kfp-mindspore"].mode == 0o755
    assert f"{packages}/kfp_mindspore_cli.py" in members
    assert any(name.startswith(f"{packages}/__pycache__/kfp_mindspore_cli.") for name in members)
    assert {(member.uid, member.mtime) for member in members.values()} == {(0, 0)}


def test_same_source_gives_same_bytes(base: Path, source: ReleaseSource, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(source.wheel.parent, moved)
    again = replace(source, wheel=moved / source.wheel.name, constraints=moved / "constraints.txt")
    first, second = (
        {path.relative_to(layout.root): path.read_bytes() for path in layout.root.rglob("*") if path.is_file()}
        for layout in (_write(tmp_path / "a", base, source), _write(tmp_path / "b", base, again))
    )
    assert first == second


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_image_of_language_models_has_compiled_operator(base: Path, tmp_path: Path) -> None:
    folder = "kfp_mindspore/lm/network"
    names = [f"{folder}/decode_library.py", f"{folder}/decode_step.c"]
    files = {name: (ROOT / name).read_text() for name in names}
    layout = _write(
        tmp_path / "x", base, _write_source(tmp_path / "source", "", files), spec=replace(SPEC, extras=("lm",))
    )
    layer = layout.get_manifest(layout.manifests[0]).fields["layers"][-1]
    with tarfile.open(layout.get_blob(layer["digest"]).path) as archive:
        found = [member.name.rpartition("/") for member in archive if member.name.endswith(".so")]
    assert {place for place, _, _ in found} == {f"opt/venv/lib/{PYTHON}/site-packages/{folder}/operators"}
    assert len(found) == (3 if platform.machine() == "x86_64" else 1)


def test_archive_is_same_base_as_its_folder(base: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "base"), "tar", base)
    with open_base(archive, RegistryConfig()) as packed, open_base(str(base), RegistryConfig()) as unpacked:
        assert (packed.name, packed.manifest) == (unpacked.name, unpacked.manifest)


@pytest.mark.parametrize("kind", [BILL, STATEMENT])
def test_referrers_name_the_image(signed: Layout, kind: str) -> None:
    image = signed.manifests[0]
    (descriptor,) = (entry for entry in signed.manifests if entry.get("artifactType") == kind)
    fields = signed.get_manifest(descriptor).fields
    assert (fields["artifactType"], fields["layers"][0]["mediaType"]) == (kind, kind)
    assert fields["subject"] == {name: image[name] for name in ("digest", "mediaType", "size")}


def test_bill_lists_python_packages_and_installed_ones_of_base(signed: Layout) -> None:
    bill = _read_referrer(signed, BILL)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == signed.manifests[0]["digest"]
    own = f"pkg:pypi/kfp-mindspore@{__version__}"
    assert {each["purl"]: each.get("licenses") for each in bill["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12": None,
        own: [{"expression": "Apache-2.0"}],
    }


def test_provenance_names_commit_base_and_wheel(signed: Layout, base: Path, source: ReleaseSource) -> None:
    statement = _read_referrer(signed, STATEMENT)
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert f"sha256:{statement['subject'][0]['digest']['sha256']}" == signed.manifests[0]["digest"]
    definition = statement["predicate"]["buildDefinition"]
    digests = [each["digest"] for each in definition["resolvedDependencies"]]
    assert digests[:3] == [
        {"gitCommit": "c" * 40},
        {"sha256": Layout(base).manifests[0]["digest"].removeprefix("sha256:")},
        {"sha256": hashlib.sha256(source.wheel.read_bytes()).hexdigest()},
    ]
    assert definition["externalParameters"]["version"] == __version__
    assert statement["predicate"]["runDetails"]["builder"]["id"].endswith(f"{'c' * 40}/release")


def test_images_name_known_extras() -> None:
    from kfp_mindspore.images.runtime.extras import list_extras

    assert {extra for spec in IMAGES for extra in spec.extras} <= set(list_extras())
    assert [spec.name for spec in IMAGES] == ["operator", "server", "steps"]


def test_signature_of_another_key_is_refused(signed: Layout) -> None:
    verify_image(signed, KEY.public_key())
    with pytest.raises(UserError, match=r"steps: the signature is not by this key, or was changed"):
        verify_image(signed, OTHER_KEY.public_key())


def test_unsigned_image_is_refused_where_key_is_given(base: Path, source: ReleaseSource, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"steps: is not signed"):
        verify_image(_write(tmp_path / "steps", base, source), KEY.public_key())


def test_signature_of_another_image_is_refused(copy: Layout, base: Path, source: ReleaseSource, tmp_path: Path) -> None:
    other = _write(tmp_path / "other", base, replace(source, commit="d" * 40), KEY)
    shutil.copytree(other.root / "blobs", copy.root / "blobs", dirs_exist_ok=True)
    copy.write_index([other.manifests[0], *copy.manifests[1:]])
    with pytest.raises(UserError, match=r"the signature is of another image, sha256:"):
        verify_image(copy, KEY.public_key())


def test_changed_attestation_is_refused(copy: Layout) -> None:
    entry = copy.manifests[-1]
    fields = copy.get_manifest(entry).fields
    envelope = json.loads(copy.read(fields["layers"][0]["digest"]))
    payload = base64.b64decode(envelope["payload"]).replace(b"c" * 40, b"d" * 40)
    envelope["payload"] = base64.b64encode(payload).decode()
    fields["layers"][0].update(copy.add(BytesBlob(json.dumps(envelope).encode())))
    copy.write_index([*copy.manifests[:-1], copy.add_manifest(make_manifest(fields), annotations=entry["annotations"])])
    with pytest.raises(UserError, match=r"the attestation is not by this key, or was changed"):
        verify_image(copy, KEY.public_key())


def test_changed_or_missing_byte_is_refused_before_push(copy: Layout, registry: registries.Registry) -> None:
    layer = copy.get_blob(copy.get_manifest(copy.manifests[0]).fields["layers"][-1]["digest"]).path
    content = bytearray(layer.read_bytes())
    content[-2000] ^= 1
    layer.write_bytes(content)
    config = RegistryConfig(insecure=(registry.host,))
    with pytest.raises(UserError, match=rf"{layer.name}: was changed: its content has the digest sha256:"):
        list(push_images(copy.root.parent, f"{registry.host}/changed", config))
    layer.unlink()
    with pytest.raises(UserError, match=rf"{layer.name}: is missing"):
        list(push_images(copy.root.parent, f"{registry.host}/changed", config))
    assert registry.list_tags("changed/steps") == []


def test_pushed_image_has_referrers_and_signatures_by_tag(copy: Layout, registry: registries.Registry) -> None:
    config = RegistryConfig(insecure=(registry.host,))
    digest = copy.manifests[0]["digest"]
    for _ in range(2):
        (name,) = push_images(copy.root.parent, f"{registry.host}/team", config, KEY.public_key())
    assert name == f"{registry.host}/team/steps@{digest}"
    head = digest.replace(":", "-")
    assert registry.list_tags("team/steps") == [__version__, head, f"{head}.att", f"{head}.sig"]
    assert inspect_image(name, config).user == "1000:0"
    with RegistrySession(parse_reference(name), config) as session:
        index = fetch_manifest(session, head)
        tagged = fetch_manifest(session, __version__)
    assert (index.media_type, tagged.digest) == (OCI_INDEX, digest)
    assert [entry["artifactType"] for entry in index.fields["manifests"]] == [BILL, STATEMENT]


def test_push_keeps_referrers_of_others(copy: Layout, registry: registries.Registry) -> None:
    config = RegistryConfig(insecure=(registry.host,))
    list(push_images(copy.root.parent, f"{registry.host}/kept", config))
    image, *others = copy.manifests
    copy.write_index([image, copy.add_referrer(image, "application/vnd.test", b"note"), *others])
    list(push_images(copy.root.parent, f"{registry.host}/kept", config))
    with RegistrySession(parse_reference(f"{registry.host}/kept/steps"), config) as session:
        index = fetch_manifest(session, image["digest"].replace(":", "-"))
    kinds = [entry["artifactType"] for entry in index.fields["manifests"]]
    assert kinds == [BILL, STATEMENT, "application/vnd.test"]


def test_command_refuses_images_of_another_key(
    copy: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = OTHER_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "other.pub").write_bytes(public)
    words = ["push", "registry.invalid/team", "--images", str(copy.root.parent), "--key", str(tmp_path / "other.pub")]
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert printed == f"Error: {copy.root}: the signature is not by this key, or was changed\nCheck --key.\n"


def test_push_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="images: has no images"):
        list(push_images(tmp_path / "images", "registry.invalid/team", RegistryConfig()))


def test_base_of_registry_is_read_by_digest(registry: registries.Registry) -> None:
    config = RegistryConfig(insecure=(registry.host,))
    platforms = (PLATFORM, "linux/s390x")
    name = base_images.push_base(registry.host, "team/base", config=config, platforms=platforms)
    with RegistrySession(parse_reference(name), config) as session:
        index = fetch_manifest(session, "1")
    with open_base(f"{name}@{index.digest}", config) as found:
        assert found.manifest.digest == index.children[0]["digest"]
        layer = found.manifest.fields["layers"][0]
        assert len(b"".join(found.get_blob(layer).read())) == layer["size"]
        assert found.name == f"{registry.host}/team/base"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nowhere", r"^base: nowhere: is no file, and not pinned by a digest"),
        ("docker.io/library/python:3.11", r"^base: docker.io/library/python:3.11: is no file, and not pinned"),
        ("python@sha256:1", r"^base: must end with @sha256: and 64 hexadecimal digits"),
        (__file__, r"^base: .*: cannot be read: "),
        (str(Path(__file__).parent), r": is no OCI image layout: index.json is missing or damaged"),
    ],
)
def test_wrong_base_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason), open_base(text, RegistryConfig()):
        pass


def test_missing_base_leaves_no_release(tmp_path: Path) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    (tmp_path / "CHANGELOG.md").write_text("## Upcoming\nNew.\n")
    for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "Changes"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    from release.files import write_release

    with pytest.raises(NotFoundError, match=r"^base: nowhere: is no file"):
        write_release(tmp_path, __version__, tmp_path / "dist", base="nowhere")
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(
    ("files", "platform", "reason"),
    [
        ({"usr/bin/python3.9": b""}, PLATFORM, rf"^base: must have {PYTHON}, .* got python3.9"),
        ({}, PLATFORM, rf"^base: must have {PYTHON}, .* got no Python"),
        (FILES, "linux/s390x", rf"^base: must be for {PLATFORM}, .* got linux/s390x"),
    ],
)
def test_unusable_base_is_refused(
    files: Mapping[str, bytes], platform: str, reason: str, source: ReleaseSource, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=reason):
        _write(tmp_path / "steps", _write_base(tmp_path / "base", files, platform), source)


def test_python_of_python_images_comes_first() -> None:
    files = {f"usr/bin/{PYTHON}": "", f"usr/local/bin/{PYTHON}": ""}
    assert get_python(files) == f"/usr/local/bin/{PYTHON}"


def test_package_that_the_index_lacks_is_named(base: Path, tmp_path: Path) -> None:
    source = _write_source(tmp_path / "packages", "no-such-package-of-anybody")
    with pytest.raises(ProcessFailedError) as caught:
        _write(tmp_path / "steps", base, source)
    assert caught.value.message == (
        f"image steps: kfp-mindspore=={__version__} cannot be installed with the tested versions"
    )
    assert "no-such-package-of-anybody" in " ".join(caught.value.log)
    assert not (tmp_path / "steps" / "index.json").exists()


def test_mindspore_needs_openmp_of_base(base: Path, tmp_path: Path) -> None:
    source = _write_source(tmp_path / "packages", "mindspore==0.0.1")
    with zipfile.ZipFile(source.wheel.with_name("mindspore-0.0.1-py3-none-any.whl"), "w") as archive:
        archive.writestr(
            "mindspore-0.0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: mindspore\nVersion: 0.0.1\n"
        )
        archive.writestr("mindspore-0.0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("mindspore-0.0.1.dist-info/RECORD", "")
    with pytest.raises(UserError, match=r"^base: must have libgomp\.so\.1, which MindSpore needs"):
        _write(tmp_path / "steps", base, source)
    files = {**FILES, "usr/lib/x86_64-linux-gnu/libgomp.so.1": b""}
    _write(tmp_path / "steps", _write_base(tmp_path / "base", files), source)
