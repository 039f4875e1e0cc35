"""Directories of running clusters: ownership, and removal after the owner died."""

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
from tests.cluster.infrastructure.paths import ROOT, get_cache, lock, make_directory

PERSISTENT = "persistent"
SWEEPER = "sweeper"
CGROUP_PREFIX = "kfp-mindspore-"


@dataclass
class Instance:
    """Directory of one running cluster.

    Args:
        directory: The directory.
        lease: Lease of the owner; None for a persistent cluster.
    """

    directory: Path
    lease: Lease | None

    @property
    def name(self) -> str:
        """Its name: kind and a random part."""
        return self.directory.name


def create_instance(kind: str, *, keep: bool = False) -> Instance:
    """Create the directory of a new cluster, after removing clusters of dead owners.

    Args:
        kind: `api` or `node`.
        keep: The cluster outlives this process.
    """
    remove_leftovers()
    root = _get_root()
    with lock(root / ".lock"):
        directory = make_directory(root / f"{kind}-{secrets.token_hex(3)}")
        if keep:
            (directory / PERSISTENT).touch()
            return Instance(directory, None)
        lease = Lease.hold(directory / "lease")
        # Waits until the lease is released, which the kernel does however the owner dies, and removes the cluster.
        sweep = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.cluster", "sweep"]
        Daemons(directory).start(SWEEPER, ["flock", "--shared", str(lease.path), *sweep])
        return Instance(directory, lease)


def list_persistent() -> list[Path]:
    """Return the directories of persistent clusters."""
    return sorted(path.parent for path in _get_root().glob(f"*/{PERSISTENT}"))


def remove_leftovers() -> list[str]:
    """Remove clusters of dead owners and return their names."""
    root = _get_root()
    removed = []
    with lock(root / ".lock"):
        for directory in root.glob("*-*"):
            if not (directory / PERSISTENT).exists() and not is_lease_held(directory / "lease"):
                remove_instance(directory)
                removed.append(directory.name)
    return removed


def remove_instance(directory: Path) -> None:
    """Kill every process of a cluster and remove its files."""
    Daemons(directory).kill_all()
    if directory.name.startswith("node-"):
        remove_link(directory)
        remove_cgroup(f"{CGROUP_PREFIX}{directory.name}")
        restore_machine()
    # Writes of killed processes may complete while the tree is being removed.
    for _ in range(5):
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)
        if not directory.exists():
            return
    shutil.rmtree(directory)


def _get_root() -> Path:
    return make_directory(get_cache() / "instances")
