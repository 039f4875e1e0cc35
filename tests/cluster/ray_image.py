"""Image of Ray's pods: Python, Ray, and what KubeRay's probes need."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.infrastructure.images import PYTHON_PACKAGES, bootstrap, make_root, write_archive
from tests.cluster.infrastructure.packages import install_python_packages
from tests.cluster.infrastructure.paths import ROOT, compute_digest, get_cache, lock, make_directory

RAY_IMAGE = "kfp-mindspore.test/ray:1"
_PACKAGES = (*PYTHON_PACKAGES, "wget")
_LIBRARIES = "usr/local/lib/python3.11/dist-packages"
# KubeRay starts it in a login shell, whose PATH is the distribution's.
_COMMAND = "#!/usr/bin/python3\nfrom ray.scripts.scripts import main\n\nmain()\n"


def make_ray_archive() -> Path:
    """Return the archive of the image; created once, in four minutes.

    Raises:
        UnavailableError: debootstrap is missing.
        RuntimeError: debootstrap or uv failed; the message holds its errors.
    """
    digest = compute_digest([ROOT / "constraints.txt", ROOT / "pyproject.toml"], *_PACKAGES, _COMMAND)
    archive = get_cache() / "images" / f"ray-{digest}.tar"
    with lock(get_cache() / "images" / ".lock-ray"):
        if not archive.exists():
            with make_root(archive) as root:
                bootstrap(root, _PACKAGES)
                words = ("--requirement", str(ROOT / "pyproject.toml"), "--extra", "ray")
                install_python_packages(make_directory(root / _LIBRARIES), *words)
                command = root / "usr/local/bin/ray"
                command.write_text(_COMMAND)
                command.chmod(0o755)
                write_archive(RAY_IMAGE, root, archive)
    return archive
