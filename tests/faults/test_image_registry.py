"""What a registry can do to a build: each ends in a clear error or goes on, leaves no half image, and works again."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.images import (
    AppendBuilder,
    BuildContext,
    BuildResult,
    Entry,
    ImageOptions,
    ImagePlan,
    RegistryConfig,
    build_image,
    collect_folder,
    make_plan,
)
from kfp_mindspore.images.registry.errors import RegistryError, TransientError
from tests.support import base_images, registries
from tests.support.registries import Fault, FaultProxy, Registry

SMALL = 3 << 20
BIG = 40 << 20
_START_SECONDS = 60.0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registries.require_binary()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@dataclasses.dataclass
class Site:
    """A registry behind a proxy, a base image in it, and how it is reached."""

    registry: Registry
    proxy: FaultProxy
    config: RegistryConfig
    base: str
    repository: str

    @property
    def destination(self) -> str:
        return f"{self.proxy.host}/{self.repository}"

    def build(self, context: BuildContext, **changes: Any) -> BuildResult:
        config = dataclasses.replace(self.config, **changes)
        return build_image(context, self.destination, ImageOptions(self.base), AppendBuilder(config))

    def check_nothing_is_left(self, *, refused: bool = False) -> None:
        """Find no tag and no bytes of an upload.

        docker-registry can neither go on with nor give up an upload after a request that broke or that it `refused`
        after reading it: it removes such bytes by itself after a week.
        """
        assert self.registry.list_tags(self.repository) == []
        assert refused or self.registry.list_uploads(self.repository) == []


@pytest.fixture
def site(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with registries.start_proxy(registry) as proxy:
        config = RegistryConfig(insecure=(registry.host, proxy.host), attempts=4, backoff_seconds=0.01)
        repository = f"faults/{tmp_path.name.replace('_', '-').strip('-')}"
        name = base_images.push_base(registry.host, f"{repository}-base", config=config)
        yield Site(registry, proxy, config, name.replace(registry.host, proxy.host), repository)


def make_context(size: int) -> BuildContext:
    """Return sources of a size whose bytes differ from those of any other test."""
    block = os.urandom(1 << 16)
    return BuildContext([Entry.from_bytes("data", block * (size >> 16)), Entry.from_bytes("train.py", b"print(1)\n")])


UPLOADS = "/blobs/uploads/"
PASSING = {
    "429 to the first question": [Fault("GET", "/manifests/", status=429, times=3)],
    "503 while an upload begins": [Fault("POST", UPLOADS, status=503, times=2)],
    "500 to a small layer": [Fault("PUT", UPLOADS, status=500, times=2)],
    "a small layer cut off": [Fault("PUT", UPLOADS, cut_after=100_000, times=2)],
    "another push of the same digest": [
        Fault("PUT", "/manifests/", status=400, body=b'{"errors": [{"code": "DIGEST_INVALID"}]}', times=2)
    ],
    "mounts that are not allowed": [Fault("POST", "mount=", status=403, times=2)],
    "mounts that are not known": [Fault("POST", "mount=", status=405, times=2)],
    "502 to the manifest": [Fault("PUT", "/manifests/", status=502, times=3)],
    "a connection cut before the tag": [Fault("PUT", "/manifests/[0-9a-f]{20}", cut_after=0)],
}


@pytest.mark.parametrize("name", PASSING)
def test_goes_on_after(site: Site, name: str) -> None:
    site.proxy.faults = [dataclasses.replace(fault) for fault in PASSING[name]]
    result = site.build(make_context(SMALL))
    assert result.built
    assert site.registry.list_tags(site.repository) == [result.tag]
    assert "cut off" in name or site.registry.list_uploads(site.repository) == []
    assert all(fault.times == 0 for fault in site.proxy.faults)


FOR_EVER: dict[str, tuple[Fault, str]] = {
    "429": (Fault("PATCH", status=429, times=-1), r"answered 429.*tried 4 times"),
    "500": (
        Fault("PATCH", status=500, times=-1, body=b'{"errors": [{"code": "UNKNOWN"}]}'),
        r"answered 500 \(UNKNOWN\)",
    ),
    "503": (Fault("POST", UPLOADS, status=503, times=-1), r"answered 503"),
    "reset": (Fault("PATCH", cut_after=1 << 20, times=-1), r"no connection to|tried 4 times"),
    "400": (Fault("PUT", "/manifests/[0-9a-f]{20}", status=400, times=-1), r"answered 400"),
}


@pytest.mark.parametrize("name", FOR_EVER)
def test_gives_up_with_words_and_leaves_nothing(site: Site, name: str) -> None:
    fault, reason = FOR_EVER[name]
    site.proxy.faults = [dataclasses.replace(fault)]
    context = make_context(BIG)
    with pytest.raises(RegistryError, match=reason) as caught:
        site.build(context)
    assert site.repository in str(caught.value)
    assert "_state=" not in str(caught.value)
    site.check_nothing_is_left(refused=name == "reset")
    site.proxy.faults = []
    assert site.build(context).built


def test_a_big_layer_goes_on_where_the_registry_failed(site: Site) -> None:
    site.proxy.faults = [Fault("PATCH", status=503, skip=1, times=1), Fault("PATCH", status=429, skip=1, times=1)]
    result = site.build(make_context(BIG))
    assert site.registry.list_tags(site.repository) == [result.tag]
    assert [request.split("?")[0].split()[0] for request in site.proxy.requests].count("POST") <= 4
    # What arrived is not sent again.
    assert site.proxy.body_bytes < result.sent_bytes + (1 << 20)


def test_a_big_layer_arrives_over_connections_that_break(site: Site) -> None:
    site.proxy.faults = [Fault("PATCH", cut_after=20 << 20), Fault("PATCH", cut_after=3 << 20)]
    result = site.build(make_context(BIG))
    assert site.registry.list_tags(site.repository) == [result.tag]


def test_a_registry_that_forgot_the_upload_gets_it_from_the_start(site: Site) -> None:
    gone = [Fault("PATCH", status=503), Fault("GET", UPLOADS, status=404)]
    site.proxy.faults = [Fault("PATCH", status=404, times=1), *gone]
    assert site.build(make_context(BIG)).built


def test_waits_as_long_as_it_is_asked_to(site: Site) -> None:
    site.proxy.faults = [Fault("POST", UPLOADS, status=429, headers={"Retry-After": "1"})]
    started = time.monotonic()
    site.build(make_context(SMALL))
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", UPLOADS), ("PUT", "/manifests/sha256:")], ids=["layer", "manifest"]
)
def test_a_wrong_digest_sent_back_is_not_tagged(site: Site, method: str, path: str) -> None:
    wrong = f"sha256:{'0' * 64}"
    site.proxy.faults = [Fault(method, path, headers={"Docker-Content-Digest": wrong})]
    context = make_context(SMALL)
    with pytest.raises(RegistryError, match=f"the registry says it holds {wrong}"):
        site.build(context)
    site.check_nothing_is_left()
    assert site.build(context).built


def test_a_base_that_is_not_what_its_digest_says(site: Site) -> None:
    site.proxy.faults = [Fault("GET", "/blobs/sha256:", status=200, body=b"{}")]
    with pytest.raises(RegistryError, match="the registry sent sha256:"):
        site.build(make_context(SMALL))
    site.check_nothing_is_left()


def test_a_base_that_vanished_is_named(site: Site) -> None:
    context = make_context(SMALL)
    builder = AppendBuilder(site.config)
    plan: ImagePlan = make_plan(context, ImageOptions(site.base), builder)
    site.registry.remove_repository(f"{site.repository}-base")
    with pytest.raises(NotFoundError, match=f"base image {site.base}: no such image"):
        builder.build(plan, site.destination)
    site.check_nothing_is_left()
    with pytest.raises(NotFoundError, match=f"{site.base}: no such image"):
        site.build(context)
    base_images.push_base(site.registry.host, f"{site.repository}-base", config=site.config)
    assert builder.build(plan, site.destination).built


def test_a_registry_that_is_not_there(site: Site) -> None:
    site.proxy.close()
    with pytest.raises(TransientError, match=r"no connection to .*Connection refused"):
        site.build(make_context(SMALL))


def test_a_registry_that_says_nothing_in_time(site: Site) -> None:
    site.proxy.faults = [Fault("GET", before=lambda _: time.sleep(2.0), times=2)]
    with pytest.raises(TransientError, match="did not answer in time; tried 2 times"):
        site.build(make_context(SMALL), timeout_seconds=0.2, attempts=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root: run the tests as root")
def test_a_full_disk_is_named_and_nothing_is_tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registries.require_binary()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this container may not mount a tmpfs ({mounted.stderr.strip()}): run with CAP_SYS_ADMIN")
    try:
        with registries.start_registry(tmp_path / "registry", storage=disk) as registry:
            config = RegistryConfig(insecure=(registry.host,), attempts=2, backoff_seconds=0.01)
            base = base_images.push_base(registry.host, config=config)
            options, builder = ImageOptions(base), AppendBuilder(config)
            context = make_context(32 << 20)
            with pytest.raises(RegistryError, match="no space left on the registry's disk"):
                build_image(context, f"{registry.host}/team/train", options, builder)
            assert registry.list_tags("team/train") == []
            subprocess.run(["mount", "-o", "remount,size=128m", str(disk)], check=True)
            assert build_image(context, f"{registry.host}/team/train", options, builder).built
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


_BUILD = """
import sys
from kfp_mindspore.images import AppendBuilder, ImageOptions, RegistryConfig, build_image, collect_folder
folder, destination, base, *insecure = sys.argv[1:]
config = RegistryConfig(insecure=tuple(insecure))
print(build_image(collect_folder(folder), destination, ImageOptions(base), AppendBuilder(config)).tag)
"""


def test_ctrl_c_leaves_no_upload_no_tag_and_no_file(site: Site, tmp_path: Path) -> None:
    sources, scratch = tmp_path / "sources", tmp_path / "scratch"
    sources.mkdir()
    scratch.mkdir()
    (sources / "data").write_bytes(os.urandom(1 << 20) * (BIG >> 20))
    arguments = [str(sources), site.destination, site.base, site.registry.host, site.proxy.host]
    environment = {**os.environ, "TMPDIR": str(scratch)}

    started: list[str] = []

    def stall(path: str) -> None:
        started.append(path)
        time.sleep(1.0)

    site.proxy.faults = [Fault("PATCH", before=stall)]
    process = subprocess.Popen(
        [sys.executable, "-c", _BUILD, *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + _START_SECONDS
    while not started and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=_START_SECONDS)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    site.check_nothing_is_left(refused=True)
    assert list(scratch.iterdir()) == []
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert site.registry.list_tags(site.repository) == [done.stdout.strip()]


def test_sources_that_change_while_they_are_sent(site: Site, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "train.py"
    file.write_bytes(b"first\n")

    def change(_: str) -> None:
        file.write_bytes(b"other\n")

    def lengthen(_: str) -> None:
        file.write_bytes(b"longer than before\n")

    site.proxy.faults = [Fault("POST", UPLOADS, before=change)]
    with pytest.raises(KfpMindSporeError, match=r"answered 400 \(DIGEST_INVALID"):
        site.build(collect_folder(tmp_path / "src"))
    site.check_nothing_is_left(refused=True)
    assert site.build(collect_folder(tmp_path / "src")).built
    file.write_bytes(b"again\n")
    context = collect_folder(tmp_path / "src")
    site.proxy.faults = [Fault("POST", UPLOADS, before=lengthen)]
    with pytest.raises(UserError, match=r"train\.py: changed while it was read"):
        site.build(context)
