"""What a cluster of our own needs of this machine, and what of it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

# Debian's package by what it gives: a program, or a file.
PACKAGES: Mapping[str, str] = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "debootstrap": "debootstrap",
    "docker-registry": "docker-registry",
}


class UnavailableError(Exception):
    """This machine cannot have a cluster of our own; the message says why and what to do."""


def find_missing_packages(exists: Callable[[str], bool] | None = None) -> list[str]:
    """Return Debian's packages that nodes need and that are not here.

    Args:
        exists: Tells whether a program or a file is there; default this machine's.
    """
    exists = exists or _exists
    return [package for thing, package in PACKAGES.items() if not exists(thing)]


def install_packages() -> None:
    """Install what nodes need with apt.

    Raises:
        UnavailableError: There is no root or no apt here, or apt failed.
    """
    missing = find_missing_packages()
    if not missing:
        return
    check_root()
    if shutil.which("apt-get") is None:
        raise UnavailableError(f"{', '.join(missing)}: not installed, and there is no apt-get to install them with")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UnavailableError(f"apt-get {' '.join(command)} failed: {done.stderr.strip()[-500:]}")


def check_control_plane() -> None:
    """Check what the API server alone needs.

    Raises:
        UnavailableError: It cannot run here.
    """
    if not sys.platform.startswith("linux"):
        raise UnavailableError("the tests' own API server runs on Linux only; name a cluster of yours instead")


def check_go() -> None:
    """Check that the binaries can be built.

    Raises:
        UnavailableError: Go is missing.
    """
    if shutil.which("go") is None:
        raise UnavailableError("go is not on the PATH; install Go 1.24 or later (it fetches the version that it needs)")


def check_root() -> None:
    """Check for root.

    Raises:
        UnavailableError: This is not root.
    """
    if os.geteuid() != 0:
        raise UnavailableError(
            "root is needed for namespaces, mounts and cgroups; run as root, or name your own cluster"
        )


def check_node() -> None:
    """Check what a node needs, packages included.

    Raises:
        UnavailableError: A node cannot run here.
    """
    check_control_plane()
    check_root()
    if missing := find_missing_packages():
        raise UnavailableError(f"not installed: {', '.join(missing)}; run `python -m tests.cluster build`")


def _exists(thing: str) -> bool:
    return Path(thing).exists() if thing.startswith("/") else shutil.which(thing) is not None
