"""Faults of a registry during a build: a retry or a clear error, no partial image, and a second build succeeds."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.images import AppendBuilder, ImageOptions, RegistryConfig, build_image, collect_folder, make_plan
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.registry.errors import RegistryError, TransientError
from kfp_mindspore.images.result import BuildResult
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from tests.support.remote import base_images, registries
from tests.support.remote.registries import Fault, FaultProxy, Registry

SMALL = 3 << 20
BIG = 40 << 20
_START_SECONDS = 60.0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registries.require_binary()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@dataclasses.dataclass
class Environment:
    """A registry behind a fault-injecting proxy, and a base image in it."""

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

    def assert_nothing_is_left(self, *, refused: bool = False) -> None:
        """Assert that there is no tag and no partial upload.

        docker-registry cannot cancel an upload after a broken or `refused` request; it purges these after a week.
        """
        assert self.registry.list_tags(self.repository) == []
        assert refused or self.registry.list_uploads(self.repository) == []


@pytest.fixture
def environment(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with registries.FaultProxy(registry) as proxy:
        config = RegistryConfig(insecure=(registry.host, proxy.host), attempts=4, backoff_seconds=0.01)
        repository = f"faults/{tmp_path.name.replace('_', '-').strip('-')}"
        name = base_images.push_base(registry.host, f"{repository}-base", config=config)
        yield Environment(registry, proxy, config, name.replace(registry.host, proxy.host), repository)


def make_context(size: int) -> BuildContext:
    """Return sources of a size whose bytes differ from those of any other test."""
    block = os.urandom(1 << 16)
    return BuildContext(
        [ContextEntry.from_bytes("data", block * (size >> 16)), ContextEntry.from_bytes("train.py", b"print(1)\n")]
    )


UPLOADS = "/blobs/uploads/"
TRANSIENT = {
    "429 to the first question": [Fault("GET", "/manifests/", status=429, times=3)],
    "503 while an upload begins": [Fault("POST", UPLOADS, status=503, times=2)],
    "500 to a layer": [Fault("PUT", UPLOADS, status=500, times=2)],
    "404 to a layer": [Fault("PUT", UPLOADS, status=404)],
    "a layer cut off": [Fault("PUT", UPLOADS, cut_after=100_000, times=2)],
    "another push of the same digest": [
        Fault("PUT", "/manifests/", status=400, body=b'{"errors": [{"code": "DIGEST_INVALID"}]}', times=2)
    ],
    "mounts that are not allowed": [Fault("POST", "mount=", status=403, times=2)],
    "mounts that are not known": [Fault("POST", "mount=", status=405, times=2)],
    "502 to the manifest": [Fault("PUT", "/manifests/", status=502, times=3)],
    "a connection cut before the tag": [Fault("PUT", "/manifests/[0-9a-f]{20}", cut_after=0)],
}


@pytest.mark.parametrize("name", TRANSIENT)
def test_transient_fault_is_retried(environment: Environment, name: str) -> None:
    environment.proxy.faults = [dataclasses.replace(fault) for fault in TRANSIENT[name]]
    result = environment.build(make_context(SMALL))
    assert result.built
    assert environment.registry.list_tags(environment.repository) == [result.tag]
    assert "cut off" in name or environment.registry.list_uploads(environment.repository) == []
    assert all(fault.times == 0 for fault in environment.proxy.faults)


PERMANENT: dict[str, tuple[Fault, str]] = {
    "429": (Fault("PUT", UPLOADS, status=429, times=-1), r"returned 429.*tried 4 times"),
    "500": (
        Fault("PUT", UPLOADS, status=500, times=-1, body=b'{"errors": [{"code": "UNKNOWN"}]}'),
        r"returned 500 \(UNKNOWN\)",
    ),
    "503": (Fault("POST", UPLOADS, status=503, times=-1), r"returned 503"),
    "reset": (Fault("PUT", UPLOADS, cut_after=1 << 20, times=-1), r"no connection to|tried 4 times"),
    "400": (Fault("PUT", "/manifests/[0-9a-f]{20}", status=400, times=-1), r"returned 400"),
}


@pytest.mark.parametrize("name", PERMANENT)
def test_permanent_fault_ends_in_error_and_leaves_nothing(environment: Environment, name: str) -> None:
    fault, reason = PERMANENT[name]
    environment.proxy.faults = [dataclasses.replace(fault)]
    context = make_context(BIG)
    with pytest.raises(RegistryError, match=reason) as caught:
        environment.build(context)
    assert environment.repository in str(caught.value)
    assert "_state=" not in str(caught.value)
    environment.assert_nothing_is_left(refused=name == "reset")
    environment.proxy.faults = []
    assert environment.build(context).built


def test_layer_is_sent_again_from_start_after_broken_connection(environment: Environment) -> None:
    environment.proxy.faults = [Fault("PUT", UPLOADS, cut_after=20 << 20)]
    result = environment.build(make_context(BIG))
    assert environment.registry.list_tags(environment.repository) == [result.tag]
    assert environment.proxy.body_bytes >= result.sent_bytes + (20 << 20)


def test_layer_that_arrived_before_lost_response_is_not_sent_again(environment: Environment) -> None:
    environment.proxy.faults = [Fault("PUT", UPLOADS, loses_response=True)]
    result = environment.build(make_context(BIG))
    assert environment.registry.list_tags(environment.repository) == [result.tag]
    assert environment.proxy.body_bytes < result.sent_bytes + (1 << 20)


def test_retry_after_is_honoured(environment: Environment) -> None:
    environment.proxy.faults = [Fault("POST", UPLOADS, status=429, headers={"Retry-After": "1"})]
    started = time.monotonic()
    environment.build(make_context(SMALL))
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", UPLOADS), ("PUT", "/manifests/sha256:")], ids=["layer", "manifest"]
)
def test_wrong_digest_in_response_is_not_tagged(environment: Environment, method: str, path: str) -> None:
    wrong = f"sha256:{'0' * 64}"
    environment.proxy.faults = [Fault(method, path, headers={"Docker-Content-Digest": wrong})]
    context = make_context(SMALL)
    with pytest.raises(RegistryError, match=f"the registry stored {wrong}"):
        environment.build(context)
    environment.assert_nothing_is_left()
    assert environment.build(context).built


def test_corrupt_base_image_is_refused(environment: Environment) -> None:
    environment.proxy.faults = [Fault("GET", "/blobs/sha256:", status=200, body=b"{}")]
    with pytest.raises(RegistryError, match="the registry sent sha256:"):
        environment.build(make_context(SMALL))
    environment.assert_nothing_is_left()


def test_deleted_base_image_is_named(environment: Environment) -> None:
    context = make_context(SMALL)
    builder = AppendBuilder(environment.config)
    plan: ImagePlan = make_plan(context, ImageOptions(environment.base), builder)
    environment.registry.remove_repository(f"{environment.repository}-base")
    with pytest.raises(NotFoundError, match=f"base image {environment.base}: no such image"):
        builder.build(plan, environment.destination)
    environment.assert_nothing_is_left()
    with pytest.raises(NotFoundError, match=f"{environment.base}: no such image"):
        environment.build(context)
    base_images.push_base(environment.registry.host, f"{environment.repository}-base", config=environment.config)
    assert builder.build(plan, environment.destination).built


def test_unreachable_registry_is_reported(environment: Environment) -> None:
    environment.proxy.close()
    with pytest.raises(TransientError, match=r"no connection to .*Connection refused"):
        environment.build(make_context(SMALL))


def test_silent_registry_times_out(environment: Environment) -> None:
    environment.proxy.faults = [Fault("GET", before=lambda _: time.sleep(2.0), times=2)]
    with pytest.raises(TransientError, match="did not respond in time; tried 2 times"):
        environment.build(make_context(SMALL), timeout_seconds=0.2, attempts=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root: run the tests as root")
def test_full_disk_is_reported_and_nothing_is_tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_interrupt_leaves_no_tag_and_no_file(environment: Environment, tmp_path: Path) -> None:
    sources, scratch = tmp_path / "sources", tmp_path / "scratch"
    sources.mkdir()
    scratch.mkdir()
    (sources / "data").write_bytes(os.urandom(1 << 20) * (BIG >> 20))
    arguments = [
        str(sources),
        environment.destination,
        environment.base,
        environment.registry.host,
        environment.proxy.host,
    ]
    variables = {**os.environ, "TMPDIR": str(scratch)}

    started, interrupted = threading.Event(), threading.Event()

    def stall(_: str) -> None:
        started.set()
        interrupted.wait(_START_SECONDS)

    environment.proxy.faults = [Fault("PUT", UPLOADS, before=stall)]
    process = subprocess.Popen(
        [sys.executable, "-c", _BUILD, *arguments], env=variables, stderr=subprocess.PIPE, text=True
    )
    assert started.wait(_START_SECONDS), process.poll()
    process.send_signal(signal.SIGINT)
    interrupted.set()
    _, errors = process.communicate(timeout=_START_SECONDS)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    environment.assert_nothing_is_left(refused=True)
    assert list(scratch.iterdir()) == []
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, *arguments], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert environment.registry.list_tags(environment.repository) == [done.stdout.strip()]


def test_sources_changed_during_upload(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "train.py"
    file.write_bytes(b"first\n")

    def change(_: str) -> None:
        file.write_bytes(b"other\n")

    def lengthen(_: str) -> None:
        file.write_bytes(b"longer than before\n")

    environment.proxy.faults = [Fault("POST", UPLOADS, before=change)]
    with pytest.raises(KfpMindSporeError, match=r"returned 400 \(DIGEST_INVALID"):
        environment.build(collect_folder(tmp_path / "src"))
    environment.assert_nothing_is_left(refused=True)
    assert environment.build(collect_folder(tmp_path / "src")).built
    file.write_bytes(b"again\n")
    context = collect_folder(tmp_path / "src")
    environment.proxy.faults = [Fault("POST", UPLOADS, before=lengthen)]
    with pytest.raises(UserError, match=r"train\.py: changed during the build"):
        environment.build(context)
