"""Directories of running clusters: who owns each, and what is left of those whose owner died."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.local.lease import Lease, is_lease_held
from tests.cluster.infrastructure.daemons import Daemons
from tests.cluster.infrastructure.machine import remove_cgroup, restore_machine
from tests.cluster.infrastructure.namespaces import remove_link
from tests.cluster.infrastructure.paths import ROOT, find_cache, lock, make_directory

KEPT = "kept"
SWEEPER = "sweeper"
CGROUP_PREFIX = "kfp-mindspore-"


@dataclass
class Instance:
    """A directory that holds one running cluster.

    Args:
        directory: The directory.
        lease: What its owner holds while it lives; None for a cluster that is kept until somebody ends it.
    """

    directory: Path
    lease: Lease | None

    @property
    def name(self) -> str:
        """Its name: kind and a random part."""
        return self.directory.name


def create_instance(kind: str, *, keep: bool = False) -> Instance:
    """Make the directory of a new cluster, after removing what dead owners left.

    Args:
        kind: `api` or `node`.
        keep: It outlives this process.
    """
    remove_leftovers()
    root = _find_root()
    with lock(root / ".lock"):
        directory = make_directory(root / f"{kind}-{secrets.token_hex(3)}")
        if keep:
            (directory / KEPT).touch()
            return Instance(directory, None)
        lease = Lease.hold(directory / "lease")
        # Waits for the lease to fall, however its holder ends, and removes what is left then.
        sweep = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.cluster", "sweep"]
        Daemons(directory).start(SWEEPER, ["flock", "--shared", str(lease.path), *sweep])
        return Instance(directory, lease)


def find_kept() -> list[Path]:
    """Return the directories of clusters that are kept until somebody ends them."""
    return sorted(path.parent for path in _find_root().glob(f"*/{KEPT}"))


def remove_leftovers() -> list[str]:
    """End what clusters of dead owners left, and return their names."""
    root = _find_root()
    removed = []
    with lock(root / ".lock"):
        for directory in root.glob("*-*"):
            if not (directory / KEPT).exists() and not is_lease_held(directory / "lease"):
                remove_instance(directory)
                removed.append(directory.name)
    return removed


def remove_instance(directory: Path) -> None:
    """End every process of a cluster and remove its files."""
    Daemons(directory).kill_all()
    if directory.name.startswith("node-"):
        remove_link(directory)
        remove_cgroup(f"{CGROUP_PREFIX}{directory.name}")
        restore_machine()
    # A killed process's last writes may land while the tree is being removed.
    for _ in range(5):
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)
        if not directory.exists():
            return
    shutil.rmtree(directory)


def _find_root() -> Path:
    return make_directory(find_cache() / "instances")
