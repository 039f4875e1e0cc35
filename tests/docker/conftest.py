"""A Docker daemon, a registry and a base image of the tests' own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.images import ImageOptions, RegistryConfig, make_plan
from kfp_mindspore.images.builders import buildkit
from kfp_mindspore.images.builders.docker import DockerBuilder
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import BUILDKIT, get_binaries
from tests.support.remote import registries
from tests.support.remote.dockerd import DockerDaemon, find_missing

REQUIRE_VARIABLE = "KFP_MINDSPORE_REQUIRE_DOCKER"
TIMEOUT_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.docker)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def skip(reason: str) -> None:
    """Skip a test, or fail where the environment variable requires Docker."""
    if os.environ.get(REQUIRE_VARIABLE):
        pytest.fail(f"{reason} ({REQUIRE_VARIABLE} is set)", pytrace=False)
    pytest.skip(reason)


@dataclass(frozen=True)
class DockerEnvironment:
    """A daemon, a registry that it pushes to, and a base image in both."""

    daemon: DockerDaemon
    registry: registries.Registry
    base: str
    config: RegistryConfig

    def make_builder(self, **options: Any) -> DockerBuilder:
        """Return a builder with the daemon; by buildx when the fixture `backend` has installed it."""
        given = {"registry": self.config, "host": self.daemon.host, "network": "host", **options}
        return DockerBuilder(**given)

    def build(
        self, builder: DockerBuilder, repository: str, main: str = "echo built", **options: Any
    ) -> tuple[Any, list[Any]]:
        """Build sources of one script and return the result with its progress."""
        context = BuildContext([ContextEntry.from_bytes("main.sh", f"{main}\n".encode())])
        given = {"base": self.base, "command": ("sh", "main.sh"), **options}
        plan = make_plan(context, ImageOptions(**given), builder)
        seen: list[Any] = []
        return builder.build(plan, f"{self.registry.host}/{repository}", on_progress=seen.append), seen

    def run(self, image: str) -> str:
        """Run an image as a container without a network and with a read-only root, and return what it printed."""
        client = self.daemon.connect()
        if "@" in image:
            client.pull(image)
        settings = client.create_host_config(network_mode="none", read_only=True)
        container = client.create_container(image, host_config=settings)
        try:
            client.start(container)
            code = client.wait(container)["StatusCode"]
            output = client.logs(container).decode()
        finally:
            client.remove_container(container, force=True)
        assert code == 0, output
        return str(output)


@pytest.fixture(scope="session")
def buildx_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a DOCKER_CONFIG with the plugin buildx."""
    plugins = tmp_path_factory.mktemp("docker") / "cli-plugins"
    plugins.mkdir()
    (plugins / "docker-buildx").symlink_to(start(lambda: get_binaries(BUILDKIT)) / "docker-buildx")
    return plugins.parent


@pytest.fixture(params=["legacy", "buildx"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how Docker builds: by the daemon's legacy builder, or by buildx."""
    has_buildx = request.param == "buildx"
    folder = request.getfixturevalue("buildx_config") if has_buildx else tmp_path / "docker-config"
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    assert bool(buildkit.get_buildx_command()) == has_buildx
    return str(request.param)


@pytest.fixture(scope="session")
def start_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a function that starts a daemon; all end with the session."""
    started: list[DockerDaemon] = []

    def start() -> DockerDaemon:
        if missing := find_missing():
            skip(missing)
        daemon = DockerDaemon(tmp_path_factory.mktemp("dockerd", numbered=True))
        started.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture(scope="session")
def environment(start_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEnvironment]:
    """Return the environment of all tests; each uses repositories of its own."""
    registries.require_binary()
    daemon = start_daemon()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield make_environment(daemon, registry)


def make_environment(daemon: DockerDaemon, registry: registries.Registry) -> DockerEnvironment:
    """Put a base image into a daemon and a registry."""
    repository = f"{registry.host}/team/busybox"
    daemon.import_image(f"{repository}", "1")
    daemon.push(repository, "1")
    return DockerEnvironment(daemon, registry, f"{repository}:1", RegistryConfig(insecure=(registry.host,)))
