"""Release images of this checkout in a layout and in a registry, and the programs that judge them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kfp_mindspore import __version__
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.runtime.wheel import read_wheel
from release.base import open_base
from release.images import ImageSpec, ReleaseSource, write_image
from release.layout import Layout
from release.push import push_images
from tests.cluster.infrastructure.binaries import RELEASE, build_binaries
from tests.cluster.infrastructure.prerequisites import UnavailableError
from tests.cluster.release_images import write_base, write_public_key
from tests.support.remote import registries

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests: `make test-release` runs them."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.release)
            # cosign and syft are built first.
            item.add_marker(pytest.mark.timeout(3600))


@dataclass(frozen=True)
class Release:
    """A signed image without extras.

    Args:
        layout: Its layout.
        registry: A registry that it was pushed to.
        reference: Its name there, by digest.
        public: The file of the public key.
        other: The file of another public key.
    """

    layout: Layout
    registry: registries.Registry
    reference: str
    public: Path
    other: Path


@pytest.fixture(scope="session")
def programs() -> Path:
    """Return the folder of cosign and syft."""
    try:
        return build_binaries(RELEASE)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    registries.require_binary()
    folder = tmp_path_factory.mktemp("release")
    try:
        write_base(folder / "base")
    except UnavailableError as error:
        pytest.skip(str(error))
    (folder / "packages").mkdir()
    name, content = read_wheel()
    (folder / "packages" / name).write_bytes(content)
    source = ReleaseSource(__version__, "0" * 40, 0, folder / "packages" / name, ROOT / "constraints.txt")
    key = ec.generate_private_key(ec.SECP256R1())
    spec = ImageSpec("steps", (), command=("kfp-mindspore", "--version"))
    with open_base(f"{folder}/base", RegistryConfig()) as base:
        write_image(folder / "images" / spec.name, spec, base, source, key)
    with registries.start_registry(folder / "registry") as registry:
        config = RegistryConfig(insecure=(registry.host,))
        (reference,) = push_images(folder / "images", f"{registry.host}/team", config, key.public_key())
        yield Release(
            Layout(folder / "images" / spec.name),
            registry,
            reference,
            write_public_key(folder / "release.pub", key),
            write_public_key(folder / "other.pub", ec.generate_private_key(ec.SECP256R1())),
        )
