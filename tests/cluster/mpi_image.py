"""Image of the launcher and the workers of MPIJobs: Python, Open MPI and an SSH server."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.infrastructure.images import PYTHON_PACKAGES, bootstrap, make_root, write_archive
from tests.cluster.infrastructure.paths import compute_digest, get_cache, lock, make_directory

MPI_IMAGE = "kfp-mindspore.test/mpi:1"
_PACKAGES = (*PYTHON_PACKAGES, "openmpi-bin", "openssh-client", "openssh-server")
# The settings of the MPI operator's own images: host keys differ in each pod, and the mounted keys belong to root.
_SETTINGS = {
    "ssh_config": "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n",
    "sshd_config": "PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\n",
}


def make_mpi_archive() -> Path:
    """Return the archive of the image; created once, in three minutes.

    Raises:
        UnavailableError: debootstrap is missing.
    """
    digest = compute_digest([], *_PACKAGES, *_SETTINGS.values())
    archive = get_cache() / "images" / f"mpi-{digest}.tar"
    with lock(get_cache() / "images" / ".lock-mpi"):
        if not archive.exists():
            with make_root(archive) as root:
                bootstrap(root, _PACKAGES)
                make_directory(root / "run" / "sshd")
                for name, text in _SETTINGS.items():
                    (root / "etc" / "ssh" / name).write_text(text)
                write_archive(MPI_IMAGE, root, archive)
    return archive
