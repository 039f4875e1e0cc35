"""Images of Katib: each has one program, as its Dockerfiles do."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.infrastructure.binaries import KATIB, get_binaries
from tests.cluster.infrastructure.images import ImageConfig, make_root, write_archive
from tests.cluster.infrastructure.paths import get_cache, lock, make_directory


def name_image(program: str) -> str:
    """Return the name of a program's image."""
    return f"kfp-mindspore.test/{program}:1"


def make_katib_archives() -> dict[str, Path]:
    """Return the archives by image name; created once.

    Raises:
        UnavailableError: Katib is not built yet.
    """
    binaries = get_binaries(KATIB)
    archives = {}
    with lock(get_cache() / "images" / ".lock-katib"):
        for program in KATIB.programs:
            archive = get_cache() / "images" / f"{program}-{binaries.name}.tar"
            if not archive.exists():
                with make_root(archive) as root:
                    shutil.copy(binaries / program, root / program)
                    make_directory(root / "tmp", 0o1777)
                    write_archive(name_image(program), root, archive, ImageConfig(entrypoint=[f"/{program}"]))
            archives[name_image(program)] = archive
    return archives
