"""Requirements of the test cluster on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cluster.infrastructure.commands import call
from tests.cluster.infrastructure.paths import ROOT

# Debian package by a program or file in it.
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
# Katib's.
DATABASE: Mapping[str, str] = {"mariadbd": "mariadb-server"}
# KEDA's source of figures.
MONITORING: Mapping[str, str] = {"prometheus": "prometheus"}


class UnavailableError(Exception):
    """A test cluster cannot run on this machine; the message has the reason and the next step."""


def list_missing_packages(
    exists: Callable[[str], bool] | None = None, packages: Mapping[str, str] = PACKAGES
) -> list[str]:
    """Return the Debian packages that are needed and not installed.

    Args:
        exists: Returns whether a program or a file exists; default on this machine.
        packages: Package by a program or file in it; default the packages that nodes need.
    """
    exists = exists or _exists
    return [package for thing, package in packages.items() if not exists(thing)]


def install_packages(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install packages with apt, by default what nodes need.

    Raises:
        UnavailableError: Not root, no apt, or apt failed.
    """
    missing = list_missing_packages(packages=packages)
    if not missing:
        return
    check_root()
    if shutil.which("apt-get") is None:
        raise UnavailableError(f"{', '.join(missing)}: not installed, and there is no apt-get to install them with")
    try:
        call(str(ROOT / ".ci/apt-install"), *missing, seconds=None)
    except RuntimeError as error:
        raise UnavailableError(str(error)) from error


def check_control_plane() -> None:
    """Check the requirements of an API server without nodes.

    Raises:
        UnavailableError: This is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise UnavailableError(
            "the API server of the tests runs on Linux only; set KUBECONFIG and KFP_MINDSPORE_TEST_CLUSTER=current"
        )


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
        UnavailableError: Not root.
    """
    if os.geteuid() != 0:
        raise UnavailableError(
            "root is needed for namespaces, mounts and cgroups; run as root, or set KFP_MINDSPORE_TEST_CLUSTER=current"
        )


def check_node() -> None:
    """Check the requirements of a node, packages included.

    Raises:
        UnavailableError: A node cannot run on this machine.
    """
    check_control_plane()
    check_root()
    if missing := list_missing_packages():
        raise UnavailableError(f"not installed: {', '.join(missing)}; run `python -m tests.cluster build`")


def _exists(thing: str) -> bool:
    return Path(thing).exists() if thing.startswith("/") else shutil.which(thing) is not None
