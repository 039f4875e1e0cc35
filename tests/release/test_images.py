"""Images of a release, as cosign, syft, skopeo and Docker see them."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kfp_mindspore import __version__
from release.layout import TAG, Layout
from release.signatures import sign
from tests.cluster.release_images import write_public_key
from tests.release.conftest import Release
from tests.support.remote.dockerd import DockerDaemon, find_missing

OFFLINE = ("--insecure-ignore-tlog", "--allow-insecure-registry", "--allow-http-registry")


def _verify(programs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(programs / "cosign"), *words], capture_output=True, text=True, check=False)


def test_cosign_verifies_signature_of_file(programs: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "SHA256SUMS").write_text("sums")
    (tmp_path / "SHA256SUMS.sig").write_bytes(sign(key, b"sums"))
    words = ["--key", str(write_public_key(tmp_path / "release.pub", key)), "--insecure-ignore-tlog"]
    words += ["--signature", str(tmp_path / "SHA256SUMS.sig"), str(tmp_path / "SHA256SUMS")]
    assert _verify(programs, "verify-blob", *words).returncode == 0
    (tmp_path / "SHA256SUMS").write_text("other")
    assert _verify(programs, "verify-blob", *words).returncode != 0


def test_cosign_verifies_signature(release: Release, programs: Path) -> None:
    key = ("--key", str(release.public))
    for image in ([release.reference], ["--local-image", str(release.layout.root)]):
        done = _verify(programs, "verify", *key, *OFFLINE, *image)
        assert done.returncode == 0, done.stderr
        (signed,) = json.loads(done.stdout)
        assert signed["critical"]["image"]["docker-manifest-digest"] == release.layout.manifests[0]["digest"]


@pytest.mark.parametrize(("kind", "predicate"), [("slsaprovenance1", "buildDefinition"), ("cyclonedx", "bomFormat")])
def test_cosign_verifies_attestation(release: Release, programs: Path, kind: str, predicate: str) -> None:
    key = ("--key", str(release.public))
    for image in ([release.reference], ["--local-image", str(release.layout.root)]):
        done = _verify(programs, "verify-attestation", "--type", kind, *key, *OFFLINE, *image)
        assert done.returncode == 0, done.stderr
        statement = json.loads(base64.b64decode(json.loads(done.stdout)["payload"]))
        assert predicate in statement["predicate"]


@pytest.mark.parametrize("command", ["verify", "verify-attestation"])
def test_cosign_refuses_another_key(release: Release, programs: Path, command: str) -> None:
    kind = ("--type", "slsaprovenance1") if command == "verify-attestation" else ()
    done = _verify(programs, command, *kind, "--key", str(release.other), *OFFLINE, release.reference)
    assert done.returncode != 0
    assert "no matching" in done.stderr


def test_cosign_refuses_changed_image(release: Release, programs: Path, tmp_path: Path) -> None:
    shutil.copytree(release.layout.root, tmp_path / "steps")
    path = Layout(tmp_path / "steps").get_blob(release.layout.manifests[0]["digest"]).path
    path.write_bytes(path.read_bytes().replace(b'"Apache-2.0"', b'"Apache-1.0"'))
    done = _verify(programs, "verify", "--key", str(release.public), *OFFLINE, "--local-image", str(tmp_path / "steps"))
    assert done.returncode != 0
    assert "no matching signatures" in done.stderr


def _normalise(kind: str, package: dict[str, Any]) -> tuple[str, str, str]:
    """Return kind, name and version; syft normalises names of Python packages."""
    name = package["name"]
    return kind, re.sub(r"[-_.]+", "-", name).lower() if kind == "python" else name, package["version"]


def test_syft_finds_packages_of_the_bill(release: Release, programs: Path, tmp_path: Path) -> None:
    variables = {"SYFT_REGISTRY_INSECURE_USE_HTTP": "true", "SYFT_CHECK_FOR_APP_UPDATE": "false", "HOME": str(tmp_path)}
    words = [str(programs / "syft"), "scan", f"registry:{release.reference}", "--output", "json", "--quiet"]
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {_normalise(each["type"], each) for each in json.loads(done.stdout)["artifacts"]}
    (referrer,) = (each for each in release.layout.manifests if each.get("artifactType", "").endswith("cyclonedx+json"))
    bill = json.loads(release.layout.read(release.layout.get_manifest(referrer).fields["layers"][0]["digest"]))
    kinds = {"pypi": "python", "deb": "deb"}
    listed = {_normalise(kinds[each["purl"][4:].partition("/")[0]], each) for each in bill["components"]}
    assert ("python", "kfp-mindspore", __version__) in listed
    # syft also finds packages of Debian's own Python, which the bill lists by its Debian packages.
    assert listed <= found


def test_skopeo_copies_layout_with_digest(release: Release, tmp_path: Path) -> None:
    image = release.layout.manifests[0]
    name = f"oci:{release.layout.root}:{image['annotations'][TAG]}"
    words = ["skopeo", "copy", "--quiet", "--preserve-digests", name, f"oci:{tmp_path}/copy:x"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Layout(tmp_path / "copy").manifests[0]["digest"] == image["digest"]


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if missing := find_missing():
        pytest.skip(missing)
    started = DockerDaemon(tmp_path_factory.mktemp("dockerd"))
    started.start()
    yield started
    started.stop()


def test_docker_runs_image_unprivileged_with_read_only_root(release: Release, daemon: DockerDaemon) -> None:
    client = daemon.connect()
    client.pull(release.reference)
    settings = client.create_host_config(
        network_mode="none", read_only=True, tmpfs={"/tmp": ""}, cap_drop=["ALL"], security_opt=["no-new-privileges"]
    )
    printed = {}
    for words in (None, ["python3", "-c", "import os, sys; print(os.getuid(), sys.prefix)"]):
        container = client.create_container(release.reference, command=words, host_config=settings)
        client.start(container)
        code = client.wait(container)["StatusCode"]
        printed[bool(words)] = client.logs(container).decode()
        client.remove_container(container, force=True)
        assert code == 0, printed
    assert printed[False].startswith(f"kfp-mindspore {__version__} ")
    assert printed[True] == "1000 /opt/venv\n"
