"""Images for KServe on a cluster: its graph router, its agent, its storage initializer and our model server."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.infrastructure.binaries import KSERVE, KSERVE_AGENT, get_binaries
from tests.cluster.infrastructure.images import (
    PYTHON,
    ImageConfig,
    get_images,
    make_root,
    unpack_archive,
    write_archive,
)
from tests.cluster.infrastructure.packages import ENVIRONMENT, install_python_packages
from tests.cluster.infrastructure.paths import ROOT, compute_digest, get_cache, lock, make_directory

ROUTER_IMAGE = "kfp-mindspore.test/kserve-router:1"
AGENT_IMAGE = "kfp-mindspore.test/kserve-agent:1"
INITIALIZER_IMAGE = "kfp-mindspore.test/kserve-storage-initializer:1"
SERVER_IMAGE = "kfp-mindspore.test/server:1"
_INITIALIZER = "/storage-initializer/scripts/initializer-entrypoint"
# Part of the cached archives' names: change it with the content of a root file system.
_RECIPE = "2"


def make_kserve_archives() -> dict[str, Path]:
    """Return the archives by image name; created once (half a minute).

    Raises:
        UnavailableError: KServe's binaries or the Python image are not built yet.
    """
    binaries, base = get_binaries(KSERVE), get_images()[PYTHON]
    digest = compute_digest([ROOT / "constraints.txt"], _RECIPE, binaries.name, base.name)
    makers = {
        ROUTER_IMAGE: _make_router,
        AGENT_IMAGE: _make_agent,
        INITIALIZER_IMAGE: _make_initializer,
        SERVER_IMAGE: _make_server,
    }
    archives = {}
    with lock(get_cache() / "images" / ".lock-kserve"):
        for name, make in makers.items():
            archive = get_cache() / "images" / f"{name.partition('/')[2].partition(':')[0]}-{digest}.tar"
            if not archive.exists():
                with make_root(archive) as root:
                    write_archive(name, root, archive, make(root, binaries, base))
            archives[name] = archive
    return archives


def _make_router(root: Path, binaries: Path, base: Path) -> ImageConfig:
    make_directory(root / "ko-app")
    shutil.copy(binaries / "kserve-router", root / "ko-app" / "router")
    return ImageConfig(entrypoint=["/ko-app/router"], user="65532:65532")


def _make_agent(root: Path, binaries: Path, base: Path) -> ImageConfig:
    make_directory(root / "ko-app")
    shutil.copy(get_binaries(KSERVE_AGENT) / "kserve-agent", root / "ko-app" / "agent")
    return ImageConfig(entrypoint=["/ko-app/agent"], user="65532:65532")


def _make_initializer(root: Path, binaries: Path, base: Path) -> ImageConfig:
    """KServe's own entrypoint with kserve-storage, as its Dockerfile does."""
    unpack_archive(base, root)
    install_python_packages(make_directory(root / "opt" / "storage"), "kserve-storage")
    script = root / _INITIALIZER.lstrip("/")
    script.parent.mkdir(parents=True)
    shutil.copy(binaries / script.name, script)
    return ImageConfig(entrypoint=[_INITIALIZER], environment=["PYTHONPATH=/opt/storage", "HOME=/tmp"], user="1000")


def _make_server(root: Path, binaries: Path, base: Path) -> ImageConfig:
    """The entrypoint and user of serving/Containerfile; its packages are volumes, see `packages.py`.

    The variables are the image's: KServe's webhook refuses a runtime that sets PYTHONPATH.
    """
    unpack_archive(base, root)
    variables = {**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    return ImageConfig(
        entrypoint=["python", "-m", "mindsporeserver"],
        environment=[f"{name}={value}" for name, value in variables.items()],
        user="1000:0",
    )
